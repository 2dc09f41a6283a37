//! What was written under a lock that is lost before it was published.

use super::{ROOT, rig::Rig};
use sluice_meta::{Error, rpc::message::Method};
use sluice_vfs::Metadata;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const LEASE_OVER: Duration = Duration::from_secs(16);

/// To be survived: a mount is not heard of for a lease, while it has written under a lock and not published.
#[test]
fn what_was_written_under_a_lost_lock_is_not_published_and_told_once() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let [file, other] = ["file", "other"].map(|name| a.create(ROOT, name));
    a.write(file, b"first");
    assert!(a.lock(file));
    assert!(!b.lock(file));
    a.write_only(file, b"ours");
    a.write_only(other, b"unlocked");
    rig.clock.advance(LEASE_OVER);
    assert!(b.lock(file));
    b.write(file, b"theirs");
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    a.remote.on_lost(Box::new(move |items| tell.lock().unwrap().extend(items)));
    a.keep();
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    assert_eq!(b.bytes(other), b"unlocked", "of another file nothing is lost");
    assert!(told.lock().unwrap().iter().any(|what| what.ino() == Some(file)), "whoever keeps copies drops them");
    assert!(matches!(a.run(|a| a.publish(file)), Err(Error::LocksLost)), "a close tells it");
    a.run(|a| a.publish(file)).unwrap();
    assert!(matches!(a.run(|a| a.sync(None)), Err(Error::LocksLost)), "and who syncs everything");
    a.run(|a| a.sync(None)).unwrap();
    // It is gone for good, and what is written from now on is not.
    let a = rig.mount_killed(a);
    assert_eq!(a.bytes(file), b"theirs");
    a.write(file, b"later");
    assert_eq!(b.bytes(file), b"later");
    rig.check();
}

/// To be survived: the same, while the publish is on its way and the server never gets it.
#[test]
fn a_publish_that_arrives_after_the_lock_is_lost_is_refused() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), Arc::new(rig.mount("b")));
    let file = a.create(ROOT, "file");
    assert!(a.lock(file));
    a.write_only(file, b"ours");
    let theirs = b.clone();
    a.link.lose_request_and(Method::Publish, move |rig| {
        rig.clock.advance(LEASE_OVER);
        assert!(theirs.lock(file));
        theirs.write(file, b"theirs");
    });
    assert!(matches!(a.run(|a| a.publish(file)), Err(Error::LocksLost)));
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    a.run(|a| a.sync(Some(file))).unwrap();
    rig.check();
}

/// To be survived: the same, when the server did it and only the answer was lost.
#[test]
fn a_publish_that_was_done_before_the_lock_was_lost_is_done() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), Arc::new(rig.mount("b")));
    let file = a.create(ROOT, "file");
    assert!(a.lock(file));
    a.write_only(file, b"ours");
    let theirs = b.clone();
    a.link.lose_answer_and(move |rig| {
        rig.clock.advance(LEASE_OVER);
        assert!(theirs.lock(file));
        assert_eq!(theirs.bytes(file), b"ours");
        theirs.write(file, b"theirs");
    });
    a.run(|a| a.publish(file)).unwrap();
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    rig.check();
}

/// To be survived: a restart of the server, which no lease outlives and every lock does.
#[test]
fn what_was_written_under_a_lock_that_outlived_the_server_is_published() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    assert!(a.lock(file));
    a.write_only(file, b"ours");
    rig.lose_power();
    b.keep();
    a.keep();
    assert_eq!(b.bytes(file), b"ours");
    a.run(|a| a.publish(file)).unwrap();
    rig.check();
}
