//! Which objects have no users, and which have too few.

use super::{Gc, GcError};
use sluice_base::{ObjectId, SessionId};
use sluice_meta::records::{ObjectRecord, ObjectState};
use sluice_object::StoredObject;
use sluice_run::collections::HashMap;
use std::{ops::ControlFlow, time::Duration};

/// Objects of each kind that one pass looks after.
const OBJECTS_MAX: usize = 16 << 10;
/// Tombstones whose age is known, 40 bytes each; the others wait for the deletion of these.
const TOMBSTONES_MAX: usize = 256 << 10;
/// Looking for the users of objects reads all extents of the volume: worth it when that part of what is stored comes free.
const SHARE_WORTH: u64 = 64;

/// What a look at all records gave.
#[derive(Default)]
pub(super) struct Found {
    pub stored_bytes: u64,
    pub dead_bytes: u64,
    pub tombstones: u64,
    /// Without users, to become tombstones.
    pub dead: Vec<ObjectId>,
    /// Tombstones, to be deleted.
    pub expired: Vec<ObjectId>,
    /// Under half alive.
    pub worn: Vec<ObjectId>,
    worn_bytes: u64,
    now: Duration,
    /// Tombstones of earlier passes, and of this one.
    seen: HashMap<ObjectId, Duration>,
    still: HashMap<ObjectId, Duration>,
    /// Never stored, and without users; with their writers.
    left: Vec<(ObjectId, SessionId)>,
}

impl Found {
    pub fn is_worth_a_repack(&self) -> bool {
        self.worn_bytes > self.stored_bytes / SHARE_WORTH
    }

    fn note(&mut self, gc: &Gc, id: ObjectId, record: &ObjectRecord) {
        let add = |to: &mut Vec<ObjectId>| {
            if to.len() < OBJECTS_MAX {
                to.push(id)
            }
        };
        match record.state {
            ObjectState::Tombstone if record.live_bytes == 0 => {
                self.tombstones += 1;
                let known = self.seen.remove(&id);
                if known.is_some_and(|since| self.now.saturating_sub(since) >= gc.settings.min_age) {
                    add(&mut self.expired);
                }
                if self.still.len() < TOMBSTONES_MAX {
                    self.still.insert(id, known.unwrap_or(self.now));
                }
            }
            ObjectState::Open | ObjectState::Sealed
                if record.live_bytes == 0 && self.left.len() < OBJECTS_MAX && gc.parts.vfs.dirty.get(id).is_none() =>
            {
                self.left.push((id, record.session));
            }
            ObjectState::Stored => {
                let stored = StoredObject::new(id, record.segments, record.stored_bytes);
                let bytes = stored.map_or(0, |stored| stored.data_bytes());
                let dead = bytes.saturating_sub(record.live_bytes);
                self.stored_bytes += bytes;
                self.dead_bytes += dead;
                if record.live_bytes == 0 {
                    add(&mut self.dead);
                } else if dead > bytes / 2 && self.worn.len() < OBJECTS_MAX && !gc.unread.lock().contains(&id) {
                    self.worn.push(id);
                    self.worn_bytes += dead;
                }
            }
            _ => {}
        }
    }
}

impl Gc {
    pub(super) fn find(&self) -> Result<Found, GcError> {
        let (now, seen) = (self.parts.vfs.parts.clock.monotonic(), std::mem::take(&mut *self.seen.lock()));
        let mut found = Found { now, seen, ..Found::default() };
        self.parts.namespace.objects(&mut |id, record| {
            found.note(self, id, &record);
            ControlFlow::Continue(())
        })?;
        *self.seen.lock() = std::mem::take(&mut found.still);
        // Asked later than what they wrote was looked at, so that none is missed.
        let mut over: HashMap<SessionId, bool> = HashMap::default();
        for (id, session) in std::mem::take(&mut found.left) {
            let is_over = match over.get(&session) {
                Some(known) => *known,
                None => {
                    let is_here = session == self.parts.vfs.parts.session;
                    let is_over = !is_here && !self.parts.namespace.is_session(session)?;
                    *over.entry(session).or_insert(is_over)
                }
            };
            if is_over {
                found.dead.push(id);
            }
        }
        Ok(found)
    }
}
