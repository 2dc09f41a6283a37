//! Reads of what is hot, on the thread that took the request, which has a [`Direct`] of its own: no lock, no allocation, no hand-over.
//!
//! What it remembers of files and slots it remembers for itself, and believes only after a look at a number that whoever changes
//! something changes first (`FileState::version`, the holds of a slot's entry). Whatever is not plain - an inline body, an access time
//! that is due, bytes in memory or read ahead, a segment that is missing or fails its check - it leaves to [`Vfs::read`] and [`Vfs::read_later`],
//! so that each rule is written once.
//!
//! Bytes of a slot leave by one of two ways, as the [`Carrier`] has it: a copy in memory, or regions of the slab that the
//! kernel takes by reference. The first is checked on its way, unless [`Verify`] says otherwise; the other one cannot be.

mod carrier;
mod counters;
mod far;
mod recent;

pub use carrier::{Carrier, Region};
pub use counters::DirectCounts;
pub(crate) use counters::Registry;
pub use far::{Begun, Ended, Lanes, Replies, Target, Wanted};

use crate::{Failure, HandleId, Read, Vfs, away::on_thread};
use bytes::Bytes;
use counters::{DirectCounters, count};
use far::Far;
use recent::{Found, Recent, Run};
use sluice_base::Errno;
use sluice_store::{Pin, ReadError};
use std::{ops::Range, os::fd::BorrowedFd, sync::Arc};

/// Runs of a file that one answer may have by reference: two objects meet in many reads, more than a few only in a file of small
/// pieces, which is copied.
const REGIONS_MAX: usize = 8;

/// Reads that wait for the cache disk at once, on threads of the blocking pool: what keeps a fast disk busy, with 1 MiB each.
pub(crate) const COLD_READS_MAX: usize = 32;

/// Of what is read from the cache disk, what is checked on its way to who asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Every byte.
    #[default]
    Full,
    /// One read in [`Verify::SAMPLE`]. **Corrupt bytes can reach a reader.**
    Sampled,
    /// None. **Corrupt bytes can reach a reader.**
    Off,
}

impl Verify {
    /// Of so many reads one is checked, where they are sampled.
    pub const SAMPLE: u64 = 64;
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The carrier has sent the answer.
    Answered,
    /// Another host was asked: [`Direct::turn`] answers.
    Begun,
    /// All of it is in the cache, and the disk has to be waited for: [`Vfs::read_waiting`].
    Cold,
    /// Nothing was done: [`Vfs::read`].
    No,
}

/// One thread's way to what is hot.
pub struct Direct {
    vfs: Arc<Vfs>,
    verify: Verify,
    recent: Recent,
    /// Where there is no cache to be filled.
    far: Option<Far>,
    counters: Arc<DirectCounters>,
    /// Reads that might have gone unchecked.
    sampled: u64,
}

/// Why the bytes did not come.
enum Stopped {
    Cold,
    NotPlain,
}

impl From<ReadError> for Stopped {
    fn from(error: ReadError) -> Self {
        if matches!(error, ReadError::NotResident { .. }) { Stopped::Cold } else { Stopped::NotPlain }
    }
}

impl Direct {
    /// For one thread.
    pub fn new(vfs: Arc<Vfs>, verify: Verify) -> Self {
        let counters = vfs.direct.register();
        let lanes = || vfs.parts.group.as_ref()?.lanes();
        let far = if vfs.parts.cache.is_none() { lanes() } else { None };
        let far = far.map(|lanes| Far::new(lanes, vfs.ahead.share()));
        Self { vfs, verify, recent: Recent::default(), far, counters, sampled: 0 }
    }

    /// Answers a READ by way of `carrier`, or begins to, if it is plain. `id` is the kernel's number for it; `direct` says that it goes to
    /// its program without the page cache.
    pub fn read(
        &mut self,
        id: u64,
        (handle, offset, len): (HandleId, u64, usize),
        direct: bool,
        carrier: &mut impl Carrier,
    ) -> Taken {
        let is_unchecked = match self.verify {
            Verify::Full => false,
            Verify::Sampled => {
                self.sampled += 1;
                !self.sampled.is_multiple_of(Verify::SAMPLE)
            }
            Verify::Off => true,
        };
        let Self { vfs, recent, far, counters, .. } = self;
        let Some(Found { open, runs, range }) = recent.find(vfs, handle, offset, len, counters) else {
            return Taken::No;
        };
        let in_memory = |run: &Run| run.object().is_some_and(|object| vfs.dirty.get(object).is_some());
        if (vfs.dirty.has_memory() && runs.iter().any(in_memory)) || open.reads.is_ahead(&range) {
            return Taken::No;
        }
        let (len, read) = ((range.end - range.start) as usize, range.clone());
        let outcome = match far {
            Some(far) => {
                let began = vfs.parts.clock.monotonic();
                let begun = Begun { id, handle, offset, len, direct, is_checked: !is_unchecked, began };
                begin(far, begun, runs, &range, vfs, carrier).map(|()| Taken::Begun)
            }
            None => {
                let reading = Reading { vfs, counters, range };
                let answered =
                    if is_unchecked { reading.unchecked(runs, carrier) } else { reading.checked(runs, carrier) };
                answered.map(|()| {
                    count(&counters.reads, 1);
                    count(&counters.bytes, len as u64);
                    Taken::Answered
                })
            }
        };
        match outcome {
            Ok(taken) => {
                open.reads.note_hot(read);
                taken
            }
            Err(Stopped::Cold) => Taken::Cold,
            Err(Stopped::NotPlain) => Taken::No,
        }
    }

