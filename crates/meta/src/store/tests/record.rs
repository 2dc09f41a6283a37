//! The log record.

use super::*;
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;

type Attachments = Vec<(Vec<u8>, Vec<u8>)>;

fn attachments() -> impl Strategy<Value = Attachments> {
    vec((vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..200)), 0..4)
}

fn log_one(writes: &[(u8, Option<Vec<u8>>)], attachments: &Attachments) -> (LogClass, Vec<u8>) {
    let (store, _, log) = memory();
    store
        .transact(|txn| {
            txn.put(b"always", b"");
            for (key, value) in writes {
                match value {
                    Some(value) => txn.put(&[*key], value.clone()),
                    None => txn.delete(&[*key]),
                }
            }
            attachments.iter().for_each(|(header, data)| txn.attach(header.clone(), data));
            Ok::<_, MetaError>(())
        })
        .expect("transact");
    let (_, class, bytes) = log.records().pop().expect("a record");
    (class, bytes)
}

proptest! {
    #[test]
    fn what_is_logged_is_replayed(
        writes in vec((1..255u8, any::<Option<Vec<u8>>>()), 0..60),
        attachments in attachments(),
    ) {
        let (class, bytes) = log_one(&writes, &attachments);
        let data = attachments.iter().any(|(_, data)| !data.is_empty());
        prop_assert_eq!(class, if data { LogClass::Data } else { LogClass::Metadata });

        let tables = MemoryTables::default();
        let mut seen = Vec::new();
        replay(&tables, Seq(9), &bytes, &mut |seq, header, data| {
            assert_eq!(seq, Seq(9));
            seen.push((header.to_vec(), data.to_vec()));
        })?;
        prop_assert_eq!(seen, attachments);
        let last: BTreeMap<_, _> = writes.into_iter().collect();
        for (key, value) in last {
            prop_assert_eq!(tables.get(&[key], Seq(9))?, value.map(Value::from));
        }
    }

    #[test]
    fn any_bytes_parse_or_fail(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Record::parse(&bytes);
    }

    #[test]
    fn a_record_cut_short_or_extended_fails_and_a_changed_one_does_not_panic(
        writes in vec((1..255u8, any::<Option<Vec<u8>>>()), 1..20),
        attachments in attachments(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (_, mut bytes) = log_one(&writes, &attachments);
        let place = place.index(bytes.len());
        prop_assert!(Record::parse(&bytes[..place]).is_err());
        prop_assert!(Record::parse(&[&bytes[..], &[byte]].concat()).is_err());
        bytes[place] = byte;
        let _ = Record::parse(&bytes);
    }
}

#[test]
fn replay_skips_batches_that_are_persisted_but_hands_out_their_attachments() {
    let (_, bytes) = log_one(&[], &vec![(vec![1], vec![2])]);
    let tables = MemoryTables::default();
    tables.apply(Seq(5), &Batch::default());
    tables.rotate();
    tables.flush(Seq(5)).expect("flush");
    for (seq, applied) in [(5, None), (6, Some(Value::default()))] {
        let mut attachments = 0;
        replay(&tables, Seq(seq), &bytes, &mut |_, _, _| attachments += 1).expect("replay");
        assert_eq!(attachments, 1);
        assert_eq!(tables.get(b"always", Seq(9)).expect("get"), applied);
    }
}

#[test]
fn a_record_of_a_newer_version_is_named_as_such() {
    assert_eq!(Record::parse(&[2, 0, 0, 0, 0, 0, 0, 0]).unwrap_err(), RecordError::Version(2));
    assert_eq!(Record::parse(&[1, 0, 0, 0, 255, 255, 255, 255]).unwrap_err(), RecordError::Length);
}
