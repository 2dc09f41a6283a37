//! Disks that fail.

use super::*;
use sluice_base::{
    Errno,
    disk::{FaultPlan, FaultyDisk, Operation},
};

fn faulty() -> (MemoryDisk, Arc<FaultPlan>, Journal) {
    let (memory, plan) = (MemoryDisk::default(), Arc::new(FaultPlan::default()));
    let disk = FaultyDisk::new(Arc::new(memory.clone()), plan.clone());
    let journal = open_on(Arc::new(disk), options(1)).unwrap().0;
    (memory, plan, journal)
}

/// Must survive: what was synced before. Must not happen: a later sync that claims success.
#[test]
fn a_failed_sync_is_final() {
    let (memory, plan, journal) = faulty();
    append(&journal, 3, 100);
    journal.sync().unwrap();
    append(&journal, 3, 100);
    plan.fail_nth(Operation::Sync, 1, Errno::EIO);
    assert!(matches!(journal.sync(), Err(JournalError::Failed { .. })));
    assert!(matches!(journal.sync(), Err(JournalError::Failed { .. })));
    assert!(matches!(journal.append(Class::Metadata, &[b"x"]), Err(JournalError::Failed { .. })));
    assert!(matches!(journal.free_before(Seq(2)), Err(JournalError::Failed { .. })));
    assert_eq!(journal.synced(), Seq(3));
    for seed in 0..20 {
        assert!(open(&memory.power_loss(seed), options(2)).unwrap().2.len() >= 3);
    }
}

#[test]
fn a_failed_sync_at_a_crossing_is_final() {
    for nth in 1..=3 {
        let (memory, plan, journal) = faulty();
        plan.fail_nth(Operation::Sync, nth, Errno::EIO);
        let mut written = 0;
        let error = loop {
            match journal.append(Class::Metadata, &[&payload(written + 1, 500)]) {
                Ok(seq) => written = seq.0,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, JournalError::Failed { .. }), "{error}");
        assert!(matches!(journal.append(Class::Metadata, &[b"x"]), Err(JournalError::Failed { .. })));
        let synced = journal.synced().0;
        drop(journal);
        for seed in 0..20 {
            let found = open(&memory.power_loss(seed), options(2)).unwrap().2.len() as u64;
            assert!((synced..=written).contains(&found), "sync {nth} seed {seed}: {found} of {synced} to {written}");
        }
        assert_eq!(open(&memory, options(1)).unwrap().2.len() as u64, written);
    }
}

/// Must survive: every acknowledged record, and no record whose append failed appears.
#[test]
fn the_nth_write_may_fail() {
    for errno in [Errno::EIO, Errno::ENOSPC] {
        let mut with_room = 0;
        for nth in 1..40 {
            let (memory, plan, journal) = faulty();
            plan.fail_nth(Operation::Write, nth, errno);
            let mut acked = Vec::new();
            for salt in 1..60u64 {
                match journal.append(Class::Metadata, &[&payload(salt, 600)]) {
                    Ok(seq) => acked.push((seq.0, payload(salt, 600))),
                    Err(JournalError::Io { .. }) => assert_eq!(errno, Errno::EIO),
                    Err(JournalError::DiskFull { .. }) => assert_eq!(errno, Errno::ENOSPC),
                    Err(error) => panic!("{error}"),
                }
            }
            assert!((58..60).contains(&acked.len()));
            with_room += acked.len() - 58;
            drop(journal);
            assert_eq!(open(&memory, options(1)).unwrap().2, acked, "write {nth}");
        }
        // What is written ahead of a record need not fit.
        assert_eq!(with_room > 0, errno == Errno::ENOSPC, "{with_room}");
    }
}

#[test]
fn a_disk_that_refuses_every_write_stops_the_journal() {
    let (memory, plan, journal) = faulty();
    append(&journal, 4, 100);
    plan.fail_under(Operation::Write, Path::new(DIR), Errno::EIO);
    assert!(matches!(journal.append(Class::Metadata, &[&[1; 100]]), Err(JournalError::Failed { .. })));
    plan.heal();
    assert!(matches!(journal.append(Class::Metadata, &[&[1; 100]]), Err(JournalError::Failed { .. })));
    drop(journal);
    assert_eq!(open(&memory, options(1)).unwrap().2.len(), 4);
}

#[test]
fn names_that_cannot_change_are_tried_again() {
    let (memory, plan, journal) = faulty();
    append(&journal, 60, 500);
    plan.fail_under(Operation::Name, Path::new(DIR), Errno::EIO);
    assert!(matches!(journal.free_before(Seq(50)), Err(JournalError::Io { .. })));
    let stuck = loop {
        if let Err(error) = journal.append(Class::Metadata, &[&payload(journal.written().0 + 1, 500)]) {
            break error;
        }
    };
    assert!(matches!(stuck, JournalError::Io { .. }), "{stuck}");
    plan.heal();
    journal.free_before(Seq(50)).unwrap();
    let last = append(&journal, 10, 500);
    drop(journal);
    let (_, recovered, records) = open(&memory, options(1)).unwrap();
    assert_eq!(recovered.last_seq, last);
    assert!(recovered.first_seq > Seq(1));
    assert!(records.iter().all(|(seq, bytes)| *bytes == payload(*seq, 500)));
}

#[test]
fn a_disk_that_cannot_be_read_is_an_error_not_an_empty_journal() {
    let (memory, plan, journal) = faulty();
    append(&journal, 3, 100);
    plan.fail_under(Operation::Read, Path::new(DIR), Errno::EIO);
    let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new(Arc::new(memory), plan.clone()));
    assert!(matches!(open_on(disk.clone(), options(1)), Err(JournalError::Io { .. })));
    plan.heal();
    assert_eq!(open_on(disk, options(1)).unwrap().2.len(), 3);
}

/// One sync covers everything written, and none happens when nothing is unsynced.
#[test]
fn one_fdatasync_covers_all() {
    let (_, plan, journal) = faulty();
    append(&journal, 20, 100);
    let before = plan.count(Operation::Sync);
    assert_eq!(journal.sync().unwrap(), Seq(20));
    assert_eq!(journal.sync().unwrap(), Seq(20));
    assert_eq!(plan.count(Operation::Sync), before + 1);
}
