//! The journal against disks that lose power, fill up, fail and rot.

mod committer;
mod corruption;
mod faults;
mod limits;
mod model;
mod torn;

use sluice_base::{Disk, DiskFile, Seq, VolumeId, disk::MemoryDisk};
use sluice_journal::{Class, Journal, JournalError, JournalOptions, Recovered};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

const DIR: &str = "/journal";

/// Small segments, so that a few records cross them; `boot` 0 means not known.
fn options(boot: u8) -> JournalOptions {
    let mut options = JournalOptions::new(DIR, VolumeId([7; 16]));
    options.segment_bytes = 16 << 10;
    options.capacity_bytes = 128 << 10;
    options.boot_id = [boot; 16];
    options
}

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("{number:016x}.log"))
}

type Records = Vec<(u64, Vec<u8>)>;

fn open(disk: &MemoryDisk, options: JournalOptions) -> Result<(Journal, Recovered, Records), JournalError> {
    open_on(Arc::new(disk.clone()), options)
}

fn open_on(disk: Arc<dyn Disk>, options: JournalOptions) -> Result<(Journal, Recovered, Records), JournalError> {
    let mut records = Vec::new();
    let (journal, recovered) = Journal::open(disk, options, &mut |seq, payload| {
        records.push((seq.0, payload.to_vec()));
        Ok(())
    })?;
    Ok((journal, recovered, records))
}

/// A payload that its seq determines.
fn payload(seq: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seq * 31 + at * 7) as u8).collect()
}

/// Appends `count` records of `bytes` each and returns the last seq.
fn append(journal: &Journal, count: u64, bytes: usize) -> Seq {
    let mut last = journal.written();
    for _ in 0..count {
        let bytes = payload(last.0 + 1, bytes);
        let (front, back) = bytes.split_at(bytes.len() / 3);
        last = journal.append(Class::Metadata, &[front, back]).unwrap();
    }
    last
}

fn whole(disk: &MemoryDisk, path: &Path) -> (Arc<dyn DiskFile>, Vec<u8>) {
    let file = disk.open(path).unwrap();
    let mut bytes = vec![0; file.size().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    (file, bytes)
}

#[test]
fn a_new_journal_starts_where_it_is_told() {
    let disk = MemoryDisk::default();
    let (journal, recovered, _) = open(&disk, JournalOptions { first_seq: Seq(100), ..options(1) }).unwrap();
    assert_eq!((recovered.records, recovered.first_seq, recovered.last_seq), (0, Seq(100), Seq(99)));
    assert_eq!((journal.written(), journal.synced()), (Seq(99), Seq(99)));
    assert_eq!(journal.append(Class::Data, &[b"x"]).unwrap(), Seq(100));
    drop(journal);
    let (journal, recovered, records) = open(&disk, options(1)).unwrap();
    assert_eq!((recovered.first_seq, recovered.last_seq), (Seq(100), Seq(100)));
    assert_eq!(records, [(100, b"x".to_vec())]);
    assert_eq!(journal.synced(), Seq(100), "recovered records are durable");
}

#[test]
fn a_journal_that_its_owner_needs_is_not_begun_anew() {
    let disk = MemoryDisk::default();
    let needed = |from| JournalOptions { needed_from: Some(Seq(from)), ..options(1) };
    assert!(matches!(open(&disk, needed(1)), Err(JournalError::Missing { .. })));
    let (journal, ..) = open(&disk, options(1)).unwrap();
    append(&journal, 100, 700);
    journal.sync().unwrap();
    journal.free_before(Seq(60)).unwrap();
    let first = journal.usage().first_seq;
    assert!(first > Seq(1) && first <= Seq(60));
    drop(journal);
    let found = open(&disk, needed(first.0 - 1)).map(drop);
    assert!(matches!(found, Err(JournalError::Gap { found, .. }) if found == first));
    assert_eq!(open(&disk, needed(first.0)).unwrap().1.last_seq, Seq(100));
}

#[test]
fn works_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let at = |boot| JournalOptions { dir: dir.path().join("a/b"), ..options(boot) };
    let disk: Arc<dyn Disk> = Arc::new(sluice_base::disk::RealDisk);
    let (journal, ..) = open_on(disk.clone(), at(1)).unwrap();
    append(&journal, 100, 700);
    journal.sync().unwrap();
    journal.free_before(Seq(60)).unwrap();
    append(&journal, 40, 700);
    drop(journal);
    let (journal, recovered, records) = open_on(disk, at(1)).unwrap();
    assert_eq!(recovered.last_seq, Seq(140));
    assert!(recovered.first_seq > Seq(30) && recovered.first_seq <= Seq(60), "{recovered:?}");
    assert!(records.iter().all(|(seq, bytes)| *bytes == payload(*seq, 700)));
    assert!(journal.usage().segments >= 4);
}