    /// Readable when [`Direct::turn`] has something to do.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.far.as_ref().map(Far::descriptor)
    }

    /// Goes on with what was begun. Does not wait.
    pub fn turn(&mut self, replies: &mut impl Replies) {
        let Some(far) = &mut self.far else { return };
        let happened = far.turn(replies);
        if let Some(began) = happened.began {
            self.vfs.ahead.note_lane(self.vfs.parts.clock.monotonic().saturating_sub(began));
        }
        count(&self.counters.far_reads, happened.reads);
        count(&self.counters.far_bytes, happened.bytes);
        count(&self.counters.given_up, happened.given_up);
        count(&self.counters.corrupt, happened.corrupt);
    }
}

/// Asks another host, if all bytes are of one stored object.
fn begin(
    far: &mut Far,
    begun: Begun,
    runs: &mut [Run],
    range: &Range<u64>,
    vfs: &Vfs,
    carrier: &mut impl Carrier,
) -> Result<(), Stopped> {
    let [run] = runs else { return Err(Stopped::NotPlain) };
    let object = run.stored(vfs).ok_or(Stopped::NotPlain)?;
    let (offset, _) = run.cut(range);
    let has_begun = far.begin(begun, object, offset, || carrier.pipe(begun.len));
    if has_begun { Ok(()) } else { Err(Stopped::NotPlain) }
}

impl Vfs {
    /// A read whose bytes are on the cache disk, for which it waits on a thread of the blocking pool, few of which do so at once.
    pub async fn read_waiting(
        self: Arc<Self>,
        handle: HandleId,
        offset: u64,
        len: usize,
        direct: bool,
    ) -> Result<Vec<Bytes>, Errno> {
        let turn = self.cold.acquire().await;
        let room = self.ahead.room_of_cold(len).await.ok_or(Errno::EIO)?;
        let vfs = self.clone();
        let read = on_thread(move || {
            let mut page = vfs.parts.store.pages().take(len);
            vfs.read(handle, offset, page.as_mut(), direct).map(|read| (read, page))
        });
        match read.await.ok_or(Errno::EIO)?.map_err(Failure::errno)? {
            (Read::Done(len), page) => {
                let mut pieces = vec![Bytes::from_owner(page).slice(..len)];
                room.keep_with(&mut pieces);
                Ok(pieces)
            }
            (Read::Later, page) => {
                // Nobody has room, or a turn at the disk, while he waits for the store.
                drop((turn, room, page));
                self.clone().read_later(handle, offset, len, direct).await
            }
        }
    }
}

/// One read, all of whose runs are known.
struct Reading<'a> {
    vfs: &'a Vfs,
    counters: &'a DirectCounters,
    range: Range<u64>,
}

impl Reading<'_> {
    fn checked(&self, runs: &mut [Run], carrier: &mut impl Carrier) -> Result<(), Stopped> {
        self.copy(runs, carrier, |pin, offset, part| pin.read_resident_at(offset, part))
    }

    /// By reference where the carrier has it so.
    fn unchecked(&self, runs: &mut [Run], carrier: &mut impl Carrier) -> Result<(), Stopped> {
        let len = (self.range.end - self.range.start) as usize;
        let may_refer = carrier.wants_regions(len) && runs.len() <= REGIONS_MAX && !runs.iter().any(Run::is_hole);
        if may_refer && self.refer(runs, carrier)? {
            return Ok(());
        }
        self.copy(runs, carrier, |pin, offset, part| match pin.file(offset, part.len()) {
            Some(_) => pin.read_unchecked(offset, part),
            None => pin.read_resident_at(offset, part),
        })
    }

    fn refer(&self, runs: &mut [Run], carrier: &mut impl Carrier) -> Result<bool, Stopped> {
        let mut pins: [Option<Pin>; REGIONS_MAX] = [const { None }; REGIONS_MAX];
        for (pin, run) in pins.iter_mut().zip(runs.iter_mut()) {
            *pin = Some(self.pin(run)?);
        }
        let mut regions = None;
        for (index, (pin, run)) in pins.iter().zip(runs.iter()).enumerate() {
            let (offset, part) = run.cut(&self.range);
            let Some(pin) = pin else { return Ok(false) };
            let Some((file, place)) = pin.file(offset, part.len()) else { return Ok(false) };
            if !pin.is_resident(offset, part.len()) {
                return Err(Stopped::Cold);
            }
            let region = Region { file, offset: place, len: part.len() };
            regions.get_or_insert([region; REGIONS_MAX])[index] = region;
        }
        // Their pins go when the kernel has the bytes.
        Ok(regions.is_some_and(|regions| carrier.send_regions(&regions[..runs.len()])))
    }

    fn copy(
        &self,
        runs: &mut [Run],
        carrier: &mut impl Carrier,
        read: impl Fn(&Pin, u32, &mut [u8]) -> Result<(), ReadError>,
    ) -> Result<(), Stopped> {
        let len = (self.range.end - self.range.start) as usize;
        let memory = carrier.memory(len);
        for run in runs {
            let (offset, part) = run.cut(&self.range);
            let part = &mut memory[part];
            if run.is_hole() {
                part.fill(0);
                continue;
            }
            let pin = self.pin(run)?;
            read(&pin, offset, part)?;
        }
        carrier.send_memory(len);
        Ok(())
    }

    fn pin(&self, run: &mut Run) -> Result<Pin, Stopped> {
        let cache = self.vfs.parts.cache.as_ref().ok_or(Stopped::NotPlain)?;
        run.pin(cache, self.counters).ok_or(Stopped::NotPlain)
    }
}
