//! A mount's metadata over a server that loses power, answers and connections.

mod hand_over;
mod locks;
mod recovered;
mod rig;

use rig::Rig;
use sluice_base::Ino;
use sluice_meta::{Attr, Error, RenameMode, SetAttributes, rpc::message::Method, store::Log};
use sluice_vfs::{Metadata, remote::Remote, waiting};
use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex},
    time::Duration,
};

const ROOT: Ino = Ino::ROOT;

fn chmod(bits: u32) -> SetAttributes {
    SetAttributes { mode: Some(bits), ..SetAttributes::default() }
}

#[test]
fn an_answer_does_not_wait_for_the_disk_and_a_sync_does() {
    let rig = Rig::new();
    let a = rig.mount("a");
    // The first inode's number is reserved, durably, with many more.
    a.create(ROOT, "first");
    let durable = rig.synced();
    let file = a.create(ROOT, "file");
    assert_eq!(rig.synced(), durable, "answered when written");
    assert!(rig.written() > durable);
    a.run(|a| a.sync(Some(file))).unwrap();
    assert_eq!(rig.synced(), rig.written());
    let asked = rig.asked();
    a.run(|a| a.sync(Some(file))).unwrap();
    assert_eq!(rig.asked(), asked, "what is known to be durable is not asked for");
    a.create(ROOT, "other");
    a.keep();
    assert_eq!(rig.synced(), rig.written(), "nor does it wait for long without one");
}

#[test]
fn a_loss_of_power_takes_nothing_that_was_answered() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let dir = a.mkdir(ROOT, "dir");
    let [one, two, gone] = ["one", "two", "gone"].map(|name| a.create(dir, name));
    a.write(one, b"first");
    a.write(one, b"second");
    a.run(|a| a.rename((dir, b"two"), (ROOT, b"moved"), RenameMode::Replace)).unwrap();
    a.run(|a| a.unlink(dir, b"gone")).unwrap();
    a.run(|a| a.setattr(one, &chmod(0o600))).unwrap();
    rig.lose_power();
    a.keep();
    let b = rig.mount("b");
    for mount in [&a, &b] {
        assert_eq!(mount.find(dir, "one"), Ok(one));
        assert_eq!((mount.find(ROOT, "moved"), mount.find(ROOT, "dir")), (Ok(two), Ok(dir)));
        assert_eq!(mount.find(dir, "gone"), Err("no such file or directory".into()));
        assert_eq!(mount.bytes(one), b"second");
        assert_eq!(mount.run(|mount| mount.getattr(one)).unwrap().mode & 0o777, 0o600);
    }
    let new = a.create(ROOT, "new");
    assert!(![dir, one, two, gone].contains(&new), "no number is given twice");
    a.run(|a| a.sync(None)).unwrap();
    rig.lose_power();
    let c = rig.mount("c");
    assert_eq!((c.find(ROOT, "new"), c.find(dir, "one")), (Ok(new), Ok(one)), "and a sync is one");
    rig.check();
}

#[test]
fn a_killed_server_does_nothing_twice() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let file = a.create(ROOT, "file");
    a.write(file, b"bytes");
    a.run(|a| a.rename((ROOT, b"file"), (ROOT, b"moved"), RenameMode::Replace)).unwrap();
    let other = a.create(ROOT, "file");
    let before = a.run(|a| a.getattr(file)).unwrap();
    rig.restart();
    assert_eq!((a.find(ROOT, "moved"), a.find(ROOT, "file")), (Ok(file), Ok(other)));
    assert_eq!(a.run(|a| a.getattr(file)).unwrap(), before);
    rig.check();
}

#[test]
fn an_answer_that_is_lost_with_the_power_is_asked_for_again() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let dir = a.mkdir(ROOT, "dir");
    a.link.lose_answer_and(|rig| rig.lose_power());
    let file = a.create(dir, "file");
    assert_eq!((a.find(ROOT, "dir"), a.find(dir, "file")), (Ok(dir), Ok(file)));
    a.link.lose_answer_and(|_| {});
    let next = a.create(dir, "next");
    assert_eq!(a.find(dir, "next"), Ok(next));
    rig.check();
}

