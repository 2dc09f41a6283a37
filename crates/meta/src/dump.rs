//! A volume's metadata as text, one record a line: to be looked at, kept, and loaded into another directory or engine. docs/disk-format.md,
//! "Dump".
//!
//! Each line ends with a checksum that takes the one before along, so a line that is damaged, missing, doubled or moved is found where it is; the
//! last line says how many there are, so a cut is found too. One record is in memory at a time, on either side.

mod line;

#[cfg(test)]
mod tests;

use crate::store::{Batch, EngineError, MetaError, MetaStore, Tables};
use line::{Line, State};
use serde::{Deserialize, Serialize};
use sluice_base::{Seq, crc::crc32c};
use std::{
    collections::BTreeMap,
    io::{self, BufRead, Read, Write},
};

/// The newest layout.
pub const FORMAT: u32 = 1;
/// More changes than any volume has.
const SEQ_MAX: u64 = u64::MAX / 2;
/// A line has at most so many bytes: the longest is an extent record of a few thousand runs, or a session's result.
const LINE_BYTES_MAX: usize = 16 << 20;
/// What ends a line: `,"crc":"` and 8 hexadecimal digits and `"}`.
const TAIL_BYTES: usize = 18;
/// Entries that are put into tables at once.
const BATCH_ENTRIES: usize = 512;
/// The tables are written when they hold so much in memory.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// The first line: what is dumped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The layout.
    pub format: u32,
    /// The volume's id.
    pub volume: String,
    /// Where its objects are.
    pub store: String,
    /// When fsync returns in its mounts.
    pub durability: String,
    /// The last change that is in here.
    pub seq: u64,
    /// When it was made: seconds since 1970.
    pub wall_secs: i64,
    /// Bytes of a segment of an object, of an object's payload, and of a span of extents.
    pub segment_bytes: u64,
    /// See there.
    pub object_bytes: u64,
    /// See there.
    pub span_bytes: u64,
}

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The metadata is not sound.
    #[error("the record with the key {0} is damaged or not known to this sluice: `sluice fsck` says more")]
    Damaged(String),
    /// Names are kept twice.
    #[error("the names in directories and their order do not belong together: `sluice fsck --repair` mends that")]
    Names,
    /// It cannot be read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// It cannot be written.
    #[error("writing the dump: {0}")]
    Io(#[from] io::Error),
}

/// Why a dump was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is another file.
    #[error("line 1: this is no dump of sluice")]
    Other,
    /// It is of another version.
    #[error("line 1: the dump has format {0}, and this sluice knows {FORMAT}: use a newer one")]
    Newer(u64),
    /// A line is not what was written.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1 on.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// It cannot be read.
    #[error("reading the dump behind line {line}: {error}")]
    Io {
        /// The last line that was read.
        line: u64,
        /// Why.
        error: io::Error,
    },
    /// The tables do not take it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// How many records of each kind.
pub type Counts = BTreeMap<String, u64>;

/// What was dumped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dumped {
    /// Records of each kind.
    pub counts: Counts,
    /// Objects that files need and that were not in the store at that moment.
    pub unstored: u64,
}

fn chained(before: u32, text: &[u8]) -> u32 {
    let mut crc = sluice_base::crc::Crc32c::default();
    crc.update(&before.to_le_bytes());
    crc.update(text);
    crc.value()
}

/// Puts lines out.
struct Lines<W> {
    out: W,
    crc: u32,
}

impl<W: Write> Lines<W> {
    fn put(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        // Its last brace comes behind the checksum.
        text.pop();
        self.crc = chained(self.crc, &text);
        self.out.write_all(&text)?;
        writeln!(self.out, ",\"crc\":\"{:08x}\"}}", self.crc)
    }
}

/// Writes all metadata of `store`, of one moment, to `out`, whatever is changed meanwhile. `header.seq` becomes the last change before it;
/// `progress` hears of records.
pub fn dump(
    store: &MetaStore,
    mut header: Header,
    out: impl Write,
    mut progress: impl FnMut(u64),
) -> Result<Dumped, DumpError> {
    let (seq, entries) = store.stream(&[1], &[0xff]);
    header.seq = seq.0;
    let mut lines = Lines { out, crc: 0 };
    lines.put(&Line::Header(header))?;
    let (mut counts, mut records, mut unstored) = (Counts::new(), 0, 0);
    // Sums of the names in both tables, whatever their order.
    let (mut named, mut ordered) = (0_u64, 0_u64);
    for entry in entries {
        let (key, value) = entry.map_err(MetaError::from)?;
        let (key, value) = (&*key, &*value);
        if key[0] == b'd' {
            named = named.wrapping_add(name_sum(key, value));
            continue;
        }
        let damaged = || DumpError::Damaged(key.escape_ascii().to_string());
        let record = Line::of(key, value).ok_or_else(damaged)?;
        let entries = record.entries().ok_or_else(damaged)?;
        if entries[0].0 != key || entries[0].1 != value {
            return Err(damaged());
        }
        entries[1..].iter().for_each(|(key, value)| ordered = ordered.wrapping_add(name_sum(key, value)));
        if let Line::Object { state: State::Open | State::Sealed, live_bytes: 1.., .. } = record {
            unstored += 1;
        }
        *counts.entry(record.kind().into()).or_default() += 1;
        records += 1;
        progress(records);
        lines.put(&record)?;
    }
    if named != ordered {
        return Err(DumpError::Names);
    }
    lines.put(&Line::End { records, counts: counts.clone() })?;
    lines.out.flush()?;
    Ok(Dumped { counts, unstored })
}

