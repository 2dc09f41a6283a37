//! Trees that are made by the namespace, broken by hand, and mended.

mod random;
mod single;

use super::*;
use crate::{
    Caller, DataChange, Namespace, NewNode, SizeChange, XattrMode,
    extent::{Extent, FileExtents, Place},
    keys,
    records::mode,
    store::{MemoryLog, MemoryTables, Options},
};
use sluice_base::{Ino, ManualClock, ObjectId, Seq, SessionId, Timestamp};
use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

const ROOT_USER: Caller = Caller { uid: 0, gid: 0 };

/// A volume in memory.
struct Volume {
    store: Arc<MetaStore>,
    names: Namespace,
}

/// All records of all tables.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

impl Volume {
    fn new() -> Self {
        let (tables, log) = (Arc::new(MemoryTables::default()), Arc::new(MemoryLog::default()));
        let store = Arc::new(MetaStore::new(tables, log, Seq(0), Options::default()));
        let names = Namespace::new(store.clone(), Arc::new(ManualClock::default()));
        names.format(ROOT_USER).expect("a root");
        names.begin_session().expect("a session");
        Self { store, names }
    }

    fn make(&self, dir: Ino, name: &str, mode: u32) -> Ino {
        let node = NewNode { mode: mode | 0o644, rdev: 0, target: b"target" };
        self.names.create(dir, name.as_bytes(), node, ROOT_USER).expect("created").value.ino
    }

    fn file(&self, dir: Ino, name: &str) -> Ino {
        self.make(dir, name, mode::REGULAR)
    }

    fn dir(&self, dir: Ino, name: &str) -> Ino {
        self.make(dir, name, mode::DIRECTORY)
    }

    /// Writes bytes that lie in `object` from `place` on.
    fn write(&self, ino: Ino, offset: u64, len: u64, object: u8, place: u32) {
        let (id, end) = (ObjectId([object; 16]), offset + len);
        let mut extents = FileExtents::default();
        self.names.load_extents(ino, &mut extents, offset..end).expect("loaded");
        let extent = Extent { offset, len, place: Some(Place { object: id, offset: place }) };
        let (new_objects, size) = (vec![(id, SessionId(1))], SizeChange::AtLeast(end));
        let change = DataChange { extents: vec![extent], new_objects, size, ..DataChange::default() };
        self.names.change_data(ino, &mut extents, &change).expect("written");
    }

    fn write_inline(&self, ino: Ino, body: &[u8]) {
        let size = SizeChange::AtLeast(body.len() as u64);
        let change = DataChange { body: Some(Some(body)), size, ..DataChange::default() };
        self.names.change_data(ino, &mut FileExtents::default(), &change).expect("written");
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.store
            .transact(|txn| -> Result<()> {
                txn.put(key, value);
                Ok(())
            })
            .expect("put");
    }

    fn delete(&self, key: &[u8]) {
        self.store
            .transact(|txn| -> Result<()> {
                txn.delete(key);
                Ok(())
            })
            .expect("deleted");
    }

    fn get(&self, key: &[u8]) -> Vec<u8> {
        self.store.snapshot().get(key).expect("read").expect("there").to_vec()
    }

    /// Changes one byte of a record.
    fn flip(&self, key: &[u8], at: usize) {
        let mut value = self.get(key);
        value[at] ^= 1;
        self.put(key, &value);
    }

    fn records(&self) -> Records {
        let mut all = Records::new();
        let visit = &mut |key: &[u8], value: &[u8]| {
            all.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        };
        self.store.snapshot().scan(&[1], &[0xff], visit).expect("scanned");
        all
    }

    fn check(&self) -> Report {
        check(&self.store, &mut |_| {}).expect("checked")
    }

    fn codes(&self) -> Vec<&'static str> {
        self.check().findings.iter().map(|finding| finding.problem.code()).collect()
    }

    fn repair_with(&self, copy_of: &dyn Fn(ObjectId) -> Option<StoredCopy>) -> Repaired {
        let options = RepairOptions { now: Timestamp { secs: 1000, nanos: 0 }, copy_of };
        let repaired = repair(&self.store, &options, &mut |_| {}).expect("repaired");
        assert!(repaired.after.is_clean(), "left: {}", text(&repaired.after.findings));
        repaired
    }

    fn repair(&self) -> Repaired {
        self.repair_with(&|_| None)
    }
}

fn text(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}

/// A volume with some of everything. Returns what tests want to break.
fn everything() -> (Volume, BTreeMap<&'static str, Ino>) {
    let volume = Volume::new();
    let mut inos = BTreeMap::new();
    let dir = volume.dir(Ino::ROOT, "dir");
    let sub = volume.dir(dir, "sub");
    let (small, big, linked) = (volume.file(dir, "small"), volume.file(sub, "big"), volume.file(sub, "linked"));
    volume.write_inline(small, b"hello");
    volume.write(big, 0, 100_000, 1, 0);
    volume.write(big, 50_000, 10_000, 2, 0);
    volume.write(big, (64 << 20) - 500, 1000, 2, 10_000);
    volume.write(linked, 5, 10, 2, 20_000);
    volume.names.link(linked, Ino::ROOT, b"link").expect("linked");
    volume.names.object_stored(ObjectId([1; 16]), 4, 100_200).expect("stored");
    let symlink = volume.make(dir, "symlink", mode::SYMLINK);
    volume.names.setxattr(small, b"user.a", b"1", XattrMode::Set).expect("set");
    volume.names.setxattr(big, b"user.a", b"1", XattrMode::Set).expect("set");
    volume.names.removexattr(big, b"user.a").expect("removed");
    let orphan = volume.names.create_unnamed(dir, mode::REGULAR | 0o600, ROOT_USER).expect("made").value.ino;
    let gone = volume.dir(dir, "gone");
    volume.names.rmdir(dir, b"gone", &|_| true).expect("removed");
    inos.extend([("dir", dir), ("sub", sub), ("small", small), ("big", big), ("linked", linked)]);
    inos.extend([("symlink", symlink), ("orphan", orphan), ("gone", gone)]);
    (volume, inos)
}

#[test]
fn a_sound_volume_is_clean_and_left_alone() {
    let (volume, inos) = everything();
    let report = volume.check();
    assert_eq!(text(&report.findings), "");
    let Checked { inodes, directories, entries, orphans, objects, .. } = report.checked;
    assert_eq!((inodes, directories, entries, orphans, objects), (9, 4, 7, 2, 2));
    let before = volume.records();
    assert!(volume.repair().mended.is_empty());
    assert_eq!(volume.records(), before);
    volume.names.reclaim(&[inos["orphan"]]).expect("reclaimed");
    assert!(volume.check().is_clean());
}

#[test]
fn a_tombstone_of_what_was_never_stored_is_sound() {
    let (volume, _) = everything();
    let id = ObjectId([7; 16]);
    volume.names.begin_object(id, SessionId(1)).expect("begun");
    assert!(volume.names.bury_object(id).expect("asked"), "nothing refers to it");
    assert_eq!(text(&volume.check().findings), "");
}
