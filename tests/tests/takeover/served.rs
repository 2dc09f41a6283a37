//! A mount of a served volume passes on while others mount the volume too: what it had at the server, it has still.

use super::{
    LIMIT, goes_on,
    killed::{kill_either, kill_the_new_one},
};
use rustix::io::Errno;
use sluice_tests::{Locker, Mount, Server, in_background, needs_binary, noise, told, wait_for};
use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// Far below a lease.
const MOMENT: Duration = Duration::from_secs(5);

#[test]
fn what_programs_do_goes_on() {
    needs_binary!();
    let mut server = Server::new();
    let mount = server.mount("a");
    let again = mount.again();
    let left = goes_on(mount);
    let (mount, other) = (again(), server.mount("b"));
    left.check(&mount);
    left.check(&other);
    mount.umount();
    other.umount();
    server.stop();
    server.volume().fsck_is_clean();
}

fn refused() -> String {
    told(Errno::AGAIN)
}

/// A file that two mounts see.
fn pair(server: &Server) -> (Mount, Mount) {
    let (a, b) = (server.mount("a"), server.mount("b"));
    fs::write(a.path("f"), vec![b'-'; 1000]).unwrap();
    (a, b)
}

/// Requests of a kind that only locks are of here.
fn others(mount: &Mount) -> u64 {
    mount.status()["requests"]["other"].as_u64().expect("a number")
}

/// Has a program wait for a lock; returns when its mount knows.
fn begin_to_wait(mount: &Mount, program: &mut Locker, expression: &str) {
    let before = others(mount);
    program.tell(expression);
    wait_for("the request", LIMIT, || others(mount) > before);
    // Behind it on the same connection to the server.
    assert_eq!(Locker::new(mount.path("f")).ask("record(EX, 999, 1)"), "ok");
}

#[test]
fn held_locks_are_held_and_go_when_they_are_released() {
    needs_binary!();
    let server = Server::new();
    let (mut a, b) = pair(&server);
    let (mut mine, mut closes) = (Locker::new(a.path("f")), Locker::new(a.path("f")));
    let mut theirs = Locker::new(b.path("f"));
    assert_eq!(mine.ask("[record(EX, 0, 10), record(SH, 20, 5), flock(EX)]"), "['ok', 'ok', 'ok']");
    assert_eq!(closes.ask("ofd(EX, 50, 5)"), "ok");
    for _ in 0..2 {
        a.take_over();
        assert_eq!(theirs.ask("[record(EX, 5, 1), record(EX, 22, 1), flock(SH), ofd(EX, 50, 1)]"), refusals(4));
        assert_eq!(theirs.ask("in_the_way(EX, 0, 20)"), "EX 0 10");
        assert_eq!(mine.ask("write('still mine')"), "10");
    }
    assert_eq!(mine.ask("[record(UN, 0, 10), flock(UN)]"), "['ok', 'ok']");
    assert_eq!(theirs.ask("[wait(EX, 0, 10), flock_wait(EX)]"), "['ok', 'ok']");
    assert_eq!(theirs.ask("read(10)"), "still mine");
    // What was locked through a handle goes with it, also when another process knew it first.
    drop(closes);
    assert_eq!(theirs.ask("wait(EX, 50, 5)"), "ok");
    assert_eq!(theirs.ask("record(EX, 22, 1)"), refused());
    drop(mine);
    assert_eq!(theirs.ask("wait(EX, 20, 5)"), "ok");
    drop(theirs);
}

fn refusals(count: usize) -> String {
    format!("[{}]", vec![refused(); count].join(", "))
}

#[test]
fn who_waits_gets_the_lock_after_it_in_his_turn() {
    needs_binary!();
    let server = Server::new();
    let (mut a, b) = pair(&server);
    let c = server.mount("c");
    let (mut holds, mut first, mut second) =
        (Locker::new(b.path("f")), Locker::new(a.path("f")), Locker::new(c.path("f")));
    let mut flocks = Locker::new(a.path("f"));
    assert_eq!(holds.ask("[record(EX, 0, 10), flock(EX)]"), "['ok', 'ok']");
    begin_to_wait(&a, &mut first, "wait(EX, 0, 10)");
    begin_to_wait(&c, &mut second, "wait(EX, 0, 10)");
    begin_to_wait(&a, &mut flocks, "flock_wait(EX)");
    for _ in 0..3 {
        a.take_over();
    }
    // Others of the mount are not kept waiting.
    fs::write(a.path("g"), "meanwhile").unwrap();
    assert_eq!(holds.ask("write('by holder')"), "9");
    assert_eq!(holds.ask("[record(UN, 0, 10), flock(UN)]"), "['ok', 'ok']");
    assert_eq!((first.answer(), flocks.answer()), ("ok".into(), "ok".into()));
    assert_eq!(first.ask("read(9)"), "by holder");
    assert_eq!(holds.ask("[record(EX, 0, 1), flock(SH)]"), refusals(2));
    assert_eq!(first.ask("record(UN, 0, 10)"), "ok");
    assert_eq!(second.answer(), "ok");
    drop((holds, first, second, flocks));
}

