//! Serializability: what concurrent transactions saw must be what they would have seen one after the other, in log order.

use super::*;
use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*};
use std::{collections::BTreeMap, thread};

const GROUPS: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Get(u64, u8),
    Scan(u64),
    ScanAll,
    Put(u64, u8, u8),
    Delete(u64, u8),
    Merge(u64, u8, u8),
    /// Puts a digest of all that was seen so far, so that a wrong read becomes a wrong write.
    PutSeen(u64, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (group, name) = (|| 0..GROUPS, || 0..4u8);
    prop_oneof![
        4 => (group(), name()).prop_map(|(g, n)| Step::Get(g, n)),
        2 => group().prop_map(Step::Scan),
        1 => Just(Step::ScanAll),
        3 => (group(), name(), any::<u8>()).prop_map(|(g, n, v)| Step::Put(g, n, v)),
        2 => (group(), name()).prop_map(|(g, n)| Step::Delete(g, n)),
        3 => (group(), name(), any::<u8>()).prop_map(|(g, n, v)| Step::Merge(g, n, v)),
        3 => (group(), name()).prop_map(|(g, n)| Step::PutSeen(g, n)),
    ]
}

/// Does not commute on purpose: the serial run must apply merges in the same order.
fn mix(by: u8) -> Box<dyn Merge> {
    Box::new(move |current: Option<&[u8]>| mixed(current, by))
}

fn mixed(current: Option<&[u8]>, by: u8) -> Option<Vec<u8>> {
    let value = current.map_or(0, |bytes| bytes[0]);
    let next = value.wrapping_mul(3).wrapping_add(by);
    (next != 0).then(|| vec![next])
}

type Seen = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn digest(seen: &Seen) -> u8 {
    seen.iter()
        .flat_map(|(key, value)| key.iter().chain(value.iter().flatten()))
        .fold(1, |sum, byte| sum.wrapping_mul(31) ^ byte)
}

fn range_of(step: &Step) -> (Vec<u8>, Vec<u8>) {
    match step {
        Step::Scan(group) => (key(b'd', *group, b""), key(b'd', group + 1, b"")),
        _ => (vec![b'd'], vec![b'e']),
    }
}

fn run(txn: &mut Txn<'_>, steps: &[Step]) -> Result<Seen, MetaError> {
    let mut seen = Seen::new();
    for step in steps {
        match step {
            Step::Get(g, n) => {
                let key = key(b'd', *g, &[*n]);
                let value = txn.get(&key)?.map(|value| value.to_vec());
                seen.push((key, value));
            }
            Step::Scan(_) | Step::ScanAll => {
                let (from, to) = range_of(step);
                txn.scan(&from, &to, &mut |key, value| {
                    seen.push((key.to_vec(), Some(value.to_vec())));
                    ControlFlow::Continue(())
                })?;
            }
            Step::Put(g, n, v) => txn.put(&key(b'd', *g, &[*n]), [*v]),
            Step::Delete(g, n) => txn.delete(&key(b'd', *g, &[*n])),
            Step::Merge(g, n, v) => txn.merge(&key(b'd', *g, &[*n]), mix(*v)),
            Step::PutSeen(g, n) => txn.put(&key(b'd', *g, &[*n]), [digest(&seen)]),
        }
        thread::yield_now();
    }
    Ok(seen)
}

/// The same on a map.
fn run_serially(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, steps: &[Step]) -> Seen {
    let mut seen = Seen::new();
    for step in steps {
        match step {
            Step::Get(g, n) => {
                let key = key(b'd', *g, &[*n]);
                let value = map.get(&key).cloned();
                seen.push((key, value));
            }
            Step::Scan(_) | Step::ScanAll => {
                let (from, to) = range_of(step);
                seen.extend(map.range(from..to).map(|(key, value)| (key.clone(), Some(value.clone()))));
            }
            Step::Put(g, n, v) => drop(map.insert(key(b'd', *g, &[*n]), vec![*v])),
            Step::Delete(g, n) => drop(map.remove(&key(b'd', *g, &[*n]))),
            Step::Merge(g, n, v) => {
                let key = key(b'd', *g, &[*n]);
                match mixed(map.get(&key).map(Vec::as_slice), *v) {
                    Some(value) => drop(map.insert(key, value)),
                    None => drop(map.remove(&key)),
                }
            }
            Step::PutSeen(g, n) => drop(map.insert(key(b'd', *g, &[*n]), vec![digest(&seen)])),
        }
    }
    seen
}

