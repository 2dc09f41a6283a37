//! Objects that are brought before anybody reads them, and what is here already.

use super::{Node, NodeError};
use crate::message::Set;
use sluice_base::ObjectId;
use sluice_object::StoredObject;

/// Half of the fills that run at once: the others are for readers.
pub(super) const WARMING_MAX: usize = super::fills::FILLS_MAX / 2;

impl Node {
    /// Has the whole of an object in the cache, as far as it has stored bytes. Returns the bytes that were brought for it; who
    /// asks while a reader's fill is under way waits for that. It goes on when the caller goes away.
    pub async fn fill(&self, object: StoredObject) -> Result<u64, NodeError> {
        let Ok(_turn) = self.warming.acquire().await else { return Err(NodeError::Busy) };
        // Those that are brought beside it would push it out again.
        let slot = self.cache.prepare(object.id()).map_err(|error| NodeError::Store(error.to_string()))?;
        let brought = self.fills.whole(object).await;
        drop(slot);
        if self.cache.present(object.id()) == 0 {
            self.cache.evict(object.id());
        }
        brought
    }

    /// Which segments of these objects are here. No use of them is counted.
    pub fn held(&self, objects: &[ObjectId]) -> Vec<Set> {
        objects.iter().map(|object| self.cache.present(*object)).collect()
    }
}
