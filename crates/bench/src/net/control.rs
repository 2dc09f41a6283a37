//! What a client asks of a host: little-endian numbers in requests of the project's own protocol.

use sluice_net::port::PortStats;

/// Opens a data port; the body is the place of the host among all (u8) and the name of the case, the answer the number of the port.
pub(super) const OPEN: u16 = 900;
/// What the process has used so far: [`Usage`].
pub(super) const USAGE: u16 = 901;
/// Opens a port that sends so many bytes in steps of so many by sendfile; the answer is its number.
pub(super) const RAW: u16 = 902;
/// Processor time of the last raw sender in microseconds.
pub(super) const RAW_USAGE: u16 = 903;
/// The list of members from now on; the answer is empty.
pub(super) const MEMBERS: u16 = 904;
/// Objects of a host, all of them of this size. Their ids are their numbers.
pub(super) const OBJECT_BYTES: usize = sluice_base::limits::OBJECT_BYTES;

/// What a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu_us: u64,
    pub(super) node: NodeCounts,
    pub(super) lanes: PortStats,
}

/// What only a node counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeCounts {
    /// Answers of which it computed the CRC anew.
    pub(super) summed: u64,
    /// Pieces that it had of another node.
    pub(super) moved: u64,
    /// Pieces that it had of what stands for the store.
    pub(super) fetched: u64,
    /// Bytes of answers that peers have not taken: as they are, not since the start.
    pub(super) held_bytes: u64,
}

impl Usage {
    /// What this process has used, but for its lanes.
    pub(super) fn now(lanes: PortStats, node: NodeCounts) -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self { cpu_us: micros(time), node, lanes }
    }

    /// System calls of lanes and waits.
    pub(super) fn calls(&self) -> u64 {
        let PortStats { reads, writes, sendfiles, splices, low_waters, wakeups, .. } = self.lanes;
        reads + writes + sendfiles + splices + low_waters + wakeups
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let node = NodeCounts {
            summed: self.node.summed + other.node.summed,
            moved: self.node.moved + other.node.moved,
            fetched: self.node.fetched + other.node.fetched,
            held_bytes: self.node.held_bytes + other.node.held_bytes,
        };
        Self { cpu_us: self.cpu_us + other.cpu_us, node, lanes: self.lanes.plus(&other.lanes) }
    }

    pub(super) fn since(self, before: Self) -> Self {
        let node = NodeCounts {
            summed: self.node.summed.saturating_sub(before.node.summed),
            moved: self.node.moved.saturating_sub(before.node.moved),
            fetched: self.node.fetched.saturating_sub(before.node.fetched),
            held_bytes: self.node.held_bytes,
        };
        Self { cpu_us: self.cpu_us - before.cpu_us, node, lanes: self.lanes.since(&before.lanes) }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let NodeCounts { summed, moved, fetched, held_bytes } = self.node;
        let numbers = [self.cpu_us, summed, moved, fetched, held_bytes];
        let numbers = numbers.into_iter().chain(self.lanes.named().map(|(_, count)| count));
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next();
        let cpu_us = next()?;
        let node = NodeCounts { summed: next()?, moved: next()?, fetched: next()?, held_bytes: next()? };
        let lanes = PortStats::from_numbers(&mut numbers)?;
        (rest.is_empty() && numbers.next().is_none()).then_some(Self { cpu_us, node, lanes })
    }
}

pub(super) fn micros(time: rustix::time::Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
