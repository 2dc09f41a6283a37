//! Close-to-open, names, and names that are taken by several at once.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    thread,
    time::Duration,
};

use sluice_tests::{Mount, Server, Stopwatch, skipped_in_local_mode, wait_for};

use crate::{noise, read};

/// Names and attributes that others changed are dropped by the kernel a moment after the change, data before it returns.
const SOON: Duration = Duration::from_secs(5);

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_one_closes_the_other_opens() {
    if skipped_in_local_mode("what_one_closes_the_other_opens") {
        return;
    }
    let server = Server::new();
    let (a, b) = (server.mount("a"), server.mount("b"));
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        // Inline, packed and in slots of their own; each shorter or longer than before.
        for len in [10 + round as usize, 3000, 50_000, 300_000 - 1000 * round as usize] {
            let bytes = noise(round * 7 + len as u64, len);
            fs::write(from.path("f"), &bytes).unwrap();
            assert!(read(to.path("f")).unwrap() == bytes, "round {round}, {len} bytes");
            assert_eq!(fs::metadata(to.path("f")).unwrap().len(), len as u64);
        }
    }
    // A reader that has its pages cached sees the new ones at its next open, and what is appended.
    let mut log = File::options().append(true).open(a.path("f")).unwrap();
    for i in 0..10 {
        let before = read(b.path("f")).unwrap();
        writeln!(log, "line {i}").unwrap();
        log.sync_all().unwrap();
        let after = read(b.path("f")).unwrap();
        assert!(after.starts_with(&before) && after.ends_with(format!("line {i}\n").as_bytes()), "line {i}");
    }
    drop(log);
    a.umount();
    b.umount();
}

