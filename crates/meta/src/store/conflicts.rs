//! Who wrote last, by hash: bounded memory in exchange for a rare needless retry.

use super::{Batch, batch::KEY_BYTES_MAX};
use sluice_base::Seq;

/// Stamps in each table, a power of two. 64 Ki of 8 bytes: at 10,000 creates a second and transactions of 100 us, a read
/// meets another key's stamp by chance less than once in 5,000 commits.
const STAMPS: usize = 1 << 16;
/// Table byte and id.
const GROUP_BYTES: usize = 9;

/// A hash of a key. Not for hostile input: colliding on purpose only makes one's own transactions retry.
pub(super) fn key_hash(key: &[u8]) -> u64 {
    debug_assert!(key.len() <= KEY_BYTES_MAX);
    let fold = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
        (product >> 64) as u64 ^ product as u64
    };
    let (words, rest) = key.as_chunks::<8>();
    let hash = words.iter().fold(0x2545_f491_4f6c_dd1d, |hash, word| fold(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(fold(hash, u64::from_le_bytes(last)), key.len() as u64)
}

fn group_of(key: &[u8]) -> &[u8] {
    &key[..key.len().min(GROUP_BYTES)]
}

/// The group that holds every key of [from, to), if one does.
fn group_of_range<'k>(from: &'k [u8], to: &[u8]) -> Option<&'k [u8]> {
    let group = from.get(..GROUP_BYTES)?;
    if to.starts_with(group) {
        return Some(group);
    }
    // The usual end of a prefix scan: the group itself, counted up by one.
    let mut next = <[u8; GROUP_BYTES]>::try_from(group).ok()?;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    (to == next || to <= group).then_some(group)
}

/// What a transaction has read.
#[derive(Default)]
pub(super) struct Reads {
    keys: Vec<u64>,
    groups: Vec<u64>,
    /// A range over several groups was scanned: any commit since is a conflict.
    everything: bool,
}

impl Reads {
    pub(super) fn key(&mut self, key: &[u8]) {
        self.keys.push(key_hash(key));
    }

    pub(super) fn range(&mut self, from: &[u8], to: &[u8]) {
        match group_of_range(from, to) {
            Some(group) => self.groups.push(key_hash(group)),
            None => self.everything = true,
        }
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.groups.clear();
        self.everything = false;
    }
}

/// The last sequence that wrote each key and each group, by hash.
pub(super) struct Stamps {
    keys: Box<[Seq]>,
    groups: Box<[Seq]>,
}

impl Stamps {
    pub(super) fn new() -> Self {
        let empty = || vec![Seq(0); STAMPS].into_boxed_slice();
        Self { keys: empty(), groups: empty() }
    }

    /// No read of a transaction that began at `since` has changed; other commits have happened meanwhile.
    pub(super) fn unchanged(&self, reads: &Reads, since: Seq) -> bool {
        let old = |stamps: &[Seq], hash: &u64| stamps[slot(*hash)] <= since;
        !reads.everything
            && reads.keys.iter().all(|hash| old(&self.keys, hash))
            && reads.groups.iter().all(|hash| old(&self.groups, hash))
    }

    pub(super) fn mark(&mut self, batch: &Batch, seq: Seq) {
        for (key, _) in batch.entries() {
            self.keys[slot(key_hash(key))] = seq;
            self.groups[slot(key_hash(group_of(key)))] = seq;
        }
    }
}

fn slot(hash: u64) -> usize {
    hash as usize & (STAMPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_group_or_everything() {
        let (a, b) = (b"d\0\0\0\0\0\0\0\xffname".as_slice(), b"d\0\0\0\0\0\0\0\xff".as_slice());
        assert_eq!(group_of_range(b, a), Some(b));
        assert_eq!(group_of_range(a, b"d\0\0\0\0\0\0\x01\0"), Some(b));
        assert_eq!(group_of_range(a, b"d\0\0\0\0\0\0\x01\0a"), None);
        assert_eq!(group_of_range(b"d", b"e"), None);
        assert_eq!(
            group_of_range(b"d\xff\xff\xff\xff\xff\xff\xff\xff", b"e\0\0\0\0\0\0\0\0"),
            Some(&b"d\xff\xff\xff\xff\xff\xff\xff\xff"[..])
        );
        // `e` is also where the next table begins, but a shorter bound than a group's is not worth a case of its own.
        assert_eq!(group_of_range(b"d\xff\xff\xff\xff\xff\xff\xff\xff", b"e"), None);
    }

    #[test]
    fn hashes_tell_lengths_and_zeros_apart() {
        let keys: [&[u8]; 6] = [b"a", b"a\0", b"a\0\0", b"a\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0\0", b"b"];
        let mut hashes: Vec<_> = keys.map(key_hash).to_vec();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), keys.len());
    }
}
