//! What is dumped is loaded, whatever it is; what was changed on the way is refused where it was.

use super::{
    line::{Bytes, Run, State, Text, Time},
    *,
};
use crate::store::{MemoryLog, MemoryTables, Options};
use proptest::prelude::*;
use sluice_base::ObjectId;
use std::{ops::ControlFlow, sync::Arc};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Numbers and bytes that records are made of.
#[derive(Clone, Debug)]
struct Stuff {
    kind: u8,
    a: u64,
    b: u64,
    c: u32,
    text: Vec<u8>,
    secs: i64,
    nanos: u32,
}

fn stuff() -> impl Strategy<Value = Stuff> {
    let text = prop_oneof![
        "[ -~é\u{0}\"\\\\\n]{0,40}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..200)
    ];
    let nanos = prop_oneof![Just(0_u32), 0..1_000_000_000_u32];
    let number = || prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    (0..16_u8, number(), number(), any::<u32>(), text, any::<i64>(), nanos)
        .prop_map(|(kind, a, b, c, text, secs, nanos)| Stuff { kind, a, b, c, text, secs, nanos })
}

/// The `n`-th record of a volume, with a key of its own.
fn line(n: u64, stuff: &Stuff) -> Line {
    let Stuff { kind, a, b, c, text, secs, nanos } = stuff.clone();
    let (time, zero, ino) = (Time(secs, nanos), Time(0, 0), n << 32 | u64::from(c));
    let name = Text([&text[..], &n.to_be_bytes()].concat());
    let span = u32::try_from(sluice_base::limits::SPAN_BYTES).expect("it fits");
    let object = ObjectId([c as u8 | 1; 16]).to_string();
    match kind {
        0 => Line::Body { ino, bytes: Bytes(text) },
        1 => Line::Name { dir: a, cookie: n, name, ino: b, kind: c },
        2 | 3 => {
            let hole = Run::Hole(0, u64::from(c % span) + 1);
            let bytes = Run::Bytes(7, 9, object, c / 2);
            Line::Extents { ino, span: a, sequence: b, runs: if kind == 2 { vec![hole, bytes] } else { vec![] } }
        }
        4 => Line::Inode {
            ino,
            mode: c,
            uid: c ^ 1,
            gid: c ^ 2,
            links: c ^ 3,
            rdev: c ^ 4,
            flags: c as u8,
            size: a,
            held_bytes: b,
            change: a ^ 5,
            parent: b ^ 6,
            atime: time,
            mtime: zero,
            ctime: time,
            btime: Time(-1, 999_999_999),
        },
        5 => Line::Symlink { ino, target: Text(text) },
        6 => Line::Session { session: ino, stored: Bytes(text) },
        7 => {
            let state = [State::Open, State::Sealed, State::Stored, State::Tombstone][c as usize % 4];
            let object = ObjectId(std::array::from_fn(|at| (ino >> (8 * (at % 8))) as u8 | 1)).to_string();
            Line::Object { object, state, session: a, segments: c, stored_bytes: b, live_bytes: a ^ b, since: time }
        }
        8 => Line::Result { session: ino, number: a, stored: Bytes(text) },
        9 => Line::Directory { ino, links: c, entries: a, change: b, mtime: time, ctime: zero },
        10 => Line::Orphan { ino },
        11 => Line::Counter { name: "ids".into(), value: a },
        12 => Line::Life { value: c },
        13 => Line::Usage { bytes: a as i64, inodes: b as i64 },
        14 => Line::Volume { name: Text([b"nodes".to_vec(), n.to_be_bytes().to_vec()].concat()), stored: Bytes(text) },
        _ => Line::Xattr { ino, name, value: Text(text) },
    }
}

fn store(records: &Records) -> MetaStore {
    let tables = Arc::new(MemoryTables::default());
    let mut batch = Batch::default();
    records.iter().for_each(|(key, value)| batch.put(&key[..], &value[..]));
    tables.apply(Seq(1), &batch);
    MetaStore::new(tables, Arc::new(MemoryLog::default()), Seq(1), Options::default())
}

fn header() -> Header {
    Header {
        format: FORMAT,
        volume: "5a".repeat(16),
        store: "file:objects".into(),
        durability: "journal".into(),
        seq: 7,
        wall_secs: 99,
        segment_bytes: 1,
        object_bytes: 2,
        span_bytes: 3,
    }
}

fn dumped(records: &Records) -> Vec<u8> {
    let mut out = Vec::new();
    dump(&store(records), header(), &mut out, |_| {}).expect("dumped");
    out
}

fn loaded(bytes: &[u8]) -> Result<Records, LoadError> {
    let (tables, dump) = (MemoryTables::default(), Dump::open(bytes)?);
    let from = Seq(dump.header().seq);
    let (last, _) = dump.load(&tables, from, |_| {})?;
    assert!(last > from && tables.persisted() == last);
    let mut found = Records::new();
    let all = &mut |key: &[u8], value: &[u8]| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    tables.scan(&[1], &[0xff], last, all).expect("scanned");
    Ok(found)
}

/// One of each kind.
fn of_each_kind() -> Records {
    let stuff = |kind| Stuff { kind, a: 3, b: 4, c: 5, text: b"na\xffme".to_vec(), secs: 6, nanos: 7 };
    (0..16).flat_map(|kind| line(kind.into(), &stuff(kind)).entries().expect("it can be")).collect()
}

