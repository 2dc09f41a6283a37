//! `sluice recover`: what a mount that does not come back has acked.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};
use sluice_tests::{Gateway, Mount, Ran, Server, Volume, needs_binary, shell, wait_for};

use crate::{noise, read};

const MIB: usize = 1 << 20;
/// A loaded machine.
const SOON: Duration = Duration::from_secs(60);

/// `sluice recover` of the server's volume, with further arguments.
#[track_caller]
fn recover(server: &Server, args: &[&str]) -> Ran {
    server.volume().sluice([&["recover", &server.meta()], args].concat())
}

/// The journals that it lists.
#[track_caller]
fn listed(server: &Server, meta: &str) -> Vec<serde_json::Value> {
    let list = server.volume().sluice(["recover", meta, "--json"]).ok().json();
    list["journals"].as_array().expect("a list").clone()
}

/// Where [`Server::mount`] puts the journal of the mount `name`.
fn journal(server: &Server, name: &str) -> String {
    let at = server.volume().mountpoint().with_file_name(format!("{name}.journal"));
    at.to_str().expect("text").to_owned()
}

/// A mount that stores nothing by itself.
#[track_caller]
fn lazy_mount(server: &Server, name: &str) -> Mount {
    server.try_mount(name, &["--upload-delay", "1h"]).expect("a mount")
}

/// Files that are closed, so published: in slots, packed, inline.
fn write_closed(mount: &Mount) {
    fs::write(mount.path("large"), noise(1, 9 * MIB + 77)).unwrap();
    fs::write(mount.path("packed"), noise(2, 70_000)).unwrap();
    fs::write(mount.path("inline"), b"inline").unwrap();
}

#[track_caller]
fn closed_are_there(mount: &Mount) {
    assert!(fs::read(mount.path("large")).unwrap() == noise(1, 9 * MIB + 77));
    assert!(fs::read(mount.path("packed")).unwrap() == noise(2, 70_000));
    assert_eq!(fs::read(mount.path("inline")).unwrap(), b"inline");
}

/// What needs only the server and another mount: nothing is left to recover, and the volume is sound.
#[track_caller]
fn is_sound_at_the_end(mut server: Server) {
    let ran = recover(&server, &[]).ok();
    assert!(ran.stdout.contains("nothing to recover"), "{ran:#?}");
    server.stop();
    server.volume().fsck_is_clean();
}

/// To be survived: a mount is killed with bytes that are not stored and a change that is not published, and does not come back.
#[test]
fn all_of_a_killed_mount() {
    needs_binary!();
    let server = Server::new();
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(&noise(3, 300_000)).unwrap();
    // From here on nothing is published.
    server.freeze();
    open.write_all(&noise(4, MIB)).unwrap();
    mount.kill9();
    drop(open);
    server.thaw();
    let reader = server.mount("reader");
    assert_eq!(read(reader.path("large")), Err(Some(Errno::IO.raw_os_error())), "its bytes are on no other host");
    let left = listed(&server, &server.meta());
    let [left, live] = left.as_slice() else { panic!("not two journals: {left:?}") };
    assert_eq!((&left["state"], &left["dir"]), (&"left".into(), &journal(&server, "a").into()), "{left}");
    assert_eq!((&left["files"], &live["state"]), (&1.into(), &"in use".into()), "{left} {live}");
    assert!(left["unpublished_bytes"].as_u64() >= Some(MIB as u64), "{left}");
    assert!(left["unstored_bytes"].as_u64() >= Some(2 * MIB as u64), "objects that are not full: {left}");
    let text = recover(&server, &[]).ok().stdout;
    let command = format!("sluice recover {} --journal {}", server.meta(), journal(&server, "a"));
    assert!(text.contains(&command) && text.contains(&format!("session  {}", left["session"])), "{text}");
    reader.umount();
    recover(&server, &["--journal", &journal(&server, "a")]).ok();
    let reader = server.try_mount("fresh", &["--cache", "none"]).unwrap();
    closed_are_there(&reader);
    let whole = [noise(3, 300_000), noise(4, MIB)].concat();
    assert!(fs::read(reader.path("open")).unwrap() == whole, "the change that was not published");
    let status = server.volume().sluice(["status", &server.meta(), "--json"]).ok().json();
    let sessions = status["sessions"].as_array().expect("a list");
    assert!(sessions.iter().all(|session| session["session"] != left["session"]), "its session has ended: {status}");
    reader.umount();
    let again = recover(&server, &["--journal", &journal(&server, "a")]).ok();
    assert!(again.stdout.contains("nothing to recover"), "{again:#?}");
    is_sound_at_the_end(server);
}

