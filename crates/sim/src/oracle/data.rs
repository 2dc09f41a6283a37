//! The bytes of files.

use super::{NEVER, Oracle, Tick};
use sluice_base::Ino;

/// What is written together: a unit has the bytes of one write or none.
pub const UNIT_BYTES: usize = 512;

/// One write, or a cut.
pub struct Write {
    ino: Ino,
    /// Units; a cut ends at the end of all.
    first: u64,
    end: u64,
    cut: bool,
    mount: usize,
    began: Tick,
    acked: Tick,
    /// A close or fsync of its mount has returned since.
    published: Tick,
    /// An fsync of its mount has returned since: power loss does not take it.
    synced: bool,
    /// Its mount's host lost power before it was synced.
    lost: bool,
}

#[derive(Default)]
pub struct File {
    writes: Vec<usize>,
    /// Who may write it; others read.
    pub writer: Option<usize>,
}

/// The bytes of unit `unit` as write number `write` has them. Few calls for each word, as debug builds spend much of their time here.
pub fn unit_of(write: usize, unit: u64) -> [u8; UNIT_BYTES] {
    let mut bytes = [0; UNIT_BYTES];
    let first = (write as u64 + 1) << 32 | unit << 8 | 0x80;
    for (word, place) in (first..).zip(bytes.chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

impl Oracle {
    /// A write of units begins; its number is in its bytes.
    pub fn write(&mut self, mount: usize, ino: Ino, first: u64, end: u64, cut: bool) -> usize {
        let began = self.tick();
        let number = self.writes.len();
        let write =
            Write { ino, first, end, cut, mount, began, acked: NEVER, published: NEVER, synced: false, lost: false };
        self.writes.push(write);
        self.files.entry(ino).or_default().writes.push(number);
        number
    }

    pub fn acked(&mut self, write: usize) {
        self.writes[write].acked = self.tick();
    }

    /// A close or fsync of `ino` on `mount`, which began at `since`, returned.
    pub fn published(&mut self, mount: usize, ino: Ino, since: Tick) {
        let now = self.tick();
        let of = self.files.entry(ino).or_default().writes.clone();
        for number in of {
            let write = &mut self.writes[number];
            if write.mount == mount && write.acked < since {
                write.published = write.published.min(now);
            }
        }
    }

    /// An fsync of `ino` on `mount`, which began at `since`, returned. Of other files it covers what was closed before.
    pub fn synced(&mut self, mount: usize, ino: Ino, since: Tick) {
        let of = self.writes.iter_mut().filter(|write| {
            write.mount == mount && write.acked < since && (write.ino == ino || write.published < since)
        });
        of.for_each(|write| write.synced = true);
    }

    /// The host of `mount` loses its power.
    pub fn power_lost(&mut self, mount: usize) {
        let of = self.writes.iter_mut().filter(|write| write.mount == mount && !write.synced);
        of.for_each(|write| write.lost = true);
    }

    /// Whether reads of the file may fail for good.
    pub fn may_be_damaged(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.writes.iter().any(|write| self.writes[*write].lost))
    }

    /// Judges `bytes`, read by `mount` from unit `first` on, by one who opened at `opened` and read from `since` on. What the file
    /// did not have is not in `bytes`, of `units`.
    #[allow(clippy::too_many_arguments, reason = "what one read is")]
    pub fn judge(
        &self,
        mount: usize,
        ino: Ino,
        first: u64,
        units: u64,
        bytes: &[u8],
        opened: Tick,
        since: Tick,
    ) -> Result<(), String> {
        if !bytes.len().is_multiple_of(UNIT_BYTES) {
            return Err(format!("a read of {ino} from unit {first} on gave {} bytes", bytes.len()));
        }
        for unit in first..first + units {
            let at = (unit - first) as usize * UNIT_BYTES;
            let found = bytes.get(at..at + UNIT_BYTES).map_or(Ok(None), |bytes| self.write_in(ino, unit, bytes))?;
            self.judge_unit(mount, ino, unit, found, opened, since)?;
        }
        Ok(())
    }

    /// The write that a unit's bytes are of; `None` for zeros.
    fn write_in(&self, ino: Ino, unit: u64, bytes: &[u8]) -> Result<Option<usize>, String> {
        if bytes == [0; UNIT_BYTES] {
            return Ok(None);
        }
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
        let number = ((word >> 32) as usize).wrapping_sub(1);
        let known = self.writes.get(number).filter(|write| {
            !write.cut && write.ino == ino && (write.first..write.end).contains(&unit) && unit_of(number, unit) == bytes
        });
        match known {
            Some(_) => Ok(Some(number)),
            None => Err(format!("wrong bytes in unit {unit} of {ino}: they begin with {word:016x} (write {number})")),
        }
    }

    fn judge_unit(
        &self,
        mount: usize,
        ino: Ino,
        unit: u64,
        found: Option<usize>,
        opened: Tick,
        since: Tick,
    ) -> Result<(), String> {
        let none = File::default();
        let of = self.files.get(&ino).unwrap_or(&none).writes.iter().map(|number| (*number, &self.writes[*number]));
        let covering: Vec<_> = of.filter(|(_, write)| (write.first..write.end).contains(&unit)).collect();
        let sure =
            |write: &Write| !write.lost && (write.published < opened || write.mount == mount && write.acked < since);
        let stale = |settled: &dyn Fn(&Write) -> Tick, itself: Option<usize>| {
            covering
                .iter()
                .find(|(number, write)| Some(*number) != itself && sure(write) && write.began > settled(write))
        };
        let settled = |of: &Write, by: &Write| if of.mount == by.mount { of.acked } else { of.published };
        let replaced = match found {
            Some(number) => stale(&|by: &Write| settled(&self.writes[number], by), Some(number)).into_iter().next(),
            // In the beginning all are zeros; and each cut makes them zeros again.
            None => {
                let never = stale(&|_: &Write| 0, None);
                let cuts = covering.iter().filter(|(_, write)| write.cut);
                let mut allowed = never.is_none();
                for (number, cut) in cuts {
                    allowed |= stale(&|by: &Write| settled(cut, by), Some(*number)).is_none();
                }
                if allowed { None } else { never }
            }
        };
        match replaced {
            None => Ok(()),
            Some((number, by)) => Err(format!(
                "unit {unit} of {ino} has write {found:?} on mount {mount}, opened at {opened}, read at {since}, though write \
                 {number} of mount {} began at {}, was acked at {} and published at {}{}",
                by.mount,
                by.began,
                by.acked,
                by.published,
                found.map_or(String::new(), |found| {
                    let of = &self.writes[found];
                    format!(
                        "; it is of mount {}, from {}, acked {}, published {}",
                        of.mount, of.began, of.acked, of.published
                    )
                })
            )),
        }
    }
}