fn name_sum(key: &[u8], value: &[u8]) -> u64 {
    u64::from(chained(crc32c(key), value)) << 32 | u64::from(crc32c(key))
}

/// A dump that is being read. The header was.
pub struct Dump<R> {
    input: R,
    crc: u32,
    line: u64,
    text: Vec<u8>,
    counts: Counts,
    header: Header,
}

impl<R: BufRead> Dump<R> {
    /// Reads the header.
    pub fn open(input: R) -> Result<Self, LoadError> {
        let header = Header {
            format: FORMAT,
            volume: String::new(),
            store: String::new(),
            durability: String::new(),
            seq: 0,
            wall_secs: 0,
            segment_bytes: 0,
            object_bytes: 0,
            span_bytes: 0,
        };
        let mut dump = Self { input, crc: 0, line: 0, text: Vec::new(), counts: Counts::new(), header };
        dump.line = 1;
        if !dump.read()? || !dump.text.starts_with(b"{\"record\":\"header\",\"format\":") {
            return Err(LoadError::Other);
        }
        let value: serde_json::Value = serde_json::from_slice(&dump.text).map_err(|_| LoadError::Other)?;
        match value["format"].as_u64() {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Err(LoadError::Newer(format)),
            None => return Err(LoadError::Other),
        }
        match dump.parse()? {
            Line::Header(header) if header.seq <= SEQ_MAX => dump.header = header,
            _ => return Err(LoadError::Other),
        }
        Ok(dump)
    }

    /// What is dumped.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Puts all of it into `tables`, which are empty, as changes behind `seq`; returns the last one. `progress` hears of records. Unless it
    /// ends well the tables are of no use.
    pub fn load(
        mut self,
        tables: &dyn Tables,
        mut seq: Seq,
        mut progress: impl FnMut(u64),
    ) -> Result<(Seq, Counts), LoadError> {
        let (mut batch, mut records) = (Batch::default(), 0);
        let mut apply = |batch: &mut Batch| -> Result<(), LoadError> {
            seq.0 += 1;
            tables.apply(seq, &std::mem::take(batch));
            if tables.memtable_bytes() > MEMTABLE_BYTES {
                tables.rotate();
                tables.flush(tables.applied())?;
            }
            Ok(())
        };
        while let Some(entries) = self.next()? {
            entries.into_iter().for_each(|(key, value)| batch.put(key, value));
            records += 1;
            progress(records);
            if batch.entries().len() >= BATCH_ENTRIES {
                apply(&mut batch)?;
            }
        }
        apply(&mut batch)?;
        tables.rotate();
        tables.flush(tables.applied())?;
        Ok((seq, self.counts))
    }

    /// The entries of the next record; `None` behind the last one, once the end was looked at.
    fn next(&mut self) -> Result<Option<line::Entries>, LoadError> {
        self.line += 1;
        if !self.read()? {
            return Err(self.bad("the dump ends here, before its last line: it was cut"));
        }
        match self.parse()? {
            Line::Header(_) => Err(self.bad("another header")),
            Line::End { records, counts } => {
                if counts != self.counts || records != counts.values().sum::<u64>() {
                    return Err(self.bad("it counts other records than there are"));
                }
                self.line += 1;
                if self.read()? {
                    return Err(self.bad("there is more behind the last line"));
                }
                Ok(None)
            }
            record => {
                let entries = record.entries().ok_or_else(|| self.bad("a record with a field that cannot be"))?;
                *self.counts.entry(record.kind().into()).or_default() += 1;
                Ok(Some(entries))
            }
        }
    }

    fn bad(&self, what: impl Into<String>) -> LoadError {
        LoadError::Line { line: self.line, what: what.into() }
    }

    /// The next line, without its end, into `text`; false at the end.
    fn read(&mut self) -> Result<bool, LoadError> {
        self.text.clear();
        let (line, most) = (self.line, LINE_BYTES_MAX as u64 + 1);
        let read = (&mut self.input).take(most).read_until(b'\n', &mut self.text);
        match read.map_err(|error| LoadError::Io { line: line - 1, error })? {
            0 => Ok(false),
            _ if self.text.pop() == Some(b'\n') => Ok(true),
            bytes if bytes as u64 == most => Err(self.bad("it is longer than any line of a dump")),
            _ => Err(self.bad("it is cut")),
        }
    }

    /// What the line in `text` says, if it is the one that was written here.
    fn parse(&mut self) -> Result<Line, LoadError> {
        let at = self.text.len().saturating_sub(TAIL_BYTES);
        let crc = chained(self.crc, &self.text[..at]);
        if self.text[at..] != *format!(",\"crc\":\"{crc:08x}\"}}").as_bytes() {
            return Err(self.bad("it does not match its checksum: it is damaged, or a line before it is missing"));
        }
        self.crc = crc;
        self.text.truncate(at);
        self.text.push(b'}');
        serde_json::from_slice(&self.text).map_err(|error| self.bad(error.to_string()))
    }
}
