//! A session that another process of the mount goes on with.

use super::{ROOT, rig::Rig};
use sluice_meta::rpc::message::Invalidation;
use sluice_vfs::Metadata;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

#[test]
fn it_is_the_same_to_the_server() {
    let rig = Rig::new();
    let (mut a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    assert!(a.lock(file));
    a.write_only(file, b"before");
    a.run(|a| a.unlink(ROOT, b"file")).unwrap();
    for round in 0..3 {
        a = rig.mount_handed_over(a);
        assert!(!b.lock(file), "the lock is held");
        assert_eq!(a.bytes(file), b"before", "an open file without a name lives");
        // Under a number that was not given before.
        let name = format!("name-{round}");
        assert_eq!(b.find(ROOT, &name).ok(), None);
        let made = a.create(ROOT, &name);
        assert_eq!(b.find(ROOT, &name), Ok(made));
    }
    // After a restart of the server as well.
    rig.restart();
    for mount in [&a, &b] {
        mount.run(|mount| mount.usage()).unwrap();
        // What it holds is said again.
        mount.keep();
    }
    assert!(!b.lock(file));
    // A process that was killed holds nothing.
    let a = rig.mount_killed(a);
    assert!(a.find(ROOT, "name-2").is_ok());
    drop((a, b));
    rig.check();
}

/// The kernel may believe what an earlier process has told it.
#[test]
fn what_was_believed_before_is_dropped_with_what_is_believed_now() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let file = a.create(ROOT, "file");
    assert!(a.find(ROOT, "missing").is_err());
    let a = rig.mount_handed_over(a);
    rig.restart();
    // Before there is anybody to be told.
    a.keep();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    a.remote.on_lost(Box::new(move |items| tell.lock().unwrap().extend(items)));
    let told = told.lock().unwrap();
    for name in ["file", "missing"] {
        assert!(told.contains(&Invalidation::Entry(ROOT, name.as_bytes().into())), "{told:?}");
    }
    assert!(told.contains(&Invalidation::Data(file)), "{told:?}");
}

#[test]
fn what_is_not_settled_stays_where_it_is() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.write_only(file, b"ours");
    assert!(a.remote.fall_silent(Duration::ZERO).is_none());
    a.run(|a| a.settle_all()).unwrap();
    assert_eq!(b.bytes(file), b"ours");
    let silent = a.remote.fall_silent(Duration::ZERO).expect("it is settled");
    assert!(a.run(|a| a.create_unnamed(ROOT, 0o100644, sluice_meta::Caller { uid: 0, gid: 0 })).is_err());
    drop(silent);
    a.write(file, b"and on");
    assert_eq!(b.bytes(file), b"and on");
}