/// A signal ends the wait of a program whose request another process has taken, and the lock goes to nobody who does not know of it.
#[test]
fn who_is_interrupted_waits_no_more() {
    needs_binary!();
    let server = Server::new();
    let (mut a, b) = pair(&server);
    let (mut holds, mut gives_up, mut dies) =
        (Locker::new(b.path("f")), Locker::new(a.path("f")), Locker::new(a.path("f")));
    assert_eq!(holds.ask("record(EX, 0, 10)"), "ok");
    begin_to_wait(&a, &mut dies, "wait(EX, 0, 10)");
    for _ in 0..3 {
        begin_to_wait(&a, &mut gives_up, "wait_a_second(EX, 0, 10)");
        a.take_over();
        assert_eq!(gives_up.answer(), "interrupted");
    }
    drop(dies);
    assert_eq!(holds.ask("record(UN, 0, 10)"), "ok");
    assert_eq!(holds.ask("wait(EX, 0, 0)"), "ok");
    drop((holds, gives_up));
}

/// One mount writes, both ways, and the other reads what was closed: through names, attributes, pages and handles that its kernel has had since
/// before.
#[test]
fn each_sees_what_the_other_has_closed() {
    needs_binary!();
    let server = Server::new();
    let (mut a, b) = pair(&server);
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let paths = [&a, &b].map(|mount| mount.root().to_path_buf());
    let program = {
        let (stop, rounds) = (stop.clone(), rounds.clone());
        in_background(move || {
            let kept = paths.clone().map(|root| File::open(root.join("f")).unwrap());
            while !stop.load(SeqCst) {
                let round = rounds.load(SeqCst);
                let (from, to) = (round as usize % 2, (round as usize + 1) % 2);
                let wanted = noise(round, 1 + (round as usize * 7919) % 150_000);
                fs::write(paths[from].join("f"), &wanted).unwrap();
                assert!(fs::read(paths[to].join("f")).unwrap() == wanted, "round {round}");
                // A moment after the change: what the kernel was not told it would believe for a lease.
                let mut found = vec![0; wanted.len()];
                wait_for("the bytes", MOMENT, || kept[to].read_exact_at(&mut found, 0).is_ok() && found == wanted);
                let has_length = || fs::metadata(paths[to].join("f")).unwrap().size() == wanted.len() as u64;
                wait_for("the length", MOMENT, has_length);
                let name = format!("name-{round}");
                assert!(!paths[to].join(&name).exists());
                fs::write(paths[from].join(&name), "x").unwrap();
                wait_for("the name", MOMENT, || paths[to].join(&name).exists());
                fs::remove_file(paths[to].join(&name)).unwrap();
                wait_for("the name to be gone", MOMENT, || !paths[from].join(&name).exists());
                rounds.store(round + 1, SeqCst);
            }
        })
    };
    let gets_on = || {
        let before = rounds.load(SeqCst);
        wait_for("the program to get on", LIMIT, || {
            assert!(!program.is_finished(), "it failed");
            rounds.load(SeqCst) > before + 4
        });
    };
    for _ in 0..5 {
        gets_on();
        a.take_over();
    }
    gets_on();
    stop.store(true, SeqCst);
    program.join().expect("the program failed");
}

/// To be survived: what was written and not closed is in the journal alone when the process changes, and then it is killed.
#[test]
fn the_new_process_is_killed_just_after() {
    needs_binary!();
    let mut server = Server::with(&["--lease", "3s"]);
    let other = server.mount("b");
    let mount = kill_the_new_one(server.mount("a"));
    assert!(fs::read(other.path("f")).unwrap() == noise(1, 3 << 20));
    mount.umount();
    other.umount();
    server.stop();
    server.volume().fsck_is_clean();
}

#[test]
fn either_is_killed_at_any_moment() {
    needs_binary!();
    let mut server = Server::with(&["--lease", "3s"]);
    let other = server.mount("b");
    let mount = kill_either(server.mount("a"), "either_is_killed_at_any_moment");
    let records = |mount: &Mount| fs::read(mount.path("records")).unwrap();
    assert!(records(&mount) == records(&other));
    mount.umount();
    other.umount();
    server.stop();
    server.volume().fsck_is_clean();
}

/// To be survived: the server is killed while the mount passes on, and comes back. This process has nothing of the mount open: what it starts
/// would close that first, and wait for the server.
#[test]
fn the_server_is_killed_while_it_passes() {
    needs_binary!();
    let mut server = Server::new();
    let (mut a, b) = pair(&server);
    let (mut mine, mut theirs) = (Locker::new(a.path("f")), Locker::new(b.path("f")));
    assert_eq!(mine.ask("record(EX, 0, 10)"), "ok");
    for round in 0..3 {
        assert_eq!(mine.ask(&format!("write('round {round} before')")), "14");
        let next = a.successor(&[]);
        server.kill9();
        server.start();
        // If it had no answer in time, the mount is where it was.
        if let Err(log) = a.try_hand_over_to(next) {
            eprintln!("round {round}: {log}");
            assert_eq!(a.status()["pid"], a.pid());
        }
        assert_eq!(mine.ask("read(14)"), format!("round {round} before"));
        assert_eq!(theirs.ask("wait_a_second(EX, 5, 1)"), "interrupted");
        assert_eq!(mine.ask("write('still mine')"), "10");
    }
    assert_eq!(mine.ask("record(UN, 0, 10)"), "ok");
    assert_eq!(theirs.ask("wait(EX, 0, 10)"), "ok");
    assert_eq!(theirs.ask("read(10)"), "still mine");
    drop((mine, theirs));
}