#[test]
fn changes_of_several_mounts_are_made_again() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let dir = a.mkdir(ROOT, "dir");
    let file = b.create(dir, "of b");
    rig.lose_power();
    a.keep();
    b.keep();
    assert_eq!((b.find(ROOT, "dir"), a.find(dir, "of b")), (Ok(dir), Ok(file)));
    b.run(|b| b.sync(Some(file))).unwrap();
    rig.check();
}

#[test]
fn a_change_that_came_between_is_told_by_the_next_sync() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let lost = a.create(ROOT, "file");
    let kept = a.create(ROOT, "kept");
    a.write(lost, b"bytes");
    rig.lose_power();
    b.keep();
    // Nobody waits for `a` any more.
    rig.clock.advance(Duration::from_secs(16));
    let theirs = b.create(ROOT, "file");
    assert_ne!(theirs, lost);
    assert_eq!((a.find(ROOT, "file"), a.find(ROOT, "kept")), (Ok(theirs), Ok(kept)));
    assert!(matches!(a.run(|a| a.sync(Some(lost))), Err(Error::Lost)));
    a.run(|a| a.sync(Some(lost))).unwrap();
    a.run(|a| a.sync(Some(kept))).unwrap();
    rig.check();
}

#[test]
fn a_publish_that_the_mount_has_forgotten_is_not_done_over_what_came_after_it() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    // The mount's log is synced while the publish is under way, and not after it.
    let log = a.log.clone();
    a.link.lose_answer_and(move |_| log.ensure_synced(log.last()).unwrap());
    a.write(file, b"ours");
    a.keep();
    a.create(ROOT, "next");
    assert_eq!(b.run(|b| b.open(file)).unwrap().0.size, 4);
    b.write(file, b"theirs");
    let a = rig.mount_lost_power(a);
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    rig.check();
}

/// Makes what is in the mount's own log durable.
fn sync_own(mount: &rig::Mount) {
    mount.log.ensure_synced(mount.log.last()).unwrap();
}

#[test]
fn a_publish_of_which_the_log_kept_no_note_is_not_done_over_what_came_after_it() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let [file, other] = ["file", "other"].map(|name| a.create(ROOT, name));
    for ino in [file, other] {
        a.write_only(ino, b"ours");
    }
    sync_own(&a);
    a.run(|a| a.publish(file)).unwrap();
    a.run(|a| a.publish(other)).unwrap();
    b.run(|b| b.open(file)).unwrap();
    b.write(file, b"theirs");
    let before = b.run(|b| b.getattr(other)).unwrap();
    let a = rig.mount_lost_power(a);
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    assert_eq!((b.bytes(other), b.run(|b| b.getattr(other)).unwrap()), (b"ours".to_vec(), before), "nor done twice");
    // What was dropped does not come back with the next start either.
    b.write(file, b"theirs again");
    let a = rig.mount_killed(a);
    assert_eq!(a.bytes(file), b"theirs again");
    rig.check();
}

/// To be survived: a mount is killed while a publish is under way, and comes back when its session has ended.
#[test]
fn a_publish_under_way_is_done_once_however_long_the_mount_stays_away() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.write_only(file, b"ours");
    // What the process has written when it is killed: that it publishes, not that this was answered.
    let (left, log) = (Arc::new(Mutex::new(None)), a.log.clone());
    let killed = left.clone();
    a.link.before_the_answer(move || *killed.lock().unwrap() = Some(rig::copy(&log)));
    a.run(|a| a.publish(file)).unwrap();
    assert_eq!(b.bytes(file), b"ours");
    b.write(file, b"theirs");
    for _ in 0..17 {
        rig.clock.advance(Duration::from_secs(10));
        b.keep();
    }
    let a = rig.mount_of_copy(&left.lock().unwrap().take().unwrap()).unwrap();
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    a.write(file, b"later");
    assert_eq!(b.bytes(file), b"later");
    rig.check();
}

