//! FUSE over io_uring (`--fuse-transport uring`) behind the real binary. The other tests go the same way with
//! `SLUICE_TEST_MOUNT_OPTIONS='--fuse-transport uring'`.

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    mount::UnmountFlags,
};
use sluice_tests::{Mount, Server, UringConsent, Volume, eventually, in_background, skipped_in_local_mode};
use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const LEN: usize = 9 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn noise(seed: u64, len: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng, rngs::StdRng};
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn volume() -> Volume {
    Volume::new().option("--fuse-transport", "uring")
}

/// Whether the process of `mount` has rings.
fn has_rings(mount: &Mount) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap();
    descriptors
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .any(|path| path.ends_with("anon_inode:[io_uring]"))
}

fn open_direct(path: &Path) -> File {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap().into()
}

fn dd(path: &Path, block: &str) -> Child {
    let from = format!("if={}", path.display());
    let args = [&from, "of=/dev/null", &format!("bs={block}"), "iflag=direct", "status=none"];
    Command::new("dd").args(args).stderr(Stdio::null()).spawn().unwrap()
}

/// Unmounts. A program that another test is about to start has what this one has open, until it runs.
#[track_caller]
fn end(mount: Mount) {
    let ended = eventually(LIMIT, || mount.try_umount().code == Some(0));
    assert!(ended, "{}", mount.log());
    let (code, log) = mount.wait_for_the_end();
    assert_eq!(code, Some(0), "{log}");
}

/// With more and with fewer threads than cores, and so few entries that they are all used again and again.
#[test]
fn bytes_and_names_come_and_go_by_rings() {
    if skipped_in_local_mode("bytes_and_names_come_and_go_by_rings") {
        return;
    }
    for options in
        [&[][..], &[("--reactors", "5"), ("--uring-depth", "2")], &[("--verify", "off"), ("--uring-depth", "1")]]
    {
        let volume = options.iter().fold(volume(), |volume, (name, value)| volume.option(name, value));
        let mount = volume.up();
        assert!(has_rings(&mount), "{}", mount.log());
        let bytes = noise(1, LEN);
        fs::write(mount.path("f"), &bytes).unwrap();
        fs::create_dir(mount.path("d")).unwrap();
        for index in 0..300 {
            fs::write(mount.path(format!("d/{index}")), [index as u8; 10]).unwrap();
        }
        fs::rename(mount.path("d/7"), mount.path("d/a name of some length")).unwrap();
        fs::remove_file(mount.path("d/8")).unwrap();
        std::os::unix::fs::symlink("nowhere", mount.path("link")).unwrap();
        let again = mount.again();
        end(mount);
        let mount = again();
        assert!(fs::read(mount.path("f")).unwrap() == bytes);
        std::thread::scope(|scope| {
            for reader in 0..6u64 {
                let (file, bytes) = (open_direct(&mount.path("f")), &bytes);
                let read = move || {
                    let mut memory = vec![0; (1 << 20) + 4096];
                    let at = memory.as_ptr().align_offset(4096);
                    for round in 0..60 {
                        let len = if round % 2 == 0 { 4096 } else { 1 << 20 };
                        let offset = (reader * 60 + round) * 1_234_567 % (LEN - len) as u64 / 4096 * 4096;
                        file.read_exact_at(&mut memory[at..at + len], offset).unwrap();
                        assert!(memory[at..at + len] == bytes[offset as usize..][..len], "{len} bytes at {offset}");
                    }
                };
                std::thread::Builder::new().spawn_scoped(scope, read).unwrap();
            }
        });
        assert_eq!(fs::read_dir(mount.path("d")).unwrap().count(), 299);
        assert_eq!(fs::read(mount.path("d/a name of some length")).unwrap(), [7; 10]);
        assert_eq!(fs::read_link(mount.path("link")).unwrap(), Path::new("nowhere"));
        end(mount);
        volume.fsck_is_clean();
    }
}

/// To be survived: the kernel's setting is off. The mount says what to do, and works.
#[test]
fn without_consent_requests_come_over_the_device() {
    if skipped_in_local_mode("without_consent_requests_come_over_the_device") {
        return;
    }
    let consent = UringConsent::set(false);
    let volume = volume();
    let mount = volume.up_without_consent();
    drop(consent);
    assert!(!has_rings(&mount));
    let log = mount.log();
    assert!(log.contains("echo Y > /sys/module/fuse/parameters/enable_uring"), "{log}");
    fs::write(mount.path("f"), b"x").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
    end(mount);
}

