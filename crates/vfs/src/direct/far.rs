//! Reads of stored objects that other hosts have, begun and finished on one thread.
//!
//! They are for mounts without a cache: with one, a miss is to fill it, which is the slow path's. Whatever goes wrong - nobody is
//! connected, the owner takes long, the bytes fail their check - the request is given to [`Vfs::read_later`](crate::Vfs::read_later), which
//! asks the others, hedges and reports, as it always does.

use crate::{HandleId, ahead::Share};
use sluice_base::Pipe;
use sluice_object::StoredObject;
use std::{collections::VecDeque, os::fd::BorrowedFd, time::Duration};

/// Bytes that one thread has under way at most, if the mount's memory has room for them: what keeps a fast network busy. The kernel gives
/// others to other threads.
const UNDER_WAY_BYTES_MAX: usize = 8 << 20;
/// Requests under way.
const UNDER_WAY_MAX: usize = 256;
/// Bytes of idle memory that are kept for answers, if the mount's memory is large enough for its threads ([`Share::idle_bytes_max`]).
const IDLE_BYTES_MAX: usize = 4 << 20;
/// Smaller answers have memory of this size.
const MEMORY_BYTES_MIN: usize = 4096;
/// As many pieces of it at most.
const IDLE_MAX: usize = 64;

/// One thread's lanes to the hosts that have objects.
pub trait Lanes: Send {
    /// Readable when [`Lanes::turn`] has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Asks whoever should have it for a part of an object; gives the target back when that cannot be done at once. What is asked is
    /// sent at the next turn.
    fn ask(&mut self, wanted: Wanted, into: Target) -> Result<(), Target>;

    /// Sends what was asked, and hands out what has ended. Does not wait.
    fn turn(&mut self, ended: &mut dyn FnMut(Ended));
}

/// A part of an object in its plain form.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The object.
    pub object: StoredObject,
    /// First byte.
    pub offset: u32,
    /// How many.
    pub len: usize,
    /// Whether its bytes are compared with their CRC on the way.
    pub is_checked: bool,
    /// Comes back with the answer.
    pub token: u64,
}

/// Where an answer goes.
#[derive(Debug)]
pub enum Target {
    /// Memory of exactly its length.
    Memory(Vec<u8>),
    /// A pipe, behind what is in it.
    Pipe(Pipe),
}

/// The end of a request.
#[derive(Debug)]
pub struct Ended {
    /// As it was given.
    pub token: u64,
    /// As it was given, or memory in place of a pipe that was too small.
    pub target: Target,
    /// Whether the bytes are what their CRC-32C says, true where nobody looked; `None` if they did not come.
    pub is_sound: Option<bool>,
}

/// How answers to what was begun leave.
pub trait Replies {
    /// Answers `id` with the bytes.
    fn send(&mut self, id: u64, bytes: &[u8]);
    /// Answers with what is in a pipe of [`super::Carrier::pipe`]; false when the kernel did not take it.
    fn send_pipe(&mut self, pipe: Pipe) -> bool;
    /// Has [`Vfs::read_later`](crate::Vfs::read_later) answer `id`.
    fn read_later(&mut self, id: u64, read: Begun);
}

/// A read that was begun.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The kernel's number for it.
    pub id: u64,
    /// The open file.
    pub handle: HandleId,
    /// First byte.
    pub offset: u64,
    /// Bytes that the file has of what was asked for.
    pub len: usize,
    /// It goes to its program without the page cache.
    pub direct: bool,
    /// Its bytes are checked.
    pub is_checked: bool,
    /// When it was begun, on the mount's clock.
    pub began: Duration,
}

/// What one thread has under way.
pub(super) struct Far {
    lanes: Box<dyn Lanes>,
    /// A token is the place here, and above that how often the place was used: one is not taken for another.
    under_way: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    uses: u32,
    bytes: usize,
    /// Memory of what is under way; what is in pipes is as large.
    held: usize,
    idle: Idle,
    /// Room for `held` and for what is idle.
    share: Share,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// The use of its place.
    number: u32,
    begun: Begun,
    held: usize,
}

/// What happened in a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Happened {
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// Given to the slow path.
    pub(super) given_up: u64,
    /// Of those, answers that failed their check.
    pub(super) corrupt: u64,
    /// When the last of them was begun.
    pub(super) began: Option<Duration>,
}

impl Far {
    pub(super) fn new(lanes: Box<dyn Lanes>, share: Share) -> Self {
        let under_way = (0..UNDER_WAY_MAX).map(|_| None).collect();
        let free = (0..UNDER_WAY_MAX as u32).rev().collect();
        let bytes_max = IDLE_BYTES_MAX.min(share.idle_bytes_max());
        let idle = Idle { all: VecDeque::with_capacity(IDLE_MAX + 1), bytes: 0, bytes_max };
        Self { lanes, under_way, free, uses: 0, bytes: 0, held: 0, idle, share }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.lanes.descriptor()
    }

