use super::*;
use std::cell::Cell;

type Outcome<T> = Result<T, MetaError>;

#[test]
fn a_transaction_sees_its_own_writes_and_commits_them_as_one_record() -> Outcome<()> {
    let (store, _, log) = memory();
    let (a, b, c) = (key(b'i', 1, b""), key(b'd', 1, b"b"), key(b'd', 1, b"c"));
    store.transact(|txn| {
        txn.put(&c, b"old");
        Outcome::Ok(())
    })?;
    let committed = store.transact(|txn| {
        txn.put(&a, b"1");
        txn.put(&b, vec![2; 100]);
        txn.delete(&c);
        txn.merge(&a, Box::new(|now: Option<&[u8]>| Some([now.unwrap(), b"+"].concat())));
        assert_eq!(txn.get(&a)?.as_deref(), Some(b"1+".as_slice()));
        assert_eq!(txn.get(&c)?, None);
        let mut seen = Vec::new();
        txn.scan(&key(b'd', 1, b""), &key(b'd', 2, b""), &mut |key, _| {
            seen.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Outcome::Ok(seen)
    })?;
    assert_eq!(committed, Committed { value: vec![b.clone()], seq: Seq(2) });
    assert_eq!(log.last(), Seq(2));
    let snapshot = store.snapshot();
    assert_eq!(snapshot.get(&a)?.as_deref(), Some(b"1+".as_slice()));
    assert_eq!(snapshot.get(&b)?.as_deref(), Some([2; 100].as_slice()));
    assert_eq!(snapshot.get(&c)?, None);
    Ok(())
}

#[test]
fn a_transaction_without_writes_logs_nothing() -> Outcome<()> {
    let (store, _, log) = memory();
    assert_eq!(store.transact(|txn| txn.get(b"a"))?, Committed { value: None, seq: Seq(0) });
    assert_eq!(log.last(), Seq(0));
    Ok(())
}

#[test]
fn a_conflicting_read_runs_the_closure_again() -> Outcome<()> {
    let (store, _, _) = memory();
    let runs = Cell::new(0);
    let committed = store.transact(|txn| {
        runs.set(runs.get() + 1);
        let seen = txn.get(b"a")?;
        if runs.get() == 1 {
            store.transact(|other| {
                other.put(b"a", b"theirs");
                Outcome::Ok(())
            })?;
        }
        txn.put(b"b", b"mine");
        Outcome::Ok(seen)
    })?;
    assert_eq!((runs.get(), committed.value.as_deref(), committed.seq), (2, Some(b"theirs".as_slice()), Seq(2)));
    Ok(())
}

#[test]
fn a_peek_and_a_read_of_another_key_do_not_conflict() -> Outcome<()> {
    let (store, _, _) = memory();
    let runs = Cell::new(0);
    store.transact(|txn| {
        runs.set(runs.get() + 1);
        txn.peek(b"a")?;
        txn.get(b"b")?;
        store.transact(|other| {
            other.put(b"a", b"theirs");
            Outcome::Ok(())
        })?;
        txn.put(b"b", b"mine");
        Outcome::Ok(())
    })?;
    assert_eq!(runs.get(), 1);
    Ok(())
}

#[test]
fn a_key_that_appears_in_a_scanned_group_is_a_conflict() -> Outcome<()> {
    let (store, _, _) = memory();
    for (group, runs_expected) in [(7, 2), (8, 1)] {
        let runs = Cell::new(0);
        store.transact(|txn| {
            runs.set(runs.get() + 1);
            let mut entries = 0;
            txn.scan(&key(b'd', 7, b""), &key(b'd', 8, b""), &mut |_, _| {
                entries += 1;
                ControlFlow::Continue(())
            })?;
            if runs.get() == 1 {
                store.transact(|other| {
                    other.put(&key(b'd', group, b"phantom"), b"");
                    Outcome::Ok(())
                })?;
            }
            txn.put(b"entries", [entries]);
            Outcome::Ok(())
        })?;
        assert_eq!(runs.get(), runs_expected, "group {group}");
    }
    assert_eq!(store.snapshot().get(b"entries")?.as_deref(), Some([1].as_slice()));
    Ok(())
}

#[test]
fn merges_into_one_key_do_not_conflict() -> Outcome<()> {
    let (store, _, _) = memory();
    let runs = Cell::new(0);
    store.transact(|txn| {
        runs.set(runs.get() + 1);
        txn.merge(b"n", add(1));
        store.transact(|other| {
            other.merge(b"n", add(10));
            other.merge(b"n", add(100));
            Outcome::Ok(())
        })?;
        Outcome::Ok(())
    })?;
    assert_eq!((runs.get(), count(store.snapshot().get(b"n")?.as_deref())), (1, 111));
    Ok(())
}
