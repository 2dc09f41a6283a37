//! What lies where below `meta/` of the store.

use crate::Line;

/// Blobs of the log.
pub(crate) const LOG: &str = "meta/log";
/// Checkpoints, each in a directory of its own.
pub(crate) const CHECKPOINTS: &str = "meta/checkpoint";

/// Who has the volume.
pub(crate) const IN_USE: &str = "meta/in-use";

/// The note of the process of `line` that begins with the fence number `fence`: of several that try to, one does.
pub(crate) fn in_use(fence: u64, line: Line) -> String {
    format!("{IN_USE}/{fence:016x}-{:016x}", line.0)
}

/// Number so many of the log's blobs. No two processes make the same one: it is created, never replaced.
pub(crate) fn log(number: u64) -> String {
    format!("{LOG}/{number:016x}")
}

/// The number in a blob's key.
pub(crate) fn log_number(key: &str) -> Option<u64> {
    let number = u64::from_str_radix(key.strip_prefix(LOG)?.strip_prefix('/')?, 16).ok()?;
    (log(number) == key).then_some(number)
}

/// The directory of the checkpoint that `run` began before blob number `log`. By that they are in order: whoever takes over has greater ones.
pub(crate) fn checkpoint(log: u64, run: u64) -> String {
    format!("{CHECKPOINTS}/{log:016x}-{run:016x}")
}

/// A part of it.
pub(crate) fn part(log: u64, run: u64, number: u32) -> String {
    format!("{}/{number:08x}", checkpoint(log, run))
}

/// What makes it one that counts, see [`crate::head::Head`].
pub(crate) fn head(log: u64, run: u64) -> String {
    format!("{}/head", checkpoint(log, run))
}

/// The head of a checkpoint by the number `log`, whose run is known only where one of `keys` is a part of it.
pub(crate) fn any_head(log: u64, keys: &[String]) -> String {
    let begin = format!("{CHECKPOINTS}/{log:016x}-");
    let directory = keys.iter().find(|key| key.starts_with(&begin)).and_then(|key| key.rsplit_once('/'));
    format!("{}/head", directory.map_or(&*format!("{begin}*"), |(directory, _)| directory))
}

/// How far the numbers lead on from `from` without a gap: the number behind the last one.
pub(crate) fn chain(numbers: &[u64], from: u64) -> u64 {
    let mut sorted: Vec<_> = numbers.iter().copied().filter(|number| *number >= from).collect();
    sorted.sort_unstable();
    sorted.into_iter().fold(from, |next, number| if number == next { next + 1 } else { next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        assert_eq!(log_number(&log(0xff_ffff_ffff)), Some(0xff_ffff_ffff));
        for bad in ["meta/log/1", "meta/log/", "meta/log", "meta/logs/0000000000000001", "meta/log/000000000000000G"] {
            assert_eq!(log_number(bad), None, "{bad}");
        }
        assert!(head(15, 3) < part(16, 1, 2) && head(16, 1) < head(17, 0), "they are in the order of numbers");
    }

    #[test]
    fn a_chain_ends_at_a_gap() {
        assert_eq!(chain(&[7, 3, 4, 6, 1], 3), 5);
        assert_eq!(chain(&[7, 3], 4), 4);
        assert_eq!(chain(&[], 0), 0);
    }
}