/// One that committed: its number, whether it wrote (and so owns that number), and which one it was.
type Done = (Seq, bool, usize, Seen);

fn run_all(store: &MetaStore, threads: &[Vec<Vec<Step>>]) -> Vec<(Done, Vec<Step>)> {
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for transactions in threads {
            scope.spawn(|| {
                for (index, steps) in transactions.iter().enumerate() {
                    let mut wrote = false;
                    let committed = store
                        .transact(|txn| {
                            let seen = run(txn, steps)?;
                            wrote = !txn.is_read_only();
                            Ok::<_, MetaError>(seen)
                        })
                        .expect("transact");
                    done.lock().push(((committed.seq, wrote, index, committed.value), steps.clone()));
                }
            });
        }
    });
    let mut done = done.into_inner();
    // A reader at 5 comes after the writer 5.
    done.sort_by_key(|((seq, wrote, ..), _)| (*seq, !*wrote));
    done
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn concurrent_transactions_have_a_serial_order(
        threads in vec(vec(vec(step(), 1..6), 20..60), 3),
        retries_max in 0..4u32,
    ) {
        let tables = Arc::new(MemoryTables::default());
        let options = Options { retries_max, ..Options::default() };
        let store = MetaStore::new(tables.clone(), Arc::new(MemoryLog::default()), Seq(0), options);
        let mut map = BTreeMap::new();
        for ((seq, _, index, seen), steps) in run_all(&store, &threads) {
            prop_assert_eq!(run_serially(&mut map, &steps), seen, "transaction {} at {}", index, seq);
        }
        let last: BTreeMap<_, _> = contents(&*tables, store.visible()).into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        prop_assert_eq!(last, map);
    }
}

#[test]
fn transfers_keep_the_sum_and_every_reader_sees_it() {
    const ACCOUNTS: u64 = 10;
    let dir = tempfile::tempdir().expect("directory");
    let tables = Arc::new(LsmTables::open(dir.path(), LsmOptions::default()).expect("open"));
    let options = Options { memtable_bytes: 20_000, ..Options::default() };
    let store = Arc::new(MetaStore::new(tables, Arc::new(MemoryLog::default()), Seq(0), options));
    let checkpointer = Checkpointer::start(store.clone(), Box::new(|_| ())).expect("thread");
    let account = |n: u64| key(b'a', n % ACCOUNTS, b"");
    store
        .transact(|txn| {
            (0..ACCOUNTS).for_each(|n| txn.put(&account(n), 100u64.to_le_bytes()));
            Ok::<_, MetaError>(())
        })
        .expect("transact");
    let transfer = |n: u64| {
        store.transact(|txn| {
            let (from, to) = (account(n), account(n * 7 + 1));
            let (has, gets) = (count(txn.get(&from)?.as_deref()), count(txn.get(&to)?.as_deref()));
            if has > 0 && from != to {
                txn.put(&from, (has - 1).to_le_bytes());
                txn.put(&to, (gets + 1).to_le_bytes());
                txn.merge(b"transfers", add(1));
            }
            Ok::<_, MetaError>(())
        })
    };
    let sum = || {
        let (snapshot, mut sum) = (store.snapshot(), 0);
        let mut visit = |_: &[u8], value: &[u8]| {
            sum += count(Some(value));
            ControlFlow::Continue(())
        };
        snapshot.scan(b"a", b"b", &mut visit).expect("scan");
        sum
    };
    thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || (0..3000).for_each(|n| transfer(n * 31 + seed).map(drop).expect("transfer")));
        }
        scope.spawn(|| (0..500).for_each(|_| assert_eq!(sum(), 100 * ACCOUNTS)));
    });
    assert_eq!(sum(), 100 * ACCOUNTS);
    let transfers = count(store.snapshot().get(b"transfers").expect("get").as_deref());
    assert_eq!(transfers, store.visible().0 - 1, "one merge for each record after the first");
    assert_eq!(checkpointer.shutdown().expect("shutdown"), store.visible());
}

#[test]
fn counters_count_every_increment_with_and_without_merge() {
    let (store, ..) = memory();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let both = store.transact(|txn| {
                        let n = count(txn.get(b"read")?.as_deref());
                        thread::yield_now();
                        txn.put(b"read", (n + 1).to_le_bytes());
                        txn.merge(b"merged", add(1));
                        Ok::<_, MetaError>(())
                    });
                    both.expect("transact");
                }
            });
        }
    });
    for name in [b"read".as_slice(), b"merged"] {
        assert_eq!(count(store.snapshot().get(name).expect("get").as_deref()), 1500);
    }
}
