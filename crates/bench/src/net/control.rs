//! What a client asks of a host: little-endian numbers in requests of the project's own protocol.

use sluice_net::port::PortStats;

/// Opens a data port for the case that the body names; the answer is its number.
pub(super) const OPEN: u16 = 900;
/// What the process has used so far: [`Usage`].
pub(super) const USAGE: u16 = 901;
/// Opens a port that sends so many bytes in steps of so many by sendfile; the answer is its number.
pub(super) const RAW: u16 = 902;
/// Processor time of the last raw sender in microseconds.
pub(super) const RAW_USAGE: u16 = 903;
/// Objects of a host, all of them of this size. Their ids are their numbers.
pub(super) const OBJECT_BYTES: usize = sluice_base::limits::OBJECT_BYTES;

/// What a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu_us: u64,
    /// Answers of which it computed the CRC anew.
    pub(super) summed: u64,
    pub(super) lanes: PortStats,
}

impl Usage {
    pub(super) fn now(lanes: PortStats, summed: u64) -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self { cpu_us: micros(time), summed, lanes }
    }

    /// System calls of lanes and waits.
    pub(super) fn calls(&self) -> u64 {
        let PortStats { reads, writes, sendfiles, splices, low_waters, wakeups, .. } = self.lanes;
        reads + writes + sendfiles + splices + low_waters + wakeups
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let (cpu_us, summed) = (self.cpu_us + other.cpu_us, self.summed + other.summed);
        Self { cpu_us, summed, lanes: self.lanes.plus(&other.lanes) }
    }

    pub(super) fn since(self, before: Self) -> Self {
        let (cpu_us, summed) = (self.cpu_us - before.cpu_us, self.summed.saturating_sub(before.summed));
        Self { cpu_us, summed, lanes: self.lanes.since(&before.lanes) }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let numbers = [self.cpu_us, self.summed].into_iter().chain(self.lanes.named().map(|(_, count)| count));
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let (cpu_us, summed) = (numbers.next()?, numbers.next()?);
        let lanes = PortStats::from_numbers(&mut numbers)?;
        (rest.is_empty() && numbers.next().is_none()).then_some(Self { cpu_us, summed, lanes })
    }
}

pub(super) fn micros(time: rustix::time::Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
