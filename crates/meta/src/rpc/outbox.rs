//! Pushes to one session: numbered, in order, acked cumulatively, kept until then; no I/O.
//!
//! What was not sent yet may stand for more than one change: an invalidation that is waiting is not queued twice. One that was
//! sent is never joined again, because the session may have taken it before the second change. When too many wait, they are
//! all replaced by one that says "everything".

use super::message::{Invalidation, Push};
use sluice_run::collections::HashMap;
use std::{collections::VecDeque, time::Duration};

/// Pushes that may wait for a session. A session that is so far behind is quicker told to drop everything.
pub const PUSHES_MAX: usize = 4096;
/// Invalidations in one push.
const PUSH_ITEMS_MAX: usize = 256;

#[derive(Debug)]
struct Queued {
    number: u64,
    item: Invalidation,
    since: Duration,
}

/// Pushes on their way to one session.
#[derive(Debug)]
pub struct Outbox {
    /// Not acked; numbers ascend.
    queue: VecDeque<Queued>,
    /// The last number given.
    last: u64,
    /// Up to here, pushes were sent, on whatever connection.
    ever_sent: u64,
    /// Up to here, they were sent on this connection or acked.
    sent: u64,
    /// The last number that says so, of all that has no ack.
    unacked: HashMap<Invalidation, u64>,
    pushes_max: usize,
}

impl Outbox {
    /// An empty one, for at most so many pushes.
    pub fn new(pushes_max: usize) -> Self {
        let (queue, unacked) = (VecDeque::new(), HashMap::default());
        Self { queue, last: 0, ever_sent: 0, sent: 0, unacked, pushes_max }
    }

    /// The last push that was ever sent: what goes behind it is news to every answer that was noted before.
    pub fn stamp(&self) -> u64 {
        self.ever_sent
    }

    /// Pushes without an ack.
    pub fn unacked(&self) -> usize {
        self.queue.len()
    }

    /// Since when the oldest push has been without an ack.
    pub fn oldest(&self) -> Option<Duration> {
        self.queue.front().map(|queued| queued.since)
    }

    /// Queues `item` unless what is waiting says it already; returns the number whose ack says that it was taken. The flag tells
    /// that the bound was met and that the session is to drop everything.
    pub fn push(&mut self, item: Invalidation, now: Duration) -> (u64, bool) {
        let covering = related(&item).into_iter().filter(|other| other.covers(&item));
        let mut numbers = covering.filter_map(|other| self.unacked.get(&other));
        if let Some(number) = numbers.find(|number| **number > self.ever_sent) {
            return (*number, false);
        }
        if self.queue.len() >= self.pushes_max {
            return (self.push_everything(now), true);
        }
        (self.append(item, now), false)
    }

    /// The push after whose ack the session no longer believes what `item` is about, when one is on its way.
    pub fn pending(&self, item: &Invalidation) -> Option<u64> {
        related(item).iter().filter_map(|other| self.unacked.get(other)).max().copied()
    }

    fn append(&mut self, item: Invalidation, since: Duration) -> u64 {
        self.last += 1;
        self.unacked.insert(item.clone(), self.last);
        self.queue.push_back(Queued { number: self.last, item, since });
        self.last
    }

    /// Replaces all that waits by one that says everything, and whose number is above all of theirs.
    pub fn push_everything(&mut self, now: Duration) -> u64 {
        let kept = self.queue.partition_point(|queued| queued.number <= self.ever_sent);
        let since = self.queue.get(kept).map_or(now, |queued| queued.since);
        self.queue.truncate(kept);
        self.unacked.retain(|_, number| *number <= self.ever_sent);
        self.append(Invalidation::Everything, since)
    }

    /// The next push to send, if any. Half of the bound may be under way at once.
    pub fn next_push(&mut self) -> Option<Push> {
        let from = self.queue.partition_point(|queued| queued.number <= self.sent);
        let room = (self.pushes_max / 2).max(1).saturating_sub(from).min(PUSH_ITEMS_MAX);
        let items: Vec<_> = self.queue.iter().skip(from).take(room).map(|queued| queued.item.clone()).collect();
        let number = self.queue.get((from + items.len()).checked_sub(1)?)?.number;
        if items.is_empty() {
            return None;
        }
        self.sent = number;
        self.ever_sent = self.ever_sent.max(number);
        Some(Push { number, items })
    }

    /// Everything up to `number` was taken; what was never sent cannot have been. Returns up to where.
    pub fn ack(&mut self, number: u64) -> u64 {
        let number = number.min(self.ever_sent);
        let taken = self.queue.partition_point(|queued| queued.number <= number);
        for Queued { number, item, .. } in self.queue.drain(..taken) {
            if self.unacked.get(&item) == Some(&number) {
                self.unacked.remove(&item);
            }
        }
        self.sent = self.sent.max(number);
        number
    }

    /// The connection is gone: what has no ack is sent again.
    pub fn disconnected(&mut self) {
        self.sent = self.queue.front().map_or(self.last, |queued| queued.number - 1);
    }

    /// The session drops everything by itself: nothing of what is queued is news. Returns the number that pushes go on behind.
    pub fn overtake(&mut self) -> u64 {
        self.queue.clear();
        self.unacked.clear();
        (self.sent, self.ever_sent) = (self.last, self.last);
        self.last
    }
}

/// Invalidations of something that `item` is about too.
fn related(item: &Invalidation) -> Vec<Invalidation> {
    use Invalidation::{Attr, Data, Entry, Everything, Extents, Inode, Unlinked};
    match item {
        Attr(ino) | Data(ino) | Inode(ino) | Unlinked(ino) => {
            vec![Attr(*ino), Data(*ino), Inode(*ino), Unlinked(*ino), Everything]
        }
        Extents(ino) => vec![item.clone(), Data(*ino), Inode(*ino), Everything],
        Entry(dir, _) => vec![item.clone(), Inode(*dir), Everything],
        Everything => vec![Everything],
    }
}

#[cfg(test)]
mod tests;