    /// Asks for a read's bytes, which are all of one object. False when that is not to be done at once.
    pub(super) fn begin(
        &mut self,
        begun: Begun,
        object: StoredObject,
        offset: u32,
        pipe: impl FnOnce() -> Option<Pipe>,
    ) -> bool {
        if self.bytes + begun.len > UNDER_WAY_BYTES_MAX && self.bytes > 0 {
            return false;
        }
        if self.free.is_empty() || !self.has_room(begun.len, begun.is_checked) {
            return false;
        }
        let Some(place) = self.free.pop() else { return false };
        let piped = if begun.is_checked { None } else { pipe() };
        let target = piped.map_or_else(|| Target::Memory(self.idle.take(begun.len)), Target::Pipe);
        let held = match &target {
            Target::Memory(memory) => memory.capacity(),
            Target::Pipe(_) => begun.len.max(MEMORY_BYTES_MIN),
        };
        self.uses = self.uses.wrapping_add(1);
        let token = u64::from(self.uses) << 32 | u64::from(place);
        match self.lanes.ask(Wanted { object, offset, len: begun.len, is_checked: begun.is_checked, token }, target) {
            Ok(()) => {
                self.under_way[place as usize] = Some(UnderWay { number: self.uses, begun, held });
                self.bytes += begun.len;
                self.held += held;
                true
            }
            Err(target) => {
                self.free.push(place);
                self.keep(target);
                false
            }
        }
    }

    /// Whether there is room for one more answer, if need be in the place of idle memory.
    fn has_room(&mut self, len: usize, is_in_memory: bool) -> bool {
        let more = |idle: &Idle| if is_in_memory && idle.has(len) { 0 } else { len.max(MEMORY_BYTES_MIN) };
        if self.share.grow(self.held + self.idle.bytes + more(&self.idle)) {
            return true;
        }
        self.idle.keep_only(len);
        self.share.grow(self.held + self.idle.bytes + more(&self.idle))
    }

    /// Goes on with what is under way.
    pub(super) fn turn(&mut self, replies: &mut impl Replies) -> Happened {
        let Self { lanes, under_way, free, bytes, held, idle, share, .. } = self;
        let mut happened = Happened::default();
        // Threads begin one after the other.
        idle.bytes_max = IDLE_BYTES_MAX.min(share.idle_bytes_max());
        lanes.turn(&mut |ended| {
            let (place, uses) = (ended.token as u32, (ended.token >> 32) as u32);
            let known = under_way.get_mut(place as usize).and_then(|place| place.take_if(|it| it.number == uses));
            let Some(ending) = known else { return };
            free.push(place);
            *bytes -= ending.begun.len;
            *held -= ending.held;
            if let Some(memory) = settle(ending.begun, ended, replies, &mut happened) {
                idle.keep(memory);
            }
        });
        share.shrink(*held + idle.bytes);
        happened
    }

    fn keep(&mut self, target: Target) {
        if let Target::Memory(memory) = target {
            self.idle.keep(memory);
        }
    }
}

/// Memory of former answers, the last one used last.
struct Idle {
    all: VecDeque<Vec<u8>>,
    bytes: usize,
    /// As of the last turn.
    bytes_max: usize,
}

impl Idle {
    /// Memory for an answer, of a former one where there is some of about its size.
    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut memory = match self.all.iter().rposition(|memory| fits(memory, len)).and_then(|at| self.all.remove(at))
        {
            Some(memory) => {
                self.bytes -= memory.capacity();
                memory
            }
            // Zeros of the kernel's, where it is large: it need not be written twice.
            None => vec![0; len.max(MEMORY_BYTES_MIN)],
        };
        memory.resize(len, 0);
        memory
    }

    fn has(&self, len: usize) -> bool {
        self.all.iter().any(|memory| fits(memory, len))
    }

    /// What was kept for the longest time goes: answers may be of another size by now.
    fn keep(&mut self, memory: Vec<u8>) {
        self.bytes += memory.capacity();
        self.all.push_back(memory);
        while self.bytes > self.bytes_max || self.all.len() > IDLE_MAX {
            self.bytes -= self.all.pop_front().map_or(0, |memory| memory.capacity());
        }
    }

    /// All goes but what the next answer, of `len` bytes, will have.
    fn keep_only(&mut self, len: usize) {
        let kept = self.all.iter().rposition(|memory| fits(memory, len)).and_then(|at| self.all.remove(at));
        self.all.clear();
        self.bytes = kept.as_ref().map_or(0, Vec::capacity);
        self.all.extend(kept);
    }
}

/// Whether memory is large enough for `len` bytes, and not much too large.
fn fits(memory: &Vec<u8>, len: usize) -> bool {
    memory.capacity() >= len && memory.capacity() <= 4 * len.max(MEMORY_BYTES_MIN)
}

/// Answers a read; gives memory back.
fn settle(begun: Begun, ended: Ended, replies: &mut impl Replies, happened: &mut Happened) -> Option<Vec<u8>> {
    let (sent, memory) = match (ended.is_sound, ended.target) {
        (Some(true), Target::Memory(bytes)) if bytes.len() == begun.len => {
            replies.send(begun.id, &bytes);
            (true, Some(bytes))
        }
        (Some(_), Target::Memory(bytes)) => {
            happened.corrupt += 1;
            (false, Some(bytes))
        }
        (Some(_), Target::Pipe(pipe)) => (replies.send_pipe(pipe), None),
        (None, Target::Memory(bytes)) => (false, Some(bytes)),
        (None, Target::Pipe(_)) => (false, None),
    };
    if sent {
        happened.reads += 1;
        happened.began = Some(begun.began);
        happened.bytes += begun.len as u64;
    } else {
        happened.given_up += 1;
        replies.read_later(begun.id, begun);
    }
    memory
}

#[cfg(test)]
mod tests;