proptest! {
    #[test]
    fn what_is_dumped_is_loaded(all in prop::collection::vec(stuff(), 0..60)) {
        let lines = all.iter().enumerate().map(|(n, stuff)| line(n as u64, stuff));
        let records: Records = lines.flat_map(|line| line.entries().expect("it can be")).collect();
        let text = dumped(&records);
        prop_assert_eq!(loaded(&text).expect("sound"), records);
        prop_assert!(std::str::from_utf8(&text).is_ok());
    }

    #[test]
    fn any_line_is_parsed_without_a_panic(json in "\\{\"record\":\"(inode|name|extents|object|xattr|end)\"[ -~]{0,60}\\}", stuff in stuff()) {
        let mut text = Vec::new();
        let mut lines = Lines { out: &mut text, crc: 0 };
        lines.put(&Line::Header(header())).expect("put");
        let json = &json.as_bytes()[..json.len() - 1];
        let crc = chained(lines.crc, json);
        text.extend_from_slice(json);
        text.extend(format!(",\"crc\":\"{crc:08x}\"}}\n").into_bytes());
        prop_assert!(loaded(&text).is_err());
        prop_assert!(loaded(&stuff.text).is_err());
    }
}

#[test]
fn a_dump_can_be_read_by_people() {
    let text = String::from_utf8(dumped(&of_each_kind())).expect("text");
    let name = "\"record\":\"name\",\"dir\":3,\"cookie\":1,\"name\":{\"base64\":\"bmH/bWUAAAAAAAAAAQ==\"},\"ino\":4,\"kind\":5";
    assert!(text.contains(name), "{text}");
    assert!(text.starts_with("{\"record\":\"header\",\"format\":1,\"volume\":\"5a5a"), "{text}");
    assert!(text.contains("\"runs\":[[0,6],[7,9,\"05050505050505050505050505050505\",2]]"), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("{\"record\":\"end\",\"records\":16,\"counts\":{\"body\":1,\"counter\":1"), "{last}");
}

#[test]
fn any_change_is_found_in_its_line() {
    let text = dumped(&of_each_kind());
    let line_of = |at: usize| 1 + text[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
    for at in 0..text.len() {
        let mut bad = text.clone();
        bad[at] ^= 1;
        match loaded(&bad).expect_err("refused") {
            LoadError::Line { line, what } => assert_eq!(line, line_of(at), "byte {at}: {what}"),
            LoadError::Other | LoadError::Newer(_) => assert_eq!(line_of(at), 1, "byte {at}"),
            other => panic!("byte {at}: {other}"),
        }
        match loaded(&text[..at]).expect_err("cut") {
            LoadError::Line { line, what } => {
                assert_eq!(line, line_of(at), "cut at {at}: {what}");
                assert!(what.contains("cut"), "{what}");
            }
            LoadError::Other => assert_eq!(at, 0, "cut at {at}"),
            other => panic!("cut at {at}: {other}"),
        }
    }
}

#[test]
fn lines_that_are_missing_doubled_or_moved_are_found() {
    let text = String::from_utf8(dumped(&of_each_kind())).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let refused = |lines: &[&str], at: u64| {
        let text = lines.join("\n") + "\n";
        match loaded(text.as_bytes()).expect_err("refused") {
            LoadError::Line { line, .. } => assert_eq!(line, at),
            other => panic!("{other}"),
        }
    };
    refused(&[&lines[..4], &lines[5..]].concat(), 5);
    refused(&[&lines[..5], &lines[4..]].concat(), 6);
    refused(&[&lines[..4], &[lines[5], lines[4]], &lines[6..]].concat(), 5);
    refused(&[&lines[..], &["{}"]].concat(), lines.len() as u64 + 1);
    refused(&[&lines[..], &lines[..1]].concat(), lines.len() as u64 + 1);
}

#[test]
fn a_newer_format_and_other_files_are_refused() {
    let text = String::from_utf8(dumped(&of_each_kind())).expect("text");
    let newer = text.replacen("\"format\":1", "\"format\":2", 1);
    assert!(matches!(loaded(newer.as_bytes()), Err(LoadError::Newer(2))));
    for other in ["", "\n", "{}\n", "a line\n", "{\"record\":\"header\",\"format\":\"1\"}\n"] {
        assert!(matches!(loaded(other.as_bytes()), Err(LoadError::Other)), "{other}");
    }
    let long = [b"{\"record\":\"header\",\"format\":".to_vec(), vec![b'1'; LINE_BYTES_MAX + 5]].concat();
    let error = loaded(&long).expect_err("refused").to_string();
    assert_eq!(error, "line 1: it is longer than any line of a dump");
}

#[test]
fn metadata_that_is_not_sound_is_not_dumped() {
    let refused = |records: &Records| dump(&store(records), header(), Vec::new(), |_| {}).expect_err("refused");
    let mut records = of_each_kind();
    let name = records.keys().find(|key| key[0] == b'd').expect("a name").clone();
    records.remove(&name);
    assert!(matches!(refused(&records), DumpError::Names));
    let key = [&b"i"[..], &7_u64.to_be_bytes()].concat();
    let records = Records::from([(key, vec![1, 2, 3])]);
    assert_eq!(
        refused(&records).to_string(),
        "the record with the key i\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07 is damaged or not known to this sluice: `sluice fsck` says more"
    );
    assert!(matches!(refused(&Records::from([(b"z".to_vec(), vec![1])])), DumpError::Damaged(_)));
}
