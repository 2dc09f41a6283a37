//! A server whose volume was recovered from its store, from an earlier state, under mounts that live on.

use crate::{ROOT, rig::Rig};
use sluice_meta::{Error, RenameMode, rpc::message::Method};
use sluice_vfs::{
    Metadata,
    remote::{LOOKS_MIN, Remote},
    waiting,
};
use std::{sync::Arc, time::Duration};

/// The time after a loss in which a mount changes nothing.
fn pass_refusal(remote: &Remote) {
    let looks = (0..).take_while(|_| remote.looks_for_late_changes()).count();
    assert!(looks as u32 >= LOOKS_MIN - 1, "{looks}");
}

/// To be survived: a volume goes on from what its store had, from before more changes of a mount than the server lets be unseen. What was durable is lost, so what
/// came after it is not done there either, and who has a file open is told.
#[test]
fn a_server_that_was_recovered_from_far_earlier_gets_nothing_of_before() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let old = a.create(ROOT, "old");
    a.write(old, b"bytes");
    a.keep();
    let early = rig.server_copy();
    for number in 0..1200 {
        a.create(ROOT, &format!("file-{number}"));
        if number % 100 == 99 {
            a.keep();
        }
    }
    let copy = a.create(ROOT, "copy of old");
    a.run(|a| a.sync(Some(copy))).unwrap();
    a.run(|a| a.unlink(ROOT, b"old")).unwrap();
    rig.recover(&early, 7 << 40);
    let (sender, found) = std::sync::mpsc::channel();
    let asker = std::thread::Builder::new().name("asker".into()).spawn(move || {
        assert!(matches!(a.run(Remote::keep), Err(Error::Server(_))), "it asked for something before");
        assert!(a.run(Remote::settle_all).is_err(), "the next process would know of no refusal");
        pass_refusal(&a.remote);
        a.run(Remote::settle_all).unwrap();
        let next = a.create(ROOT, "next");
        let synced = [copy, copy, next].map(|ino| a.run(|a| a.sync(Some(ino))).is_ok());
        let _ = sender.send((a.find(ROOT, "old"), a.find(ROOT, "copy of old").is_err(), next > copy, synced));
    });
    asker.expect("a thread");
    let found = found.recv_timeout(Duration::from_secs(60)).expect("it hangs");
    assert_eq!(found, (Ok(old), true, true, [false, true, true]));
    rig.check();
}

/// Nor what was under way, nor what was written after what is lost and not published.
#[test]
fn a_server_that_was_recovered_does_nothing_that_was_begun_before() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let (old, base, apart) = (a.create(ROOT, "old"), a.create(ROOT, "base"), a.create(ROOT, "apart"));
    [base, apart].into_iter().for_each(|ino| a.write(ino, b"before"));
    a.keep();
    let early = rig.server_copy();
    a.write_only(apart, b"after nothing");
    let copy = a.create(ROOT, "copy of old");
    a.run(|a| a.sync(Some(copy))).unwrap();
    a.write_only(base, b"after");
    a.link.lose_request_and(Method::Unlink, move |rig| rig.recover(&early, 7 << 40));
    assert!(matches!(a.run(|a| a.unlink(ROOT, b"old")), Err(Error::Server(_))));
    assert_eq!(
        (a.find(ROOT, "old"), b.find(ROOT, "old"), a.find(ROOT, "copy of old").is_err()),
        (Ok(old), Ok(old), true)
    );
    assert_eq!((a.bytes(base), b.bytes(base)), (b"before".to_vec(), b"before".to_vec()));
    // What waited in the kernel for the unlink, or for a question, comes now.
    let is_refused = |done| assert!(matches!(done, Err(Error::Server(_))), "{done:?}");
    is_refused(a.run(|a| a.rename((ROOT, b"old"), (ROOT, b"moved"), RenameMode::Replace).map(drop)));
    is_refused(a.try_write(base, b"begun before"));
    pass_refusal(&a.remote);
    // Nothing is written through a handle from before without a sync.
    assert!(a.remote.is_lost(base) && a.remote.losses() == 1);
    [base, apart].into_iter().for_each(|ino| assert!(a.remote.take_lost(ino) && !a.remote.take_lost(ino)));
    a.run(|a| a.publish(apart).and_then(|()| a.publish(base))).unwrap();
    assert_eq!((b.bytes(base), b.bytes(apart)), (b"before".to_vec(), b"after nothing".to_vec()));
    a.run(|a| a.unlink(ROOT, b"old")).unwrap();
    a.write(base, b"again");
    assert_eq!(b.bytes(base), b"again");
    rig.check();
}

