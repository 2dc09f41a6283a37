//! Room: the journal's own and the disk's.

use super::*;

#[test]
fn data_leaves_a_fifth_to_metadata() {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    let fill = |class| loop {
        match journal.append(class, &[&[1; 1000]]) {
            Ok(_) => {}
            Err(JournalError::Full { class: full }) if full == class => return journal.usage(),
            Err(error) => panic!("{error}"),
        }
    };
    let usage = fill(Class::Data);
    assert!(
        usage.used_bytes <= usage.data_capacity_bytes && usage.used_bytes > usage.data_capacity_bytes - 8192,
        "{usage:?}"
    );
    let usage = fill(Class::Metadata);
    assert!(usage.used_bytes <= usage.capacity_bytes && usage.used_bytes > usage.capacity_bytes - 8192, "{usage:?}");
    assert!(disk.used_bytes() <= 128 << 10);

    let half = Seq(journal.written().0 / 2);
    journal.free_before(half).unwrap();
    assert!(journal.usage().first_seq <= half && journal.usage().first_seq > Seq(half.0 - 20));
    journal.append(Class::Data, &[&[1; 1000]]).unwrap();
    journal.free_before(Seq(u64::MAX)).unwrap();
    assert_eq!(journal.usage().segments, 1);
    journal.append(Class::Data, &[&[1; 1000]]).unwrap();
    assert!(disk.used_bytes() <= 128 << 10);
}

#[test]
fn the_largest_record_fits_and_a_larger_one_does_not() {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    let bytes_max = match journal.append(Class::Data, &[&[0; 16 << 10]]) {
        Err(JournalError::TooLarge { bytes: 16_384, bytes_max }) => bytes_max,
        other => panic!("{other:?}"),
    };
    assert!(matches!(journal.append(Class::Data, &[&vec![0; bytes_max], &[0]]), Err(JournalError::TooLarge { .. })));
    for _ in 0..3 {
        journal.append(Class::Data, &[&vec![1; bytes_max]]).unwrap();
        journal.append(Class::Data, &[]).unwrap();
    }
    drop(journal);
    let (_, _, records) = open(&disk, options(1)).unwrap();
    assert_eq!(
        records.iter().map(|record| record.1.len()).collect::<Vec<_>>(),
        [bytes_max, 0, bytes_max, 0, bytes_max, 0]
    );

    let large = JournalOptions { segment_bytes: 4 << 20, capacity_bytes: 16 << 20, ..options(1) };
    let (journal, ..) = open(&MemoryDisk::default(), large).unwrap();
    journal.append(Class::Data, &[&vec![1; 2 << 20]]).unwrap();
    assert!(matches!(journal.append(Class::Data, &[&vec![1; (2 << 20) + 1]]), Err(JournalError::TooLarge { .. })));
}

#[test]
fn bad_options_are_refused() {
    let bad = [
        JournalOptions { segment_bytes: 10_000, ..options(1) },
        JournalOptions { segment_bytes: 4096, ..options(1) },
        JournalOptions { capacity_bytes: 20 << 10, ..options(1) },
        JournalOptions { first_seq: Seq(0), ..options(1) },
    ];
    for options in bad {
        assert!(matches!(open(&MemoryDisk::default(), options), Err(JournalError::BadOptions(_))));
    }
}

/// Must survive: a disk without room for the next segment costs no record, and the journal goes on once there is room.
#[test]
fn a_full_disk_stops_the_journal_only_while_it_is_full() {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    disk.set_capacity(20 << 10);
    let mut written = 0;
    let full = loop {
        match journal.append(Class::Metadata, &[&payload(written + 1, 500)]) {
            Ok(seq) => written = seq.0,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, JournalError::DiskFull { .. }), "{full}");
    assert!(written >= 20, "the allocated segment was used up: {written}");
    assert!(matches!(journal.append(Class::Metadata, &[&[0; 500]]), Err(JournalError::DiskFull { .. })));
    assert_eq!(journal.sync().unwrap(), Seq(written));
    assert_eq!(disk.used_bytes(), 16 << 10, "a failed allocation leaves nothing behind");
    disk.set_capacity(1 << 20);
    assert_eq!(append(&journal, 5, 500), Seq(written + 5));
    drop(journal);
    let (_, _, records) = open(&disk, options(1)).unwrap();
    assert!(records.iter().all(|(seq, bytes)| *bytes == payload(*seq, 500)));
    assert_eq!(records.len() as u64, written + 5);
}