/// To be survived: server and mount are gone. What the mount's journal has is no loss of the volume's, and people are told where it is.
#[test]
fn what_a_mount_has_is_not_lost_with_the_server() {
    needs_binary!();
    let mut server = Server::new();
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    mount.kill9();
    server.stop();
    let dir = server.volume().dir().to_str().expect("text").to_owned();
    let status = server.volume().sluice(["status", &dir, "--json"]).ok().json();
    assert!(status["unstored_elsewhere_bytes"].as_u64() >= Some(9 * MIB as u64), "{status}");
    assert_eq!(status["unstored_objects"], 0, "{status}");
    let text = server.volume().sluice(["status", &dir]).ok().stdout;
    assert!(text.contains("in journals of mounts") && text.contains("sluice serve"), "{text}");
    server.volume().fsck_is_clean();
    server.start();
    recover(&server, &["--all"]).ok();
    let reader = server.mount("reader");
    closed_are_there(&reader);
    reader.umount();
    is_sound_at_the_end(server);
}

/// What was published before is not published again over what others wrote since.
#[test]
fn nothing_is_published_twice() {
    needs_binary!();
    let server = Server::new();
    let (mount, other) = (lazy_mount(&server, "a"), server.mount("b"));
    write_closed(&mount);
    fs::write(mount.path("both"), noise(5, 200_000)).unwrap();
    mount.kill9();
    fs::write(other.path("both"), noise(6, 100_000)).unwrap();
    other.umount();
    let ran = recover(&server, &["--all"]).ok();
    assert!(ran.stderr.contains("not stored") && !ran.stderr.contains("not published"), "{ran:#?}");
    let reader = server.mount("b");
    assert!(fs::read(reader.path("both")).unwrap() == noise(6, 100_000));
    closed_are_there(&reader);
    reader.umount();
    is_sound_at_the_end(server);
}

/// The address is not what a journal is known by: another spelling of it finds the journal, and another mount tells of it.
#[test]
fn by_another_address() {
    needs_binary!();
    let server = Server::new();
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    mount.kill9();
    let spelled = server.meta().replace("127.0.0.1", "localhost");
    let dir = server.volume().dir().to_str().expect("text").to_owned();
    for meta in [&spelled, &dir, &format!("local:{dir}")] {
        let left = listed(&server, meta);
        assert!(left.len() == 1 && left[0]["dir"] == journal(&server, "a").as_str(), "{meta}: {left:?}");
    }
    let other = server.mount("b");
    let command = format!("`sluice recover {} --journal {}`", server.meta(), journal(&server, "a"));
    let log = other.log();
    assert!(log.lines().filter(|line| line.contains("not stored") && line.contains(&command)).count() == 1, "{log}");
    server.volume().sluice(["recover", &dir, "--all"]).ok();
    closed_are_there(&other);
    other.umount();
    let other = server.mount("b");
    assert!(!other.log().contains("sluice recover"), "{}", other.log());
    other.umount();
    is_sound_at_the_end(server);
}

