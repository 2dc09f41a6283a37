//! What lies where below `meta/` of the store.

use sluice_base::Seq;

/// Which checkpoint counts; see [`crate::blob::Head`].
pub(crate) const HEAD: &str = "meta/head";
/// Who ships: the run of a process that wrote it last.
pub(crate) const OWNER: &str = "meta/owner";
/// Blobs of the log.
pub(crate) const LOG: &str = "meta/log";
/// Parts of checkpoints.
pub(crate) const CHECKPOINTS: &str = "meta/checkpoint";

/// A blob of the log: its first and last record, and the run that shipped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogName {
    pub(crate) first: Seq,
    pub(crate) last: Seq,
    pub(crate) run: u64,
}

impl LogName {
    pub(crate) fn key(&self) -> String {
        format!("{LOG}/{:016x}-{:016x}-{:016x}", self.first.0, self.last.0, self.run)
    }

    pub(crate) fn parse(key: &str) -> Option<Self> {
        let name = key.strip_prefix(LOG)?.strip_prefix('/')?;
        let mut numbers = name.split('-').map(|number| u64::from_str_radix(number, 16).ok());
        let (first, last, run) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let found = Self { first: Seq(first), last: Seq(last), run };
        (found.key() == key && first <= last).then_some(found)
    }
}

/// Part number so many of the checkpoint that began at `seq`, made by `run`.
pub(crate) fn part(seq: Seq, run: u64, number: u32) -> String {
    format!("{}/{number:08x}", checkpoint(seq, run))
}

/// The directory of a checkpoint.
pub(crate) fn checkpoint(seq: Seq, run: u64) -> String {
    format!("{CHECKPOINTS}/{:016x}-{run:016x}", seq.0)
}

/// The blobs that lead from `from` on without a gap, and where they end. `runs` shipped one after the other, the last one now: where two go
/// on, the later run's is right, as it began from what was there; what the earlier one shipped after that is not followed.
pub(crate) fn chain(names: &[LogName], from: Seq, runs: &[u64]) -> (Vec<LogName>, Seq) {
    let age = |name: &LogName| runs.iter().position(|run| *run == name.run).map_or(0, |at| at + 1);
    let (mut chain, mut end, mut latest) = (Vec::new(), from, 0);
    loop {
        let goes_on = |name: &&LogName| name.first.0 <= end.0 + 1 && name.last > end && age(name) >= latest;
        let found = names.iter().filter(goes_on).max_by_key(|name| (age(name), name.last));
        let Some(next) = found else { return (chain, end) };
        chain.push(*next);
        (end, latest) = (next.last, age(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(first: u64, last: u64, run: u64) -> LogName {
        LogName { first: Seq(first), last: Seq(last), run }
    }

    #[test]
    fn names_are_read_back() {
        let given = name(7, 0xff_ffff_ffff, u64::MAX);
        assert_eq!(LogName::parse(&given.key()), Some(given));
        for bad in ["meta/log/1-2-3", "meta/log/", "meta/log", "meta/logs/1", &format!("{}0", given.key())] {
            assert_eq!(LogName::parse(bad), None, "{bad}");
        }
        assert_eq!(LogName::parse(&name(9, 8, 1).key()), None, "it ends before it begins");
    }

    #[test]
    fn a_chain_ends_at_a_gap_and_follows_the_latest_run() {
        let names = [name(1, 4, 1), name(5, 9, 1), name(11, 20, 1)];
        assert_eq!(chain(&names, Seq(3), &[]), (vec![names[0], names[1]], Seq(9)));
        assert_eq!(chain(&names, Seq(9), &[]), (vec![], Seq(9)));
        // The first run had not noticed that the second one went on from 4.
        let forked = [name(1, 4, 1), name(5, 9, 1), name(5, 6, 2), name(7, 8, 2)];
        assert_eq!(chain(&forked, Seq(0), &[1, 2]), (vec![forked[0], forked[2], forked[3]], Seq(8)));
    }
}
