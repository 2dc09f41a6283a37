//! Random calls against plain maps.

use crate::{SEG, id, open, pattern};
use proptest::prelude::*;
use sluice_base::{
    ObjectId,
    crc::{crc32c, segment_crc},
    disk::MemoryDisk,
    limits::{OBJECT_BYTES, SEGMENT_BYTES},
};
use sluice_store::{Cache, CacheError, Pin, ReadError, SegmentSum, SlotLocation};
use std::collections::HashMap;

const SLOTS: usize = 5;
const NAMES: u32 = 9;

#[derive(Clone, Debug)]
enum Op {
    Create(u32),
    Append { name: u32, gap: u32, len: u32 },
    Fill { name: u32, index: u32 },
    MarkClean(u32),
    Discard(u32),
    Read { name: u32, offset: u32, len: u32 },
    Region { name: u32, first: u32, count: u32 },
    DropPages,
    Pin(u32),
    Unpin,
    Sync,
    Persist,
    Reopen,
    LosePower(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES;
    let gap = prop_oneof![5 => Just(0), 3 => 1..9u32, 2 => 1..90_000u32];
    let len = || prop_oneof![3 => 1..100u32, 3 => 100..40_000u32, 2 => 131_072..300_000u32, 2 => (1..9u32).prop_map(|n| n * SEG)];
    prop_oneof![
        3 => name().prop_map(Op::Create),
        6 => (name(), gap, len()).prop_map(|(name, gap, len)| Op::Append { name, gap, len }),
        5 => (name(), 0..6u32).prop_map(|(name, index)| Op::Fill { name, index }),
        2 => name().prop_map(Op::MarkClean),
        1 => name().prop_map(Op::Discard),
        8 => (name(), 0..400_000u32, len()).prop_map(|(name, offset, len)| Op::Read { name, offset, len }),
        4 => (name(), 0..8u32, 1..6u32).prop_map(|(name, first, count)| Op::Region { name, first, count }),
        2 => Just(Op::DropPages),
        2 => name().prop_map(Op::Pin),
        2 => Just(Op::Unpin),
        1 => Just(Op::Sync),
        1 => Just(Op::Persist),
        1 => Just(Op::Reopen),
        1 => any::<u64>().prop_map(Op::LosePower),
    ]
}

/// What a journal would hold of one append.
#[derive(Clone)]
struct Record {
    offset: u32,
    len: u32,
    /// Of a run that went straight to the slot.
    sums: Option<Vec<SegmentSum>>,
}

/// An object as its writer knows it.
#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    /// Valid length of each segment.
    lens: HashMap<u32, u32>,
    dirty: Option<SlotLocation>,
    records: Vec<Record>,
    synced_records: usize,
}

impl Object {
    fn expect(&self, offset: u32, len: u32) -> Result<&[u8], u32> {
        let mut at = offset;
        while at < offset + len {
            let (index, stop) = (at / SEG, (offset + len).min((at / SEG + 1) * SEG));
            if stop - index * SEG > self.lens.get(&index).copied().unwrap_or(0) {
                return Err(index);
            }
            at = stop;
        }
        Ok(&self.bytes[offset as usize..(offset + len) as usize])
    }

    fn append(&mut self, offset: u32, bytes: &[u8]) {
        let end = self.bytes.len() as u32;
        if !end.is_multiple_of(SEG) {
            self.lens.insert(end / SEG, SEG.min(offset - end / SEG * SEG));
        }
        self.bytes.resize(offset as usize, 0);
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len() as u32;
        for index in offset / SEG..end.div_ceil(SEG) {
            self.lens.insert(index, SEG.min(end - index * SEG));
        }
    }
}

struct World {
    disk: MemoryDisk,
    cache: Cache,
    /// A name stands for one object after the other: ids are never reused.
    versions: HashMap<u32, u32>,
    objects: HashMap<ObjectId, Object>,
    pins: Vec<(Pin, Object)>,
}

impl World {
    fn new() -> Self {
        let disk = MemoryDisk::default();
        let cache = open(&disk, SLOTS as u64);
        Self { disk, cache, versions: HashMap::new(), objects: HashMap::new(), pins: Vec::new() }
    }

    fn object(&self, name: u32) -> ObjectId {
        id(self.versions.get(&name).copied().unwrap_or(0) * NAMES + name)
    }

