//! Tails that never were durable are dropped, and stay dropped.

use super::*;
use sluice_journal::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES};

const STORED_BYTES: u64 = (RECORD_HEADER_BYTES + 200).next_multiple_of(8) as u64;

/// Ten records, the first three synced; then the `lost`-th is wiped as if its pages had not reached the disk.
fn with_hole(lost: u64) -> MemoryDisk {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    append(&journal, 3, 200);
    journal.sync().unwrap();
    append(&journal, 7, 200);
    let (file, _) = whole(&disk, &segment(1));
    file.write_all_at(&[0; STORED_BYTES as usize], SEGMENT_HEADER_BYTES + (lost - 1) * STORED_BYTES).unwrap();
    disk
}

#[test]
fn a_hole_above_the_synced_records_ends_the_journal_after_a_power_loss() {
    let disk = with_hole(6);
    let (journal, recovered, records) = open(&disk, options(2)).unwrap();
    assert_eq!((records.len(), recovered.torn_records, recovered.torn_bytes), (5, 4, 5 * STORED_BYTES));
    // The same lengths again: without zeroing, the old 7 to 10 would fit behind the new 6.
    assert_eq!(journal.append(Class::Metadata, &[&[0xee; 200]]).unwrap(), Seq(6));
    drop(journal);
    let (_, recovered, records) = open(&disk, options(2)).unwrap();
    assert_eq!((recovered.last_seq, recovered.torn_bytes), (Seq(6), 0));
    assert_eq!(records[5].1, [0xee; 200]);
}

#[test]
fn a_hole_is_damage_where_nothing_can_have_been_torn() {
    for (lost, boot) in [(6, 1), (2, 1), (2, 2), (3, 0)] {
        let Err(JournalError::Corrupt { seq, .. }) = open(&with_hole(lost), options(boot)) else {
            panic!("{lost} {boot}")
        };
        assert_eq!(seq, Seq(lost));
    }
}

#[test]
fn a_write_cut_short_by_kill_is_dropped() {
    let disk = MemoryDisk::default();
    append(&open(&disk, options(1)).unwrap().0, 3, 200);
    let (file, bytes) = whole(&disk, &segment(1));
    let last = SEGMENT_HEADER_BYTES + 2 * STORED_BYTES;
    for cut in [1, 20, RECORD_HEADER_BYTES as u64, STORED_BYTES - 1] {
        file.write_all_at(&bytes[last as usize..], last).unwrap();
        file.write_all_at(&vec![0; (STORED_BYTES - cut) as usize], last + cut).unwrap();
        let (journal, recovered, records) = open(&disk, options(1)).unwrap();
        assert_eq!((records.len(), journal.written()), (2, Seq(2)), "cut at {cut}");
        assert_eq!(recovered.torn_bytes, if cut == 1 { 0 } else { STORED_BYTES });
    }
}

#[test]
fn old_records_of_a_recycled_segment_are_never_taken_for_new_ones() {
    let disk = MemoryDisk::default();
    let (mut journal, ..) = open(&disk, options(1)).unwrap();
    let mut expected = 0;
    for round in 0..40 {
        expected = append(&journal, 23, 200).0;
        journal.sync().unwrap();
        journal.free_before(journal.written()).unwrap();
        drop(journal);
        let (again, recovered, records) = open(&disk, options(round)).unwrap();
        assert_eq!((recovered.last_seq, recovered.torn_bytes), (Seq(expected), 0));
        assert!(records.iter().all(|(seq, bytes)| *bytes == payload(*seq, 200)));
        assert!(again.usage().spares <= 2);
        journal = again;
    }
    assert_eq!(expected, 40 * 23);
    assert!(disk.list(Path::new(DIR)).unwrap().len() <= 4);
}