#[test]
fn a_newer_format_or_another_volume_is_not_touched() {
    let disk = MemoryDisk::default();
    append(&open(&disk, options(1)).unwrap().0, 3, 10);
    let other = JournalOptions { volume: VolumeId([8; 16]), ..options(1) };
    assert!(matches!(open(&disk, other), Err(JournalError::WrongVolume { found, .. }) if found == VolumeId([7; 16])));
    let (file, before) = whole(&disk, &segment(1));
    file.write_all_at(&2u32.to_le_bytes(), 8).unwrap();
    assert!(matches!(open(&disk, options(1)), Err(JournalError::NewerFormat { version: 2, .. })));
    let repaired = Journal::truncate_at_corruption(Arc::new(disk.clone()), options(1));
    assert!(matches!(repaired, Err(JournalError::NewerFormat { version: 2, .. })));
    file.write_all_at(&1u32.to_le_bytes(), 8).unwrap();
    assert_eq!(whole(&disk, &segment(1)).1, before);
    assert_eq!(open(&disk, options(1)).unwrap().2.len(), 3);
}

#[test]
fn records_are_read_again_while_others_are_appended() {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    append(&journal, 100, 700);
    journal.free_before(Seq(60)).unwrap();
    let held = journal.usage().first_seq.0;
    for (first, last) in [(1, 100), (held, held), (70, 83), (98, 200), (200, 300)] {
        let mut seen = Vec::new();
        journal.read_again(Seq(first), Seq(last), &mut |seq, bytes| seen.push((seq.0, bytes.to_vec()))).unwrap();
        let expected: Vec<_> = (first.max(held)..=last.min(100)).map(|seq| (seq, payload(seq, 700))).collect();
        assert!(seen == expected, "{first} to {last}: {:?}", seen.iter().map(|(seq, _)| seq).collect::<Vec<_>>());
    }
    // What is damaged ends it, and is never handed out.
    let usage = journal.usage();
    disk.flip_bit(&segment(1 + usage.segments as u64), 8000);
    let mut seen = 0;
    journal.read_again(Seq(1), Seq(100), &mut |seq, bytes| seen += u64::from(bytes == payload(seq.0, 700))).unwrap();
    assert!(seen <= 100 - held + 1);
    assert_eq!(append(&journal, 1, 10), Seq(101));
}

#[test]
fn what_must_go_for_a_journal_to_be_calm() {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    append(&journal, 100, 700);
    let usage = journal.usage();
    assert!(usage.segments >= 4);
    assert_eq!(journal.first_seq_below(usage.used_bytes), None);
    // Several at once: as many as it takes, and never the active one.
    for segments in 1..usage.segments as u64 {
        let bytes = usage.used_bytes - segments * (16 << 10);
        let first = journal.first_seq_below(bytes).unwrap();
        assert!(journal.first_seq_below(bytes + 1) == Some(first));
        let mut copy = open(&disk.power_loss(1), options(1)).unwrap().0;
        copy = {
            copy.free_before(first).unwrap();
            copy
        };
        assert_eq!((copy.usage().used_bytes, copy.usage().first_seq), (bytes, first));
    }
    let active = journal.first_seq_below(0).unwrap();
    assert!(
        active <= usage.next_seq
            && journal.first_seq_below(usage.used_bytes - (16 << 10) * (usage.segments as u64 - 1)) == Some(active)
    );
}

#[test]
fn a_refused_record_ends_the_opening() {
    let disk = MemoryDisk::default();
    append(&open(&disk, options(1)).unwrap().0, 3, 10);
    let refuse = |seq: Seq, _: &[u8]| match seq {
        Seq(2) => Err(JournalError::Replay { seq, source: "no".into() }),
        _ => Ok(()),
    };
    let refused = Journal::open(Arc::new(disk.clone()), options(1), &mut { refuse });
    assert!(matches!(refused, Err(JournalError::Replay { seq: Seq(2), .. })));
    assert_eq!(open(&disk, options(1)).unwrap().2.len(), 3);
}

#[test]
fn threads_may_append_sync_and_free_at_once() {
    let disk = MemoryDisk::default();
    let roomy = || JournalOptions { capacity_bytes: 64 << 20, ..options(1) };
    let (journal, ..) = open(&disk, roomy()).unwrap();
    std::thread::scope(|scope| {
        let start = |work: &'static str| std::thread::Builder::new().name(work.into());
        for thread in 0..4u64 {
            let append = {
                let journal = &journal;
                move || {
                    for n in 0..500u64 {
                        let tag = thread << 32 | n;
                        let seq = journal.append(Class::Data, &[&tag.to_le_bytes(), &[1; 200]]).unwrap();
                        assert!(journal.written() >= seq);
                    }
                }
            };
            start("append").spawn_scoped(scope, append).unwrap();
        }
        let sync = || {
            while journal.synced() < Seq(2000) {
                let written = journal.written();
                assert!(journal.sync().unwrap() >= written);
                journal.free_before(Seq(written.0.min(1000))).unwrap();
            }
        };
        start("sync").spawn_scoped(scope, sync).unwrap();
    });
    let usage = journal.usage();
    assert_eq!((usage.next_seq, journal.synced()), (Seq(2001), Seq(2000)));
    drop(journal);
    let (_, recovered, records) = open(&disk.power_loss(1), roomy()).unwrap();
    assert_eq!((recovered.first_seq, recovered.last_seq), (usage.first_seq, Seq(2000)));
    let mut last = [None; 4];
    for (_, bytes) in records {
        let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let (thread, n) = ((tag >> 32) as usize, tag & 0xffff_ffff);
        assert!(last[thread].is_none_or(|last| last + 1 == n), "records of a thread keep their order");
        last[thread] = Some(n);
    }
    // All of a thread's records may lie in what was freed.
    assert!(last.iter().flatten().all(|&last| last == 499), "{last:?}");
}