/// A request that was sent before the others were barred is late, wherever it was meanwhile.
#[test]
fn a_change_that_overtakes_the_recovery_is_not_done() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let old = a.create(ROOT, "old");
    a.keep();
    let early = rig.server_copy();
    let copy = a.create(ROOT, "copy of old");
    a.run(|a| a.sync(Some(copy))).unwrap();
    let resumes = Arc::downgrade(&a.remote);
    a.link.hold_request_and(Method::Unlink, move |rig| {
        rig.recover(&early, 7 << 40);
        assert!(waiting(|| resumes.upgrade().unwrap().usage()).is_err());
    });
    assert!(matches!(a.run(|a| a.unlink(ROOT, b"old")), Err(Error::Server(_))));
    assert_eq!(a.find(ROOT, "old"), Ok(old));
    rig.check();
}

/// A mount that is killed, and whose server is recovered, publishes of its journal what was not written after what is lost.
#[test]
fn a_killed_mount_publishes_nothing_that_was_written_after_what_its_server_lacks() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let (base, apart) = (a.create(ROOT, "base"), a.create(ROOT, "apart"));
    [base, apart].into_iter().for_each(|ino| a.write(ino, b"before"));
    a.keep();
    let early = rig.server_copy();
    a.write_only(apart, b"after nothing");
    let copy = a.create(ROOT, "copy of old");
    a.run(|a| a.sync(Some(copy))).unwrap();
    a.write_only(base, b"after");
    rig.recover(&early, 7 << 40);
    // Others' changes wait for what this one may send again.
    b.keep();
    let a = rig.mount_killed(a);
    assert_eq!((b.bytes(base), b.bytes(apart)), (b"before".to_vec(), b"after nothing".to_vec()));
    // Nothing is lost when the mount is killed again.
    a.write_only(base, b"again");
    let a = rig.mount_killed(a);
    assert_eq!((a.bytes(base), b.bytes(base)), (b"again".to_vec(), b"again".to_vec()));
    rig.check();
}

/// A mount that began behind what the store has goes on too: nothing that it did is there.
#[test]
fn a_mount_that_its_recovered_server_never_heard_of_goes_on() {
    let rig = Rig::new();
    let b = rig.mount("b");
    let old = b.create(ROOT, "old");
    b.write(old, b"before");
    b.keep();
    let early = rig.server_copy();
    let (a, killed) = (rig.mount("a"), rig.mount("killed"));
    // This one was taken over behind it.
    let b = rig.mount_killed(b);
    let made = a.create(ROOT, "made");
    killed.create(ROOT, "made too");
    for mount in [&a, &killed] {
        mount.run(|mount| mount.sync(None)).unwrap();
        mount.write_only(old, b"after");
    }
    assert!(a.lock(old));
    rig.recover(&early, 7 << 40);
    assert!(matches!(a.run(Remote::keep), Err(Error::Server(_))));
    b.keep();
    assert!(!a.lock(old) && b.lock(old), "others may have had it");
    let killed = rig.mount_killed(killed);
    for mount in [&a, &b, &killed] {
        assert_eq!((mount.find(ROOT, "old"), mount.bytes(old)), (Ok(old), b"before".to_vec()));
        assert!(mount.find(ROOT, "made").is_err() && mount.find(ROOT, "made too").is_err());
    }
    assert!(a.run(|a| a.sync(Some(made))).is_err());
    [&a, &b, &killed].into_iter().for_each(|mount| while mount.remote.looks_for_late_changes() {});
    for (mount, name) in [(&a, "a"), (&b, "b"), (&killed, "killed")] {
        let ino = mount.create(ROOT, name);
        mount.write(ino, name.as_bytes());
        mount.run(|mount| mount.sync(Some(ino))).unwrap();
        assert_eq!(b.find(ROOT, name), Ok(ino));
    }
    [&a, &killed].into_iter().for_each(|mount| mount.run(|mount| mount.end()).unwrap());
    rig.check();
}

/// Nothing is kept, so it has nothing to make durable: whether the server has what it had is not known while it is away.
#[test]
fn a_sync_asks_a_server_that_is_away() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let file = a.create(ROOT, "file");
    a.run(|a| a.sync(Some(file))).unwrap();
    let asked = rig.asked();
    a.run(|a| a.sync(Some(file))).unwrap();
    assert_eq!(rig.asked(), asked, "it was durable");
    rig.clock.advance(Duration::from_secs(16));
    a.run(|a| a.sync(Some(file))).unwrap();
    assert!(rig.asked() > asked, "the lease had ended");
    rig.check();
}

/// What it lacks is all kept, so nothing is lost.
#[test]
fn a_server_that_was_recovered_from_a_moment_ago_gets_what_is_kept() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let old = a.create(ROOT, "old");
    a.keep();
    let early = rig.server_copy();
    let new = a.create(ROOT, "new");
    a.run(|a| a.rename((ROOT, b"old"), (ROOT, b"moved"), RenameMode::Replace)).unwrap();
    rig.recover(&early, 7 << 40);
    let next = a.create(ROOT, "next");
    assert_eq!((a.find(ROOT, "new"), a.find(ROOT, "moved")), (Ok(new), Ok(old)));
    assert!(a.find(ROOT, "old").is_err() && next > new);
    [old, new, next].into_iter().for_each(|ino| a.run(|a| a.sync(Some(ino))).unwrap());
    rig.check();
}