    /// Slots that cannot be taken from their objects.
    fn stuck(&self) -> usize {
        let mut stuck: Vec<_> = self.objects.iter().filter(|(_, o)| o.dirty.is_some()).map(|(id, _)| *id).collect();
        stuck.extend(self.pins.iter().map(|(pin, _)| pin.object()));
        stuck.sort();
        stuck.dedup();
        stuck.len()
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Create(name) => {
                if self.objects.get(&self.object(name)).is_some_and(|object| object.dirty.is_none()) {
                    self.objects.remove(&self.object(name));
                    *self.versions.entry(name).or_default() += 1;
                }
                self.create(self.object(name));
            }
            Op::Append { name, gap, len } => self.append(self.object(name), gap, len),
            Op::Fill { name, index } => self.fill(self.object(name), index),
            Op::MarkClean(name) => {
                self.cache.mark_clean(self.object(name));
                if let Some(object) = self.objects.get_mut(&self.object(name)) {
                    object.dirty = None;
                }
            }
            Op::Discard(name) => {
                self.cache.discard(self.object(name));
                self.objects.remove(&self.object(name));
                assert!(self.cache.pin(self.object(name)).is_none());
                *self.versions.entry(name).or_default() += 1;
            }
            Op::Read { name, offset, len } => self.read(self.object(name), offset, len),
            Op::Region { name, first, count } => self.region(self.object(name), first, count),
            Op::DropPages => drop(self.disk.drop_pages(crate::slab())),
            Op::Pin(name) => {
                if let Some(pin) = self.cache.pin(self.object(name)) {
                    let whole = self.objects[&self.object(name)].clone();
                    let lens =
                        whole.lens.iter().filter(|(index, _)| pin.has(**index, 1)).map(|(i, l)| (*i, *l)).collect();
                    self.pins.push((pin, Object { lens, ..whole }));
                }
            }
            Op::Unpin => {
                if !self.pins.is_empty() {
                    let (pin, object) = self.pins.remove(0);
                    check_pinned(&pin, &object);
                }
            }
            Op::Sync => {
                self.cache.sync().unwrap();
                self.objects.values_mut().for_each(|object| object.synced_records = object.records.len());
            }
            Op::Persist => {
                self.cache.persist_table().unwrap();
                self.objects.values_mut().for_each(|object| object.synced_records = object.records.len());
            }
            Op::Reopen => self.reopen(None),
            Op::LosePower(seed) => self.reopen(Some(seed)),
        }
    }

    fn create(&mut self, object: ObjectId) {
        match self.cache.create_dirty(object) {
            Ok(slot) => {
                let known = self.objects.insert(object, Object { dirty: Some(slot.location()), ..Object::default() });
                assert!(known.is_none_or(|known| known.dirty.is_none()));
            }
            Err(CacheError::NoRoom) => assert_eq!(self.stuck(), SLOTS),
            Err(CacheError::Exists(_)) => assert!(self.objects.contains_key(&object)),
            Err(error) => panic!("{error}"),
        }
    }

    fn append(&mut self, id: ObjectId, gap: u32, len: u32) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        let slot = self.cache.dirty(id);
        assert_eq!(slot.is_some(), object.dirty.is_some());
        let Some(slot) = slot else { return };
        let mut offset = object.bytes.len() as u32 + gap;
        let large = len >= 131_072;
        if large {
            offset = offset.next_multiple_of(SEG);
        }
        if (offset + len) as usize > OBJECT_BYTES {
            assert!(matches!(slot.append(offset, &vec![0; len as usize]), Err(CacheError::Invalid(_))));
            return;
        }
        let bytes = pattern(id, offset, len as usize);
        slot.append(offset, &bytes).unwrap();
        object.append(offset, &bytes);
        assert_eq!(slot.end() as usize, object.bytes.len());
        let sums = large.then(|| slot.sums()[(offset / SEG) as usize..].to_vec());
        object.records.push(Record { offset, len, sums });
    }

    fn fill(&mut self, id: ObjectId, index: u32) {
        if self.objects.get(&id).is_some_and(|object| object.dirty.is_some() || !object.records.is_empty()) {
            // Written here: a refill would bring what was stored.
            let object = &self.objects[&id];
            let Some(len) = object.lens.get(&index).copied() else { return };
            let bytes = object.expect(index * SEG, len).unwrap();
            let outcome = self.cache.fill(id, index, bytes, segment_crc(id, index, bytes));
            assert!(matches!(outcome, Ok(()) | Err(CacheError::NoRoom)));
            return;
        }
        let bytes = pattern(id, index * SEG, SEGMENT_BYTES);
        match self.cache.fill(id, index, &bytes, segment_crc(id, index, &bytes)) {
            Ok(()) => {
                let object = self.objects.entry(id).or_default();
                object.bytes = pattern(id, 0, 6 * SEGMENT_BYTES);
                object.lens.insert(index, SEG);
                assert!(self.cache.pin(id).unwrap().has(index, 1));
            }
            Err(CacheError::NoRoom) => assert_eq!(self.stuck(), SLOTS),
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&self, id: ObjectId, offset: u32, len: u32) {
        let (object, pin) = (self.objects.get(&id), self.cache.pin(id));
        let Some(pin) = pin else {
            assert!(object.is_none_or(|object| object.dirty.is_none()), "a dirty slot is gone");
            return;
        };
        let object = object.expect("only known objects have slots");
        let mut found = vec![0; len as usize];
        match (pin.read_resident_at(offset, &mut found), object.expect(offset, len)) {
            (Ok(()), Ok(expected)) => assert!(found == expected, "wrong bytes from memory"),
            (Ok(()), Err(_)) => panic!("bytes that were never written"),
            (Err(_), _) => {}
        }
        match (pin.read_at(offset, &mut found), object.expect(offset, len)) {
            (Ok(()), Ok(expected)) => assert!(found == expected, "wrong bytes"),
            (Err(ReadError::Absent { index }), Err(expected)) if object.dirty.is_some() => assert_eq!(index, expected),
            // Clean segments may be missing, and after a crash stale.
            (Err(ReadError::Absent { .. }), _) if object.dirty.is_none() => {}
            (Err(ReadError::Corrupt { index }), _) if object.dirty.is_none() => self.cache.retire(id, index),
            (found, expected) => panic!("{found:?}, expected {:?}", expected.map(<[u8]>::len)),
        }
    }

    fn region(&self, id: ObjectId, first: u32, count: u32) {
        let (Some(object), Some(pin)) = (self.objects.get(&id), self.cache.pin(id)) else { return };
        let lens = (first..first + count).map(|index| object.lens.get(&index).copied().unwrap_or(0));
        let len: u32 = lens.sum();
        match pin.region(first, count) {
            Ok(region) => {
                assert!(len > (count - 1) * SEG, "a run without gaps");
                let mut found = vec![0; len as usize];
                region.read_at(0, &mut found).unwrap();
                let expected = object.expect(first * SEG, len).unwrap();
                assert_eq!((region.len(), region.crc()), (len as usize, crc32c(expected)));
                // A table that a crash left behind the slabs promises what is not there: its sums tell.
                assert!(found == expected || crc32c(&found) != region.crc());
                assert!(region.is_resident().unwrap());
            }
            Err(ReadError::Absent { .. }) => assert!(object.dirty.is_none() || len <= (count - 1) * SEG),
            Err(error) => panic!("{error}"),
        }
    }

    /// The process ends without notice, or the host does. The journal names the dirty slots.
    fn reopen(&mut self, power_loss: Option<u64>) {
        self.pins.clear();
        if let Some(seed) = power_loss {
            self.disk = self.disk.power_loss(seed);
        }
        self.cache = open(&self.disk, SLOTS as u64);
        let mut lost = Vec::new();
        for (id, object) in &mut self.objects {
            let Some(at) = object.dirty else { continue };
            let slot = self.cache.adopt_dirty(*id, at).unwrap();
            // Backwards: the order of records is not that of bytes.
            for (number, record) in object.records.iter().enumerate().rev() {
                match &record.sums {
                    None => slot.restore(record.offset, &pattern(*id, record.offset, record.len as usize)).unwrap(),
                    Some(sums) => {
                        let found = slot.verify_run(record.offset / SEG, sums);
                        let may_be_lost = power_loss.is_some() && number >= object.synced_records;
                        assert!(found.is_ok() || may_be_lost, "synced run lost: {found:?}");
                        if found.is_err() {
                            lost.push(*id);
                        }
                    }
                }
            }
        }
        lost.dedup();
        for id in lost {
            self.cache.discard(id);
            self.objects.remove(&id);
            let name = (0..NAMES).find(|name| self.object(*name) == id).unwrap();
            *self.versions.entry(name).or_default() += 1;
        }
        self.objects.values_mut().for_each(|object| object.synced_records = 0);
        let dirty = self.objects.iter().filter(|(_, object)| object.dirty.is_some());
        for (id, object) in dirty {
            let all = self.cache.dirty(*id).unwrap().read_all().unwrap();
            for (index, found) in (0..).zip(&all) {
                let expected = object.lens.get(&index).map(|len| object.expect(index * SEG, *len).unwrap());
                assert!(found.as_deref() == expected, "segment {index} after replay");
            }
            assert_eq!(all.len(), object.bytes.len().div_ceil(SEGMENT_BYTES));
        }
    }
}

fn check_pinned(pin: &Pin, object: &Object) {
    for (index, len) in &object.lens {
        let mut found = vec![0; *len as usize];
        match pin.read_at(index * SEG, &mut found) {
            Ok(()) => assert!(Ok(&found[..]) == object.expect(index * SEG, *len), "wrong bytes under a pin"),
            // Loaded from a table that a crash left behind the slabs.
            Err(ReadError::Corrupt { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn behaves_like_plain_maps(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.step(op);
        }
        world.step(&Op::Reopen);
    }
}