/// To be survived: the hosts of a mount and of the server lose their power, and the file has as many changes again.
#[test]
fn a_publish_that_both_hosts_lost_is_not_done_over_what_came_after_it() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.run(|a| a.sync(Some(file))).unwrap();
    a.write(file, b"first");
    a.write_only(file, b"second");
    sync_own(&a);
    a.run(|a| a.publish(file)).unwrap();
    rig.lose_power();
    // Nobody waits for `a` any more.
    b.keep();
    rig.clock.advance(Duration::from_secs(16));
    b.write(file, b"theirs");
    let a = rig.mount_lost_power(a);
    assert_eq!((a.bytes(file), b.bytes(file)), (b"theirs".to_vec(), b"theirs".to_vec()));
    rig.check();
}

#[test]
fn what_the_log_kept_and_nobody_has_is_published_after_a_loss_of_power() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.write(file, b"first");
    a.write_only(file, b"second");
    sync_own(&a);
    let a = rig.mount_lost_power(a);
    assert_eq!((a.bytes(file), b.bytes(file)), (b"second".to_vec(), b"second".to_vec()));
    // Published: not once more after another loss.
    b.write(file, b"theirs");
    let a = rig.mount_lost_power(a);
    assert_eq!(a.bytes(file), b"theirs");
    rig.check();
}

#[test]
fn what_was_not_closed_goes_with_the_power_where_another_mount_came_after_it() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let [file, other] = ["file", "other"].map(|name| a.create(ROOT, name));
    for ino in [file, other] {
        a.write(ino, b"first");
        a.write_only(ino, b"second");
    }
    sync_own(&a);
    b.run(|b| b.setattr(file, &chmod(0o600))).unwrap();
    let a = rig.mount_lost_power(a);
    // As far as anybody knows that was a publish of `a` and then a change of `b`.
    assert_eq!((a.bytes(file), b.bytes(file)), (b"first".to_vec(), b"first".to_vec()));
    assert_eq!(b.bytes(other), b"second");
    rig.check();
}

#[test]
fn a_killed_mount_publishes_all_that_its_log_has() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.write_only(file, b"ours");
    b.run(|b| b.setattr(file, &chmod(0o600))).unwrap();
    let a = rig.mount_killed(a);
    assert_eq!((a.bytes(file), b.bytes(file)), (b"ours".to_vec(), b"ours".to_vec()));
}

#[test]
fn a_mount_that_is_killed_before_it_has_the_answer_to_its_take_over_mounts_again() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let file = a.create(ROOT, "file");
    a.write(file, b"first");
    for _ in 0..3 {
        rig.mount_killed_twice(&a);
    }
    let b = rig.mount_killed(a);
    b.write(file, b"second");
    assert_eq!((b.find(ROOT, "file"), b.bytes(file)), (Ok(file), b"second".to_vec()));
    rig.restart();
    let c = rig.mount_killed(b);
    assert_eq!(c.bytes(file), b"second");
    rig.check();
}

#[test]
fn a_mount_that_loses_its_power_after_a_take_over_mounts_again() {
    let rig = Rig::new();
    let mut a = rig.mount("a");
    a.log.ensure_synced(a.log.last()).unwrap();
    for n in 0..3 {
        // Its own log is not synced after any of the take-overs.
        a = rig.mount_lost_power(a);
        a.create(ROOT, &n.to_string());
    }
    for n in 0..3 {
        a.find(ROOT, &n.to_string()).unwrap();
    }
    rig.check();
}

#[test]
fn a_copy_of_a_journal_from_before_a_take_over_is_fenced() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let copy = a.copy();
    let a = rig.mount_killed(a);
    let file = a.create(ROOT, "file");
    for _ in 0..3 {
        assert!(rig.mount_of_copy(&copy).is_err());
    }
    assert_eq!(a.find(ROOT, "file"), Ok(file), "and whoever took it over goes on");
    let a = rig.mount_killed(a);
    a.find(ROOT, "file").unwrap();
}

#[test]
fn more_than_can_be_kept_is_made_durable_on_the_way() {
    let rig = Rig::new();
    let a = rig.mount("a");
    for i in 0..1200 {
        a.create(ROOT, &i.to_string());
    }
    assert!(rig.written().0 - rig.synced().0 < 600);
    rig.lose_power();
    a.keep();
    let b = rig.mount("b");
    for i in 0..1200 {
        b.find(ROOT, &i.to_string()).unwrap();
    }
    rig.check();
}