/// To be survived: readers that are killed while their requests are under way. No entry is lost: there are two for each core.
#[test]
fn killed_readers_leave_their_entries() {
    if skipped_in_local_mode("killed_readers_leave_their_entries") {
        return;
    }
    let mount = volume().option("--uring-depth", "2").up();
    let bytes = noise(2, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    for round in 0..30 {
        let mut readers = [(); 3].map(|()| dd(&mount.path("f"), if round % 2 == 0 { "4k" } else { "1M" }));
        // Somewhere in the middle of their reads, wherever that is.
        assert!(fs::read(mount.path("f")).unwrap() == bytes);
        for reader in &mut readers {
            reader.kill().unwrap();
            reader.wait().unwrap();
        }
    }
    end(mount);
}

/// A reader in the background: how many megabytes it has read, and its end.
fn keep_reading(mut file: File) -> (Arc<AtomicU64>, std::thread::JoinHandle<std::io::Error>) {
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    let reader = in_background(move || {
        let mut block = vec![0; 1 << 20];
        loop {
            match file.read(&mut block) {
                Ok(0) => std::io::Seek::rewind(&mut file).unwrap(),
                Ok(_) => drop(count.fetch_add(1, Relaxed)),
                Err(error) => return error,
            }
        }
    });
    (read, reader)
}

/// To be survived: the mount is taken away while programs read. They go on; with the last one it ends by itself.
#[test]
fn umount_under_load() {
    if skipped_in_local_mode("umount_under_load") {
        return;
    }
    let volume = volume();
    let mount = volume.up();
    let bytes = noise(3, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    let files = [(); 4].map(|()| open_direct(&mount.path("f")));
    let begun = Arc::new(AtomicU64::new(0));
    let readers = files.map(|file| {
        let (bytes, begun) = (bytes.clone(), begun.clone());
        in_background(move || {
            let mut memory = vec![0; LEN + 4096];
            let at = memory.as_ptr().align_offset(4096);
            for round in 0..30 {
                begun.fetch_add(1, Relaxed);
                file.read_exact_at(&mut memory[at..at + LEN], 0).unwrap();
                assert!(memory[at..at + LEN] == bytes[..], "round {round}");
            }
        })
    });
    assert!(eventually(LIMIT, || begun.load(Relaxed) > 8));
    rustix::mount::unmount(mount.root(), UnmountFlags::DETACH).unwrap();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(begun.load(Relaxed), 120);
    let (code, log) = mount.wait_for_the_end();
    assert_eq!(code, Some(0), "{log}");
    volume.fsck_is_clean();
}

/// To be survived: the process is killed while programs read. Every call ends, the name is dead, and the volume mounts again.
#[test]
fn kill_minus_nine_ends_everything() {
    if skipped_in_local_mode("kill_minus_nine_ends_everything") {
        return;
    }
    let mount = volume().up();
    let bytes = noise(4, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    let again = mount.again();
    let readers = [(); 4].map(|()| keep_reading(open_direct(&mount.path("f"))));
    assert!(eventually(LIMIT, || readers.iter().all(|(read, _)| read.load(Relaxed) > 20)));
    let root = mount.root().to_owned();
    mount.kill9_and_leave_the_mount_point();
    for (_, reader) in readers {
        let error = reader.join().unwrap();
        // The last of what the kernel was about to hand over (fuse_uring_send_in_task).
        const OF_RINGS: i32 = libc::ECANCELED;
        assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | OF_RINGS)), "{error}");
    }
    assert_eq!(fs::metadata(root.join("f")).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    rustix::mount::unmount(&root, UnmountFlags::DETACH).unwrap();
    let mount = again();
    assert!(fs::read(mount.path("f")).unwrap() == bytes);
    end(mount);
}

/// To be survived: more programs wait for a lock than there are entries. Some are refused, and who holds it can still give it back.
#[test]
fn locks_do_not_take_all_entries() {
    if skipped_in_local_mode("locks_do_not_take_all_entries") {
        return;
    }
    let server = Server::new();
    let mount = server.try_mount("a", &["--fuse-transport", "uring", "--uring-depth", "2"]).unwrap();
    let path = mount.path("locked");
    let holder = File::create(&path).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let waiter = || Command::new("flock").arg(&path).arg("true").stderr(Stdio::null()).spawn().unwrap();
    let mut waiters: Vec<Child> = (0..8).map(|_| waiter()).collect();
    let cores = std::thread::available_parallelism().unwrap().get();
    let mut ended = |wanted: usize| {
        let mut codes = Vec::new();
        let reached = eventually(LIMIT, || {
            waiters.retain_mut(|waiter| match waiter.try_wait().unwrap() {
                Some(status) => {
                    codes.push(status.success());
                    false
                }
                None => true,
            });
            codes.len() >= wanted
        });
        assert!(reached, "{codes:?}");
        codes
    };
    // One of each core's two entries may wait.
    let refused = ended(8usize.saturating_sub(cores));
    assert!(refused.iter().all(|success| !success));
    fs::write(mount.path("alive"), b"x").unwrap();
    flock(&holder, FlockOperation::Unlock).unwrap();
    let rest = ended(8 - refused.len());
    assert!(rest.iter().all(|success| *success), "{rest:?}");
    drop(holder);
    end(mount);
}
