use super::*;
use proptest::{collection::vec, prelude::*};
use std::{collections::BTreeMap, ops::ControlFlow};

fn batch(entries: &[(u8, Option<u8>)]) -> Batch {
    let mut batch = Batch::default();
    for (key, value) in entries {
        // Values of some size, so that tables of 1 KiB make several levels.
        batch.set([*key + 1].into(), value.map(|value| Value::from(vec![value; 60])));
    }
    batch
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<(u8, Option<u8>)>),
    Rotate,
    Flush,
    Hold,
    Release,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec((0..24u8, any::<Option<u8>>()), 0..6).prop_map(Step::Apply),
        3 => Just(Step::Rotate),
        3 => Just(Step::Flush),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
        1 => Just(Step::Reopen),
    ]
}

/// The tables under test, and every state that they have been in.
struct Run {
    dir: tempfile::TempDir,
    tables: LsmTables,
    states: Vec<BTreeMap<u8, u8>>,
    batches: Vec<Batch>,
    held: Vec<u64>,
}

impl Run {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let tables = open(dir.path());
        Self { dir, tables, states: vec![BTreeMap::new()], batches: vec![Batch::default()], held: Vec::new() }
    }

    fn last(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Apply(entries) => {
                let mut state = self.states.last().expect("a state").clone();
                for (key, value) in &entries {
                    match value {
                        Some(value) => state.insert(*key, *value),
                        None => state.remove(key),
                    };
                }
                self.states.push(state);
                self.batches.push(batch(&entries));
                self.tables.apply(Seq(self.last()), &self.batches[self.batches.len() - 1]);
            }
            Step::Rotate => self.tables.rotate(),
            Step::Flush => {
                let oldest = self.held.iter().copied().min().unwrap_or(self.last());
                self.tables.flush(Seq(oldest)).expect("flush");
            }
            Step::Hold => self.held.push(self.last()),
            Step::Release => drop(self.held.pop()),
            Step::Reopen => {
                self.tables = open(self.dir.path());
                self.held.clear();
                for seq in self.tables.persisted().0 + 1..=self.last() {
                    self.tables.apply(Seq(seq), &self.batches[seq as usize]);
                }
            }
        }
    }

    fn check(&self) {
        for at in self.held.iter().copied().chain([self.last()]) {
            let (expected, at) = (&self.states[at as usize], Seq(at));
            let mut seen = BTreeMap::new();
            let mut visit = |key: &[u8], value: &[u8]| {
                assert_eq!(value, [value[0]; 60]);
                assert!(seen.insert(key[0] - 1, value[0]).is_none());
                ControlFlow::Continue(())
            };
            self.tables.scan(&[], &[255], at, &mut visit).expect("scan");
            assert_eq!(&seen, expected, "scan at {at:?}");
            for key in 0..24 {
                let value = self.tables.get(&[key + 1], at).expect("get").map(|value| value[0]);
                assert_eq!(value, expected.get(&key).copied(), "key {key} at {at:?}");
            }
        }
    }
}

fn open(dir: &Path) -> LsmTables {
    LsmTables::open(dir, LsmOptions { table_bytes: 1 << 10, ..LsmOptions::default() }).expect("open")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn held_snapshots_read_the_same_through_flushes_compactions_and_restarts(steps in vec(step(), 1..120)) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
            run.check();
        }
    }
}

#[test]
fn the_position_survives_the_tombstone_that_carried_it() {
    let dir = tempfile::tempdir().expect("directory");
    let tables = open(dir.path());
    tables.apply(Seq(1), &batch(&[(1, Some(1)), (2, Some(2))]));
    tables.apply(Seq(2), &batch(&[(1, None)]));
    tables.apply(Seq(3), &batch(&[]));
    tables.rotate();
    assert_eq!(tables.flush(Seq(3)).expect("flush"), Seq(3));
    tables.tree.major_compact(1 << 20, bound(Seq(3))).expect("compact");
    drop(tables);
    let tables = open(dir.path());
    assert_eq!((tables.persisted(), tables.applied()), (Seq(3), Seq(3)));
    assert_eq!(tables.get(&[2], Seq(3)).expect("get"), None);
    assert!(tables.get(&[3], Seq(3)).expect("get").is_some());
}

