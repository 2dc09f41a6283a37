//! A checkpoint's head: what is needed to use it, as JSON with a checksum.

use crate::blob::{BadBlob, Line};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sluice_base::{Seq, crc::crc32c};

/// The newest layout of it.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The last field and the end: the CRC of everything before this, in 8 hexadecimal digits between the two.
const CRC_FIELD: (&str, &str) = (",\n  \"crc\": \"", "\"\n}\n");

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) format_version: u32,
    /// The checkpoint began at this record...
    pub(crate) begin: u64,
    /// ... and ended at this one: it needs the log from the first to here.
    pub(crate) end: u64,
    /// The blob of the log that comes next.
    pub(crate) log: u64,
    /// The fence by which the process that made it began.
    pub(crate) fence: u64,
    pub(crate) line: Line,
    pub(crate) run: u64,
    pub(crate) parts: u32,
    pub(crate) bytes: u64,
}

impl Head {
    pub(crate) fn begin(&self) -> Seq {
        Seq(self.begin)
    }

    /// Parses any bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadBlob> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadBlob::Other)?;
        let checked = checked(text);
        if checked == Some(false) {
            return Err(BadBlob::Checksum);
        }
        let value: serde_json::Value = serde_json::from_str(text).map_err(|_| BadBlob::Other)?;
        match value["format_version"].as_u64().and_then(|version| u32::try_from(version).ok()) {
            Some(newer) if newer > FORMAT_VERSION => Err(BadBlob::Newer(newer)),
            Some(FORMAT_VERSION) if checked.is_some() => serde_json::from_value(value).map_err(|_| BadBlob::Other),
            _ => Err(BadBlob::Other),
        }
    }

    pub(crate) fn to_json(&self) -> Bytes {
        let json = serde_json::to_string_pretty(self).expect("plain data");
        let text = json.strip_suffix("\n}").expect("an object, pretty");
        let crc = crc32c(text.as_bytes());
        format!("{text}{}{crc:08x}{}", CRC_FIELD.0, CRC_FIELD.1).into()
    }
}

/// Whether the text is what its checksum says; `None` without one.
fn checked(text: &str) -> Option<bool> {
    let (json, crc) = text.strip_suffix(CRC_FIELD.1)?.rsplit_once(CRC_FIELD.0)?;
    Some(crc == format!("{:08x}", crc32c(json.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let (begin, end, log, fence, line, run, parts, bytes) = (5, 6, 7, 2, Line(3), 4, 1, 93);
        Head { format_version: FORMAT_VERSION, begin, end, log, fence, line, run, parts, bytes }
    }

    #[test]
    fn a_head_is_read_back() {
        let text = head().to_json();
        assert_eq!(Head::parse(&text), Ok(head()));
        let value: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
        assert_eq!(value["end"], 6);
    }

    /// Among them digits that are another digit then: JSON as good as before.
    #[test]
    fn damage_is_found_wherever_it_is() {
        let text = head().to_json();
        for (at, bit) in (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bad = text.to_vec();
            bad[at] ^= 1 << bit;
            let found = Head::parse(&bad);
            assert!(matches!(found, Err(BadBlob::Checksum | BadBlob::Other)), "byte {at} bit {bit}: {found:?}");
        }
        assert!((0..text.len()).all(|len| Head::parse(&text[..len]).is_err()), "cut");
    }

    #[test]
    fn a_newer_version_is_named() {
        let newer = Head { format_version: 9, ..head() };
        assert_eq!(Head::parse(&newer.to_json()), Err(BadBlob::Newer(9)));
        assert_eq!(Head::parse(b"{\"format_version\": 9}"), Err(BadBlob::Newer(9)));
        assert_eq!(Head::parse(b"{\"format_version\": 3}"), Err(BadBlob::Other));
    }
}
