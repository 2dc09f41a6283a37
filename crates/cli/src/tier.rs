//! What a tier does.

pub use crate::config::Tier;
use sluice_vfs::{Durability, Settings, Ship};
use std::sync::Arc;

/// Objects that are stored at once where syncs wait for them.
const UPLOADS_OF_SYNCS: usize = 16;

impl Tier {
    /// Has syncs wait for the store where they are to, whose metadata `shipped` knows of.
    pub fn put_into(self, settings: &mut Settings, shipped: &Arc<Ship>) {
        if self == Self::Object {
            // Each sync waits for an object of its own or of a few others: small ones, many at once. Memory bounds large ones.
            settings.uploads = UPLOADS_OF_SYNCS;
            settings.durability = Durability::Object(shipped.clone());
        }
    }
}