#[test]
fn names_and_attributes() {
    if skipped_in_local_mode("names_and_attributes") {
        return;
    }
    let server = Server::new();
    let (a, b) = (server.mount("a"), server.mount("b"));
    assert!(!b.path("d").exists(), "that there is no such name may be cached from now on");
    fs::create_dir(a.path("d")).unwrap();
    wait_for("the directory to be seen", SOON, || b.path("d").is_dir());
    fs::write(b.path("d/f"), b"1").unwrap();
    assert_eq!(fs::read(a.path("d/f")).unwrap(), b"1");
    fs::set_permissions(a.path("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
    wait_for("the mode to be seen", SOON, || fs::metadata(b.path("d/f")).unwrap().mode() & 0o777 == 0o640);
    fs::rename(b.path("d/f"), b.path("d/g")).unwrap();
    wait_for("the old name to be gone", SOON, || !a.path("d/f").exists());
    assert_eq!(fs::read(a.path("d/g")).unwrap(), b"1");
    fs::hard_link(a.path("d/g"), a.path("link")).unwrap();
    wait_for("the link to be counted", SOON, || fs::metadata(b.path("d/g")).unwrap().nlink() == 2);
    symlink("d/g", b.path("sym")).unwrap();
    assert_eq!(fs::read(a.path("sym")).unwrap(), b"1");
    // Replaced under a reader: whole, old or new.
    fs::write(a.path("next"), b"2").unwrap();
    fs::rename(a.path("next"), a.path("d/g")).unwrap();
    wait_for("the new file to be seen", SOON, || fs::read(b.path("d/g")).unwrap() == b"2");
    assert_eq!(fs::read(b.path("link")).unwrap(), b"1");
    fs::remove_file(b.path("d/g")).unwrap();
    wait_for("the name to be gone", SOON, || names(&a.path("d")).is_empty());
    fs::remove_dir(a.path("d")).unwrap();
    assert_eq!(names(a.root()), BTreeSet::from(["link".into(), "sym".into()]));
    drop((a, b));
}

/// To be survived: a file loses its name on one mount while another has it open.
#[test]
fn unlinked_elsewhere_while_open() {
    if skipped_in_local_mode("unlinked_elsewhere_while_open") {
        return;
    }
    let server = Server::new();
    let (a, b) = (server.mount("a"), server.mount("b"));
    let bytes = noise(1, 200_000);
    fs::write(a.path("f"), &bytes).unwrap();
    let mut open = File::options().read(true).write(true).open(b.path("f")).unwrap();
    fs::remove_file(a.path("f")).unwrap();
    wait_for("the name to be gone", SOON, || !b.path("f").exists());
    let mut found = Vec::new();
    open.read_to_end(&mut found).unwrap();
    assert!(found == bytes, "the bytes of an open file");
    open.write_all(b"more").unwrap();
    open.sync_all().unwrap();
    open.rewind().unwrap();
    let mut found = Vec::new();
    open.read_to_end(&mut found).unwrap();
    assert!(found.len() == bytes.len() + 4 && found.ends_with(b"more"));
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    drop(open);
    a.umount();
    b.umount();
    let mut server = server;
    server.stop();
    server.volume().fsck_is_clean();
}

/// To be survived: both make, link and rename the same names at once. Each name is made by one of them, and nobody waits for a lease.
#[test]
fn both_at_once_in_one_directory() {
    if skipped_in_local_mode("both_at_once_in_one_directory") {
        return;
    }
    const NAMES: usize = 150;
    let server = Server::new();
    let mounts = [server.mount("a"), server.mount("b")];
    let watch = Stopwatch::start();
    let made: Vec<BTreeSet<usize>> = thread::scope(|scope| {
        let workers: Vec<_> = mounts
            .iter()
            .enumerate()
            .map(|(me, mount)| {
                scope.spawn(move || {
                    let own = |name: &usize| match File::create_new(mount.path(format!("{name}"))) {
                        Ok(file) => {
                            file.write_all_at(format!("{me}").as_bytes(), 0).unwrap();
                            true
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
                            false
                        }
                    };
                    (0..NAMES).filter(own).collect()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(made[0].is_disjoint(&made[1]), "a name was made twice");
    assert_eq!(made[0].len() + made[1].len(), NAMES);
    assert!(watch.elapsed() < Duration::from_secs(30), "took {:?}", watch.elapsed());
    for mount in &mounts {
        wait_for("all names to be seen", SOON, || names(mount.root()).len() == NAMES);
        for (me, names) in made.iter().enumerate() {
            for name in names {
                assert_eq!(fs::read(mount.path(format!("{name}"))).unwrap(), format!("{me}").as_bytes(), "file {name}");
            }
        }
    }
    drop(mounts);
}

/// To be kept: two mounts write the same file at the same time. What a call wrote is there as a whole or not at all, and who closes last has the
/// last word on what both wrote.
#[test]
fn two_mounts_write_one_file() {
    if skipped_in_local_mode("two_mounts_write_one_file") {
        return;
    }
    const BLOCK: usize = 300_000;
    const BLOCKS: u64 = 12;
    /// A block tells who wrote it, and when.
    fn block(writer: u64, at: u64, round: u64) -> Vec<u8> {
        let mut bytes = crate::noise(writer << 32 | at << 16 | round, BLOCK);
        bytes[..24].copy_from_slice([writer, at, round].map(u64::to_le_bytes).as_flattened());
        bytes
    }
    fn told(bytes: &[u8]) -> (u64, u64, u64) {
        let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
        (word(0), word(1), word(2))
    }
    let server = Server::new();
    let mounts = [server.mount("one"), server.mount("two")];
    for round in 1..6 {
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (writer, mount) in mounts.iter().enumerate() {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let mut options = File::options();
                    options.create(true).truncate(false).write(true);
                    // One makes it, the other opens what was made.
                    let file = options.open(mount.path(format!("file-{round}"))).unwrap();
                    for n in 0..BLOCKS {
                        // In opposite directions.
                        let at = if writer == 0 { n } else { BLOCKS - 1 - n };
                        file.write_all_at(&block(writer as u64, at, round), at * BLOCK as u64).unwrap();
                    }
                });
            }
        });
        let read: Vec<Vec<u8>> =
            mounts.iter().map(|mount| fs::read(mount.path(format!("file-{round}"))).unwrap()).collect();
        assert!(read[0] == read[1], "after both closed, all see the same");
        assert_eq!(read[0].len(), BLOCK * BLOCKS as usize);
        for (n, bytes) in read[0].chunks(BLOCK).enumerate() {
            let (writer, at, when) = told(bytes);
            assert_eq!((at, when), (n as u64, round), "a block of this round, at its place");
            assert!(bytes == block(writer, at, when), "the block is mixed");
        }
    }
    // The last word: one after the other.
    for (writer, mount) in mounts.iter().enumerate().chain([(0, &mounts[0])]) {
        let file = File::options().write(true).open(mount.path("file-1")).unwrap();
        file.write_all_at(&block(writer as u64, 3, 99), 3 * BLOCK as u64).unwrap();
    }
    let read = fs::read(mounts[1].path("file-1")).unwrap();
    assert!(read[3 * BLOCK..4 * BLOCK] == block(0, 3, 99));
    mounts.into_iter().for_each(Mount::umount);
}
