//! What a warm-up asks of nodes: to keep an object, and what they have.

use super::{Set, decode_set};
use bytes::{Buf, BufMut};
use sluice_base::ObjectId;
use sluice_object::StoredObject;

/// Asked of a node: to have the whole of a stored object in its cache. Answered when it is there, with the bytes that were fetched
/// for it, a u64.
pub const FILL: u16 = 230;
/// Asked of a node: which segments it has of these objects. Answered with a set for each.
pub const HELD: u16 = 231;
/// Objects of one [`HELD`].
pub const HELD_MAX: usize = 1024;

/// The body of [`FILL`]: what the metadata says of an object.
pub fn encode_fill(object: StoredObject) -> Vec<u8> {
    let mut out = Vec::with_capacity(28);
    out.put_slice(&object.id().0);
    out.put_u64_le(object.stored_bytes());
    out.put_u32_le(object.segment_count());
    out
}

/// What a body of [`FILL`] says, if such an object can be.
pub fn decode_fill(mut bytes: &[u8]) -> Option<StoredObject> {
    let id = ObjectId(bytes.split_off(..16)?.try_into().ok()?);
    let (stored_bytes, count) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u32_le().ok()?);
    StoredObject::new(id, count, stored_bytes).ok().filter(|_| bytes.is_empty())
}

/// The answer to [`FILL`].
pub fn encode_filled(bytes: u64) -> Vec<u8> {
    bytes.to_le_bytes().to_vec()
}

/// What an answer to [`FILL`] says.
pub fn decode_filled(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The body of [`HELD`].
pub fn encode_objects(objects: &[ObjectId]) -> Vec<u8> {
    objects.iter().flat_map(|object| object.0).collect()
}

/// What a body of [`HELD`] says: at least one object.
pub fn decode_objects(bytes: &[u8]) -> Option<Vec<ObjectId>> {
    let (objects, rest) = bytes.as_chunks();
    let sound = rest.is_empty() && (1..=HELD_MAX).contains(&objects.len());
    sound.then(|| objects.iter().map(|object| ObjectId(*object)).collect())
}

/// The answer to [`HELD`].
pub fn encode_sets(sets: &[Set]) -> Vec<u8> {
    sets.iter().flat_map(|set| set.to_le_bytes()).collect()
}

/// What an answer to a [`HELD`] of so many objects says.
pub fn decode_sets(bytes: &[u8], objects: usize) -> Option<Vec<Set>> {
    let (sets, rest) = bytes.as_chunks::<16>();
    let sound = rest.is_empty() && sets.len() == objects;
    sound.then(|| sets.iter().filter_map(|set| decode_set(set)).collect())
}