/// A journal where mounts have it by default.
#[test]
fn a_journal_without_a_name() {
    needs_binary!();
    let server = Server::new();
    let at = server.volume().mountpoint();
    server.volume().sluice(["mount", &server.meta(), at.to_str().unwrap(), "-d", "--upload-delay", "1h"]).ok();
    fs::write(at.join("packed"), noise(2, 70_000)).unwrap();
    let status = server.volume().sluice(["status", at.to_str().unwrap(), "--json"]).ok().json();
    let pid = status["pid"].as_u64().expect("a pid") as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    wait_for("the process to be gone", SOON, || listed(&server, &server.meta())[0]["state"] == "left");
    let _ = unmount(&at, UnmountFlags::DETACH);
    recover(&server, &["--all"]).ok();
    let reader = server.mount("b");
    assert!(fs::read(reader.path("packed")).unwrap() == noise(2, 70_000));
    reader.umount();
    is_sound_at_the_end(server);
}

/// A recovery that runs; what it says on standard error.
struct Running {
    child: Child,
    said: PathBuf,
}

impl Running {
    fn start(server: &Server, args: &[&str]) -> Self {
        let said = server.volume().mountpoint().with_extension("recover");
        let mut command: Command = server.volume().command([&["recover", &server.meta()], args].concat());
        let child = command.stdin(Stdio::null()).stderr(File::create(&said).unwrap()).spawn().unwrap();
        Self { child, said }
    }