#[test]
fn a_publish_while_the_server_is_asked_takes_nothing_of_what_is_seen() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.write(file, b"old");
    type Look = fn(&Remote, Ino) -> u64;
    let looks: [(&str, Look); 7] = [
        ("inode", |a, file| a.inode(file).unwrap().size),
        ("getattr", |a, file| a.getattr(file).unwrap().size),
        ("lookup", |a, _| a.lookup(ROOT, b"file").unwrap().size),
        ("open", |a, file| a.open(file).unwrap().0.size),
        ("read_dir", |a, _| listed(a, "file").size),
        ("setattr", |a, file| a.setattr(file, &chmod(0o600)).unwrap().size),
        ("link", |a, file| a.link(file, ROOT, b"link").unwrap().size),
    ];
    for (round, (name, look)) in looks.into_iter().enumerate() {
        let before = vec![b'x'; 10 + round];
        a.write(file, &before);
        // What `a` knew of the server's side is no longer so; it asks.
        b.run(|b| b.setattr(file, &chmod(0o600 + round as u32))).unwrap();
        let (remote, bytes) = (a.remote.clone(), vec![b'x'; 20 + round]);
        a.link.before_the_answer(move || {
            rig::write_only(&remote, file, &bytes);
            waiting(|| remote.publish(file)).unwrap();
        });
        assert_eq!(a.run(|a| look(a, file)), 20 + round as u64, "{name}");
    }
    rig.check();
}

/// What a listing of the root says of a name.
fn listed(remote: &Remote, name: &str) -> Attr {
    let mut found = None;
    remote
        .read_dir(ROOT, 0, u64::MAX, true, &mut |entry| {
            if entry.entry.name == name.as_bytes() {
                found = entry.attr;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    found.expect("it is there")
}

#[test]
fn what_this_mount_published_is_opened_without_a_question() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let dir = a.mkdir(ROOT, "dir");
    let asked = rig.asked();
    assert!(a.find(dir, "file").is_err());
    assert_eq!(rig.asked(), asked, "nothing is in a new directory");
    let file = a.create(dir, "file");
    a.write(file, b"bytes");
    let asked = rig.asked();
    assert_eq!(a.run(|a| a.open(file)).unwrap().0.size, 5);
    assert_eq!((a.bytes(file), a.find(dir, "file")), (b"bytes".to_vec(), Ok(file)));
    assert_eq!(a.run(|a| a.getattr(dir)).unwrap().change, 2, "the directory's own, after the create");
    assert_eq!(rig.asked(), asked);
    b.run(|b| b.open(file)).unwrap();
    b.write(file, b"others'");
    let (attr, unchanged) = a.run(|a| a.open(file)).unwrap();
    assert_eq!((attr.size, unchanged, a.bytes(file)), (7, false, b"others'".to_vec()));
    b.create(dir, "new");
    a.find(dir, "new").unwrap();
}

#[test]
fn a_mount_whose_resumption_was_not_answered_believes_nothing_from_before() {
    let rig = Rig::new();
    let (a, b) = (rig.mount("a"), rig.mount("b"));
    let file = a.create(ROOT, "file");
    a.write(file, b"bytes");
    rig.restart();
    b.keep();
    // The server notes that it forgot what `a` caches, which `a` does not hear.
    a.link.lose_answer_of(Method::Resume);
    a.keep();
    b.run(|b| b.open(file)).unwrap();
    b.write(file, b"others'");
    assert_eq!((a.run(|a| a.open(file)).unwrap().0.size, a.bytes(file)), (7, b"others'".to_vec()));
}

#[test]
fn a_mount_that_ends_leaves_nothing_that_could_be_lost() {
    let rig = Rig::new();
    let a = rig.mount("a");
    let file = a.create(ROOT, "file");
    a.run(|a| a.end()).unwrap();
    rig.lose_power();
    let b = rig.mount("b");
    assert_eq!(b.find(ROOT, "file"), Ok(file));
}
