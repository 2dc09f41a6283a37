//! The cache disk, from the outside: only public calls, on disks that fail, lose power and flip bits.

#![allow(missing_docs)]

mod basics;
mod faults;
mod model;
mod race;
mod residency;
mod restart;
mod scrub;

use sluice_base::{
    Disk, ManualClock, ObjectId, VolumeId,
    crc::segment_crc,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_store::{Cache, CacheError, CacheOptions, SLOT_BYTES};
use std::{path::Path, sync::Arc};

pub const SEG: u32 = SEGMENT_BYTES as u32;

pub fn id(number: u32) -> ObjectId {
    let mut bytes = [0x5a; 16];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[15] = number as u8;
    ObjectId(bytes)
}

pub fn options(slots: u64) -> CacheOptions {
    CacheOptions { dir: "/cache".into(), capacity_bytes: slots * SLOT_BYTES, volume: VolumeId([7; 16]) }
}

pub fn open(disk: &impl CloneDisk, slots: u64) -> Cache {
    Cache::open(disk.arc(), options(slots), Arc::new(ManualClock::default())).unwrap()
}

pub trait CloneDisk {
    fn arc(&self) -> Arc<dyn Disk>;
}

impl CloneDisk for sluice_base::disk::MemoryDisk {
    fn arc(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }
}

impl CloneDisk for Arc<dyn Disk> {
    fn arc(&self) -> Arc<dyn Disk> {
        self.clone()
    }
}

/// Bytes that belong to one object and offset only.
pub fn pattern(object: ObjectId, offset: u32, len: usize) -> Vec<u8> {
    let seed = u32::from_le_bytes(object.0[..4].try_into().unwrap()).wrapping_mul(0x9e37_79b9) | 1;
    (offset..offset + len as u32).map(|at| ((at / 4).wrapping_mul(seed) >> (8 + at % 4 * 5)) as u8 ^ at as u8).collect()
}

pub fn segment(object: ObjectId, index: u32) -> Vec<u8> {
    pattern(object, index * SEG, SEGMENT_BYTES)
}

pub fn fill(cache: &Cache, object: ObjectId, index: u32) -> Result<(), CacheError> {
    let bytes = segment(object, index);
    cache.fill(object, index, &bytes, segment_crc(object, index, &bytes))
}

pub fn slab() -> &'static Path {
    Path::new("/cache/slab-00000")
}

const _: () = assert!(SEGMENTS_PER_OBJECT == 128);
