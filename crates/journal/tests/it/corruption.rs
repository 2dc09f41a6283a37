//! Damage to durable records must be seen, never served and never mistaken for a torn tail.

use super::*;
use proptest::prelude::*;
use sluice_journal::{RECORD_HEADER_BYTES, Report, SEGMENT_HEADER_BYTES};

const STORED_BYTES: u64 = (RECORD_HEADER_BYTES + 100).next_multiple_of(8) as u64;

fn corrupt_at(result: Result<(Journal, Recovered, Records), JournalError>) -> (u64, u64, Seq) {
    match result {
        Err(JournalError::Corrupt { segment, offset, seq, path, .. }) => {
            assert_eq!(path, super::segment(segment));
            (segment, offset, seq)
        }
        Err(error) => panic!("{error}"),
        Ok((_, recovered, _)) => panic!("not seen: {recovered:?}"),
    }
}

/// Three segments of records of 100 bytes, all synced one by one, and where the last one ends.
fn three_segments() -> (MemoryDisk, Records, u64) {
    let disk = MemoryDisk::default();
    let (journal, ..) = open(&disk, options(1)).unwrap();
    while journal.usage().segments < 3 || journal.usage().used_bytes < 40 << 10 {
        append(&journal, 1, 100);
        journal.sync().unwrap();
    }
    journal.note_synced().unwrap();
    let end = journal.usage().used_bytes - (32 << 10);
    drop(journal);
    let records = open(&disk, options(1)).unwrap().2;
    (disk, records, end)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Also in another boot, where unsynced tails are expected.
    #[test]
    fn any_flipped_bit_of_durable_records_is_seen(number in 1..4u64, offset in 0..16_384u64, boot in 0..3u8) {
        let (disk, records, end) = three_segments();
        prop_assert!(disk.flip_bit(&segment(number), offset));
        match open(&disk, options(boot)) {
            // Room that holds nothing yet, padding of the header page, or a mark that is only evidence.
            Ok((_, _, found)) => {
                prop_assert_eq!(found, records);
                let closed_end = (16 << 10) - ((16 << 10) - SEGMENT_HEADER_BYTES) % STORED_BYTES;
                let records_end = if number == 3 { end } else { closed_end };
                let unused = (64..SEGMENT_HEADER_BYTES).contains(&offset) || offset >= records_end;
                prop_assert!(unused, "{} {}", number, offset);
            }
            Err(JournalError::Corrupt { segment, offset: found, .. }) => {
                prop_assert_eq!(segment, number);
                prop_assert!(found <= offset && offset < found + STORED_BYTES.max(64));
            }
            Err(JournalError::NewerFormat { .. }) => prop_assert!((8..12).contains(&offset)),
            Err(JournalError::WrongVolume { .. }) => prop_assert!(false, "the header has a checksum"),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn a_damaged_record_in_the_middle_is_repaired_by_dropping_the_rest() {
    let (disk, records, _) = three_segments();
    let offset = SEGMENT_HEADER_BYTES + 5 * STORED_BYTES;
    let before = (SEGMENT_HEADER_BYTES..16 << 10).step_by(STORED_BYTES as usize).count() as u64 - 1;
    disk.flip_bit(&segment(2), offset + 50);
    let seq = Seq(before + 5 + 1);
    assert_eq!(corrupt_at(open(&disk, options(1))), (2, offset, seq));

    let disk_dyn: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = Journal::truncate_at_corruption(disk_dyn.clone(), options(1)).unwrap();
    let expected = Report { dropped_from: Some(seq), removed_segments: 1, zeroed_bytes: (16 << 10) - offset };
    assert_eq!(report, expected);
    for disk in [disk.power_loss(1), disk.power_loss(2), disk] {
        let (journal, recovered, found) = open(&disk, options(1)).unwrap();
        assert_eq!(found, records[..seq.0 as usize - 1]);
        assert_eq!(recovered.torn_bytes, 0);
        assert_eq!(append(&journal, 300, 10), Seq(seq.0 + 299));
        drop(journal);
        assert_eq!(open(&disk, options(1)).unwrap().1.last_seq, Seq(seq.0 + 299));
    }
    assert_eq!(Journal::truncate_at_corruption(disk_dyn, options(1)).unwrap(), Report::default());
}

#[test]
fn a_missing_segment_is_seen_and_repaired() {
    let (disk, records, _) = three_segments();
    disk.remove(&segment(2)).unwrap();
    let (number, offset, seq) = corrupt_at(open(&disk, options(1)));
    assert_eq!((number, offset), (2, 0));
    let report = Journal::truncate_at_corruption(Arc::new(disk.clone()), options(1)).unwrap();
    assert_eq!((report.dropped_from, report.removed_segments), (Some(seq), 1));
    let (journal, _, found) = open(&disk, options(1)).unwrap();
    assert_eq!(found, records[..seq.0 as usize - 1]);
    assert_eq!(append(&journal, 300, 30), Seq(seq.0 + 299));
}

#[test]
fn a_damaged_first_header_is_seen_and_repaired() {
    let (disk, ..) = three_segments();
    disk.flip_bit(&segment(1), 20);
    assert_eq!(corrupt_at(open(&disk, options(1))).0, 1);
    let report = Journal::truncate_at_corruption(Arc::new(disk.clone()), options(1)).unwrap();
    assert_eq!(report.removed_segments, 3);
    let restart = JournalOptions { first_seq: Seq(1000), ..options(1) };
    let (journal, recovered, found) = open(&disk, restart).unwrap();
    assert_eq!((recovered.last_seq, found.len()), (Seq(999), 0));
    assert_eq!(append(&journal, 1, 1), Seq(1000));
}

#[test]
fn a_short_segment_in_the_middle_is_seen() {
    let (disk, ..) = three_segments();
    disk.open(&segment(2)).unwrap().set_size(SEGMENT_HEADER_BYTES + 10 * STORED_BYTES + 3).unwrap();
    assert_eq!(corrupt_at(open(&disk, options(9))).1, SEGMENT_HEADER_BYTES + 10 * STORED_BYTES);
}

/// Where it was cut off nothing tells of records that were there: in another boot what is left would look like all there was.
#[test]
fn a_last_segment_that_was_cut_short_is_seen_and_repaired() {
    for keep in [
        100,
        SEGMENT_HEADER_BYTES,
        SEGMENT_HEADER_BYTES + 4 * STORED_BYTES,
        SEGMENT_HEADER_BYTES + 4 * STORED_BYTES + 9,
    ] {
        let disk = MemoryDisk::default();
        let (journal, ..) = open(&disk, options(1)).unwrap();
        append(&journal, 10, 100);
        journal.sync().unwrap();
        drop(journal);
        disk.open(&segment(1)).unwrap().set_size(keep).unwrap();
        let error = open(&disk, options(2)).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("{keep} of 16384 bytes")) && text.contains("0000000000000001.log"), "{text}");
        let kept = keep.saturating_sub(SEGMENT_HEADER_BYTES) / STORED_BYTES;
        assert_eq!(corrupt_at(Err(error)).2, Seq(kept + 1));
        let report = Journal::truncate_at_corruption(Arc::new(disk.clone()), options(2)).unwrap();
        assert_eq!(report.dropped_from, Some(Seq(kept + 1)));
        let (journal, recovered, found) = open(&disk, options(2)).unwrap();
        assert_eq!((found.len() as u64, recovered.last_seq), (kept, Seq(kept)));
        // It has its room again.
        assert_eq!(whole(&disk, &segment(1)).1.len(), 16 << 10);
        append(&journal, 300, 100);
        drop(journal);
        assert_eq!(open(&disk, options(2)).unwrap().1.last_seq, Seq(kept + 300));
    }
}

/// The last batch has no later record to vouch for it; the mark of an idle journal does.
#[test]
fn a_mark_tells_damage_of_the_last_batch_from_a_torn_one() {
    for marked in [false, true] {
        let disk = MemoryDisk::default();
        let (journal, ..) = open(&disk, options(1)).unwrap();
        append(&journal, 10, 100);
        journal.sync().unwrap();
        if marked {
            journal.note_synced().unwrap();
        }
        disk.flip_bit(&segment(1), SEGMENT_HEADER_BYTES + 4 * STORED_BYTES + 60);
        let result = open(&disk, options(2));
        if marked {
            assert_eq!(corrupt_at(result).2, Seq(5));
            let report = Journal::truncate_at_corruption(Arc::new(disk.clone()), options(2)).unwrap();
            assert_eq!(report.dropped_from, Some(Seq(5)));
            // What the mark said of the dropped records must not accuse the journal again.
            assert_eq!(open(&disk, options(2)).unwrap().2.len(), 4);
        } else {
            let (_, recovered, records) = result.unwrap();
            assert_eq!((records.len(), recovered.torn_records), (4, 5));
        }
    }
}