    #[track_caller]
    fn wait_for(&mut self, words: &str) {
        wait_for(words, SOON, || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", fs::read_to_string(&self.said).unwrap());
            fs::read_to_string(&self.said).unwrap().contains(words)
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// To be survived: the store is down, and the recovery ends by kill -9, by its deadline and by SIGINT; the next one goes on.
#[test]
fn a_store_that_is_down() {
    needs_binary!();
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let server = Server::over(gateway.credentials(Volume::new()), &gateway.url("bucket", "volume"), &[]);
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(b"1").unwrap();
    server.freeze();
    open.write_all(&noise(4, MIB)).unwrap();
    mount.kill9();
    drop(open);
    server.thaw();
    gateway.stop();
    let a = journal(&server, "a");
    let session = listed(&server, &server.meta())[0]["session"].clone();
    for round in 0..3 {
        let mut running = Running::start(&server, &["--journal", &a]);
        running.wait_for(if round == 0 { "taking" } else { "nothing was stored for" });
        if round > 0 {
            let held = listed(&server, &server.meta());
            assert!(held[0]["state"] == "in use", "{held:?}");
            let second = recover(&server, &["--journal", &a]);
            second.refused_with(&["in use by pid", "sluice recover"]);
        }
    }
    let late = recover(&server, &["--journal", &a, "--timeout", "4s"]);
    late.refused_with(&["does not answer", "not done within 4", "the same command"]);
    let mut running = Running::start(&server, &["--journal", &a]);
    running.wait_for("nothing was stored for");
    kill_process(Pid::from_child(&running.child), Signal::INT).unwrap();
    assert_eq!(running.child.wait().unwrap().code(), Some(1), "ended by Ctrl-C");
    let left = listed(&server, &server.meta());
    assert!(left[0]["state"] == "left" && left[0]["session"] == session, "{left:?}");
    assert_eq!(left[0]["changes"], 0, "the server was there: {left:?}");
    gateway.start();
    // Killed at each object that comes to the store: before, between and after what is noted of it.
    for _ in 0..3 {
        let before = files_below(&gateway.buckets());
        let mut running = Running::start(&server, &["--journal", &a]);
        wait_for("an object", SOON, || {
            files_below(&gateway.buckets()) > before || running.child.try_wait().unwrap().is_some()
        });
    }
    recover(&server, &["--all"]).ok();
    let reader = server.try_mount("b", &["--cache", "none"]).unwrap();
    closed_are_there(&reader);
    assert!(fs::read(reader.path("open")).unwrap()[1..] == noise(4, MIB));
    reader.umount();
    is_sound_at_the_end(server);
}

/// To be survived: the server knows that objects are stored, and the journal does not, as when the process was killed between the two. Here
/// it is a copy of the journal from before a recovery.
#[test]
fn objects_that_are_stored_by_now() {
    needs_binary!();
    let server = Server::new();
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    mount.kill9();
    let a = journal(&server, "a");
    let copy = format!("{a}.copy");
    shell(Path::new("/"), &format!("cp -a --sparse=always {a} {copy}"));
    recover(&server, &["--journal", &a]).ok();
    fs::remove_dir_all(&a).unwrap();
    fs::rename(&copy, &a).unwrap();
    let ran = recover(&server, &["--journal", &a]).ok();
    assert!(ran.stderr.contains("not stored") && ran.stdout.contains("recovered"), "{ran:#?}");
    let again = recover(&server, &["--journal", &a]).ok();
    assert!(again.stdout.contains("nothing to recover"), "{again:#?}");
    let reader = server.try_mount("b", &["--cache", "none"]).unwrap();
    closed_are_there(&reader);
    reader.umount();
    is_sound_at_the_end(server);
}

fn files_below(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

/// To be survived: nobody comes for longer than the lease. `status` says what to do.
#[test]
fn a_session_that_expired() {
    needs_binary!();
    let server = Server::with(&["--lease", "3s"]);
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    let status = || server.volume().sluice(["status", &server.meta()]).ok().stdout;
    wait_for("the server to hear of it", SOON, || !status().contains(" 0 B acked but not stored"));
    mount.kill9();
    let command = format!("`sluice recover {}`", server.meta());
    wait_for("the session to expire", SOON, || status().contains(&command));
    recover(&server, &["--all"]).ok();
    assert!(!status().contains(&command));
    let reader = server.mount("b");
    closed_are_there(&reader);
    reader.umount();
    is_sound_at_the_end(server);
}

/// What cannot be recovered is refused, with the reason, and nothing is lost by the attempt.
#[test]
fn refused() {
    needs_binary!();
    let (mut server, other) = (Server::new(), Server::new());
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    File::open(mount.path("packed")).unwrap().sync_all().unwrap();
    let a = journal(&server, "a");
    recover(&server, &["--journal", &a]).refused_with(&["in use by pid", "sluice mount", "alive"]);
    mount.kill9();
    recover(&other, &["--journal", &a]).refused_with(&[
        "another volume|of volume",
        &other.meta(),
        "nothing was touched",
    ]);
    recover(&server, &["--journal", "/nowhere"]).refused_with(&["/nowhere is not there"]);
    let elsewhere = server.volume().dir();
    let elsewhere = elsewhere.to_str().unwrap();
    recover(&server, &["--journal", &a, "--cache", elsewhere]).refused_with(&["a.journal/cache", "leave --cache out"]);
    let nothing = other.volume().sluice(["recover", other.volume().dir().to_str().unwrap()]).ok();
    assert!(nothing.stdout.contains("nothing to recover") && nothing.stdout.contains("sluice up"), "{nothing:#?}");
    let flipped = flip_a_record(Path::new(&a));
    recover(&server, &["--journal", &a]).refused_with(&["journal", "damaged|corrupt", "nothing was touched"]);
    let list = listed(&server, &server.meta());
    assert!(list.len() == 1 && list[0]["state"] == "damaged", "{list:?}");
    flipped();
    server.kill9();
    recover(&server, &["--journal", &a]).refused_with(&["does not answer", "sluice serve"]);
    let dir = server.volume().dir().to_str().unwrap().to_owned();
    server.volume().sluice(["recover", &dir, "--all"]).refused_with(&["is not served", "sluice serve"]);
    server.start();
    let aside = format!("{a}.aside");
    fs::rename(&a, &aside).unwrap();
    let list = listed(&server, &server.meta());
    assert!(list.len() == 1 && list[0]["state"] == "missing", "its disk may not be mounted: {list:?}");
    recover(&server, &["--all"]).refused_with(&["is its disk mounted"]);
    fs::rename(&aside, &a).unwrap();
    // The cache, which has the large writes alone, is gone: nothing is stored without a word.
    let (cache, aside) = (Path::new(&a).join("cache"), Path::new(&a).join("aside"));
    fs::rename(&cache, &aside).unwrap();
    recover(&server, &["--journal", &a]).refused_with(&["cache"]);
    let _ = fs::remove_dir_all(&cache);
    fs::rename(&aside, &cache).unwrap();
    recover(&server, &["--journal", &format!("{a}:64M")]).ok();
    let reader = server.mount("b");
    closed_are_there(&reader);
    reader.umount();
    is_sound_at_the_end(server);
}

/// What is not stored may lie in the cache: a mount with another one would lose it.
#[test]
fn another_cache_is_refused() {
    needs_binary!();
    let server = Server::new();
    let mount = lazy_mount(&server, "a");
    write_closed(&mount);
    mount.kill9();
    let other = format!("{}.other:64M", journal(&server, "a"));
    for cache in [&other, "none"] {
        let refused = server.try_mount("a", &["--cache", cache]).expect_err("it lies in the first cache");
        refused.refused_with(&["a.journal/cache", "sluice recover"]);
    }
    recover(&server, &["--all"]).ok();
    let mount = server.try_mount("a", &["--cache", &other]).expect("nothing is left");
    closed_are_there(&mount);
    mount.umount();
    is_sound_at_the_end(server);
}

/// To be survived: bytes that only the mount's cache disk had are damaged. That is told before anything is stored.
#[test]
fn a_damaged_cache() {
    needs_binary!();
    let server = Server::new();
    let mount = lazy_mount(&server, "a");
    // Less than an object, so that it is not stored while the mount lives.
    let bytes = noise(7, 3 * MIB);
    fs::write(mount.path("packed"), noise(2, 70_000)).unwrap();
    fs::write(mount.path("large"), &bytes).unwrap();
    mount.kill9();
    let a = journal(&server, "a");
    let flip = |at| flip_in(&Path::new(&a).join("cache"), &bytes[at..][..64]);
    let back = flip(MIB);
    recover(&server, &["--journal", &a]).refused_with(&["match neither", "--cache", "--accept-loss"]);
    back();
    let _ = flip(3 * MIB - 1000);
    let left = listed(&server, &server.meta());
    assert!(left.len() == 1 && left[0]["state"] == "left", "{left:?}");
    recover(&server, &["--journal", &a, "--accept-loss"]).ok();
    let reader = server.try_mount("b", &["--cache", "none"]).unwrap();
    assert!(fs::read(reader.path("packed")).unwrap() == noise(2, 70_000));
    let (large, mut part) = (File::open(reader.path("large")).unwrap(), vec![0; MIB + 100_000]);
    large.read_exact_at(&mut part, 0).unwrap();
    assert!(part == bytes[..MIB + 100_000], "what is sound of the file");
    drop(large);
    assert_eq!(read(reader.path("large")), Err(Some(Errno::IO.raw_os_error())), "what is not");
    reader.umount();
    let ran = recover(&server, &[]).ok();
    assert!(ran.stdout.contains("nothing to recover"), "{ran:#?}");
}

/// Flips a bit of the first byte of `bytes`, which lie in one of the files in `dir`; what is returned flips it back.
fn flip_in(dir: &Path, bytes: &[u8]) -> impl Fn() + use<> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let at = |path: PathBuf| {
        let at = fs::read(&path).ok()?.windows(bytes.len()).position(|part| part == bytes)?;
        Some((path, at as u64))
    };
    let (path, at) = files.into_iter().find_map(at).expect("the bytes are somewhere");
    flip_byte(path, at)
}

fn flip_byte(path: PathBuf, at: u64) -> impl Fn() + use<> {
    let flip = move || {
        let (file, mut byte) = (File::options().read(true).write(true).open(&path).unwrap(), [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    flip();
    flip
}

/// Flips a bit in the first record of a journal; what is returned flips it back.
fn flip_a_record(dir: &Path) -> impl Fn() + use<> {
    let segments = fs::read_dir(dir.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let first = segments.filter(|path| path.extension().is_some_and(|end| end == "log")).min().expect("a segment");
    flip_byte(first, 4096 + 100)
}
