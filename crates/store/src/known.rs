//! Finding an object's slot again without looking the object up, for who reads the same objects over and over.

use crate::{Cache, Pin, entry::Entry};
use std::sync::{Arc, atomic::Ordering};

/// Remembers where an object was. Keeps its slot from nobody: that is what a [`Pin`] does.
pub struct Known(Arc<Entry>);

impl Pin {
    /// To come back to the same slot.
    pub fn known(&self) -> Known {
        Known(Arc::clone(&self.0))
    }
}

impl Cache {
    /// As [`Cache::pin`], without a look at the map of objects: takes no lock and counts neither hit nor miss. `None` when the object
    /// has left that slot, or is not to be read just like that: look it up then.
    pub fn pin_known(&self, known: &Known) -> Option<Pin> {
        let hold = known.0.hold()?;
        if hold.replaying.load(Ordering::Acquire) || (self.0.health.is_failed() && !hold.is_dirty()) {
            return None;
        }
        hold.count_use(self.0.now_secs());
        Some(Pin(hold))
    }
}
