//! Sizes, times, paths and addresses as people write them.

use std::{net::SocketAddr, path::Path, time::Duration};

/// A size in bytes: digits with an optional K, M, G or T (1024 each), `4G`, `512M`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']) {
        Some(digits) => {
            let unit = text.as_bytes()[text.len() - 1].to_ascii_uppercase();
            (digits, 1u64 << (10 * (1 + "KMGT".bytes().position(|u| u == unit).unwrap_or(0))))
        }
        None => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size: write 512M or 10G"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is too large"))
}

/// What `--memory` takes.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < sluice_vfs::MEMORY_BYTES_MIN {
        return Err(format!(
            "at least {} are needed: the largest read of a few programs",
            show_size(sluice_vfs::MEMORY_BYTES_MIN)
        ));
    }
    Ok(bytes)
}

/// A time: digits with ms, s, m or h. Nothing needs no unit.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time: write 500ms, 10s, 5m or 1h");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..split].parse().map_err(|_| wrong())?;
    let ms = match &text[split..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)
}

/// A size for people: `1.5 GiB`.
pub fn show_size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A time for people: `0.3 s`, `12 s`, `2 m`.
pub fn show_time(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} m", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// The sum of numbers that peers told; those may be anything.
pub fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// A path as a shell takes it.
pub fn quoted(path: impl AsRef<Path>) -> String {
    let text = path.as_ref().to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Where to listen.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, as in 127.0.0.1:7700 or [::1]:7700".into())
}

/// `1 journal`, `2 journals`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        assert!(parse_size("").is_err() && parse_size("G").is_err() && parse_size("4X").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

    #[test]
    fn sums() {
        assert_eq!((sum([1, 2].into_iter()), sum([u64::MAX, 1].into_iter())), (3, u64::MAX));
    }

    #[test]
    fn paths() {
        assert_eq!(quoted("/srv/vol-1.0"), "/srv/vol-1.0");
        assert_eq!(quoted("/srv/my files"), "'/srv/my files'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        let shown = |ms| show_time(Duration::from_millis(ms));
        assert_eq!([shown(250), shown(14_900), shown(150_000), shown(7_300_000)], ["0.2 s", "14 s", "2 m", "2 h"]);
        assert_eq!(parse_time("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!((parse_time("0"), parse_time("0s")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert!(parse_time("5").is_err() && parse_time("s").is_err());
    }
}
