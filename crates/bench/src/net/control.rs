//! What a client asks of a host: little-endian numbers in requests of the project's own protocol.

use sluice_net::port::PortStats;

/// Opens a data port for the case that the body names; the answer is its number.
pub(super) const OPEN: u16 = 900;
/// Processor time of the process so far in microseconds, and its counts.
pub(super) const USAGE: u16 = 901;
/// Opens a port that sends so many bytes in steps of so many by sendfile; the answer is its number.
pub(super) const RAW: u16 = 902;
/// Processor time of the last raw sender in microseconds.
pub(super) const RAW_USAGE: u16 = 903;
/// Of a data port: bytes of an object.
pub(super) const READ: u16 = 910;

/// Objects of a host. Their ids are their numbers.
pub(super) const OBJECT_BYTES: usize = sluice_base::limits::OBJECT_BYTES;

/// The body of [`READ`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) object: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
}

impl Read {
    pub(super) fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (place, number) in bytes.chunks_exact_mut(4).zip([self.object, self.offset, self.len]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` unless it lies in an object.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 12] = bytes.try_into().ok()?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let read = Self { object: number(0), offset: number(4), len: number(8) };
        let end = read.offset.checked_add(read.len)?;
        (read.len > 0 && end as usize <= OBJECT_BYTES).then_some(read)
    }
}

/// What a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu_us: u64,
    pub(super) wakeups: u64,
    pub(super) calls: u64,
}

impl Usage {
    pub(super) fn now(stats: &PortStats) -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let calls = stats.reads + stats.writes + stats.sendfiles + stats.splices + stats.low_waters + stats.wakeups;
        Self { cpu_us: micros(time), wakeups: stats.wakeups, calls }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu_us: self.cpu_us - before.cpu_us,
            wakeups: self.wakeups.saturating_sub(before.wakeups),
            calls: self.calls.saturating_sub(before.calls),
        }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        [self.cpu_us, self.wakeups, self.calls].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(Self { cpu_us: number(0), wakeups: number(8), calls: number(16) })
    }
}

pub(super) fn micros(time: rustix::time::Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