#[test]
fn nothing_is_persisted_before_a_flush_and_memory_is_given_back_after_it() {
    let dir = tempfile::tempdir().expect("directory");
    let tables = open(dir.path());
    for seq in 1..=100 {
        tables.apply(Seq(seq), &batch(&[(seq as u8, Some(0))]));
        if seq % 10 == 0 {
            tables.rotate();
            assert!(tables.persisted() < Seq(seq));
            tables.flush(Seq(seq)).expect("flush");
            assert_eq!((tables.persisted(), tables.memtable_bytes()), (Seq(seq), 0));
            assert_eq!((tables.tree.version_free_list_len(), tables.tree.sealed_memtable_count()), (0, 0));
        }
    }
}

/// A stream that is read while everything behind it is changed, flushed and compacted away shows what was there when it began, also of keys that are
/// held beside the memtable.
#[test]
fn a_stream_stays_of_its_moment() {
    let dir = tempfile::tempdir().expect("directory");
    let tables = open(dir.path());
    let mut seq = 0;
    let mut apply = |value: u64, keys: std::ops::Range<u64>| {
        let mut batch = Batch::default();
        for key in keys {
            let mut value = value.to_be_bytes().to_vec();
            value.resize(60, 0);
            batch.put([b"n".as_slice(), &key.to_be_bytes()].concat(), value);
        }
        batch.put(b"v".to_vec(), value.to_be_bytes().to_vec());
        seq += 1;
        tables.apply(Seq(seq), &batch);
    };
    const KEYS: u64 = 200;
    let turn = |tables: &LsmTables| {
        tables.rotate();
        tables.flush(tables.applied()).expect("flushed");
    };
    apply(1, 0..KEYS);
    turn(&tables);
    apply(2, 0..KEYS / 2);
    let mut stream = tables.stream(&[1], &[0xff]).enumerate();
    for (at, entry) in stream.by_ref().take(KEYS as usize) {
        let (key, value) = entry.expect("sound");
        let key = u64::from_be_bytes(key[1..].try_into().expect("a number"));
        let expected = if key < KEYS / 2 { 2 } else { 1 };
        assert_eq!((key, &value[..8]), (at as u64, &u64::to_be_bytes(expected)[..]));
        // What it has read and what it has not.
        apply(3 + key, key / 2..KEYS);
        turn(&tables);
    }
    let (_, last) = stream.next().expect("the value of the volume");
    assert_eq!(*last.expect("sound").1, 2_u64.to_be_bytes());
    assert!(stream.next().is_none());
}

/// What a key of a held table was in between is nowhere: who asks as of then gets the newest, never an older one and never nothing.
#[test]
fn of_held_keys_every_reader_sees_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let tables = open(dir.path());
    let put = |seq: u64, key: &[u8], value: &[u8]| {
        let mut batch = Batch::default();
        batch.set(key.into(), Some(value.into()));
        tables.apply(Seq(seq), &batch);
    };
    let scanned = |at: u64| {
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        tables.scan(b"o", b"p", Seq(at), &mut visit).unwrap();
        found
    };
    let newest = || tables.get(b"o1", Seq(1)).unwrap().map(|value| value.to_vec());
    put(1, b"o1", b"first");
    put(2, b"i", b"other");
    put(3, b"o1", b"third");
    assert_eq!(newest(), Some(b"third".to_vec()));
    for step in 0..3 {
        match step {
            0 => {}
            1 => tables.rotate(),
            _ => drop(tables.flush(Seq(1)).unwrap()),
        }
        assert_eq!(scanned(1), [(b"o1".to_vec(), b"third".to_vec())], "{step}");
        assert_eq!(newest(), Some(b"third".to_vec()), "{step}");
    }
    put(4, b"o1", b"fourth");
    assert_eq!((scanned(1).len(), newest()), (1, Some(b"fourth".to_vec())));
}
