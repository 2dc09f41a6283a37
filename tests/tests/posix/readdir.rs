//! Listing directories: complete, without repetition, with cookies that stay valid while the directory changes.

use std::{
    collections::{HashMap, HashSet},
    fs,
    mem::MaybeUninit,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fd::OwnedFd,
    fs::{CWD, FileType, Mode, OFlags, RawDir, openat, seek},
};
use sluice_tests::Place;

use crate::stat;

fn open_dir(path: &Path) -> OwnedFd {
    openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// One entry as getdents64 returns it; `cookie` is where the next one starts.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    kind: FileType,
    ino: u64,
    cookie: u64,
}

/// Up to `max` entries from where the descriptor stands, by a small buffer: many calls, as a slow reader makes them.
fn read_some(fd: &OwnedFd, max: usize) -> Vec<Entry> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut dir = RawDir::new(fd, &mut buffer);
    let mut entries = Vec::new();
    while entries.len() < max {
        let Some(entry) = dir.next() else { break };
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        entries.push(Entry { name, kind: entry.file_type(), ino: entry.ino(), cookie: entry.next_entry_cookie() });
    }
    entries
}

fn names(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|e| e.name.as_str()).filter(|n| *n != "." && *n != "..").collect()
}

#[test]
fn every_entry_with_its_type_and_inode() {
    let place = Place::new();
    let dir = place.path("d");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("file"), b"").unwrap();
    symlink("x", dir.join("link")).unwrap();
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let entries = read_some(&open_dir(&dir), usize::MAX);
    let found: HashMap<_, _> = entries.iter().map(|e| (e.name.as_str(), e)).collect();
    assert_eq!(found.len(), entries.len());
    assert_eq!(found.len(), 6);
    for (name, kind) in [
        (".", FileType::Directory),
        ("..", FileType::Directory),
        ("sub", FileType::Directory),
        ("file", FileType::RegularFile),
        ("link", FileType::Symlink),
        ("fifo", FileType::Fifo),
    ] {
        assert_eq!(found[name].kind, kind, "{name}");
        assert_eq!(found[name].ino, stat(dir.join(name)).st_ino, "{name}");
    }
}

/// Makes the entries that stay for the whole test.
fn stable_entries(dir: &Path, count: usize) -> HashSet<String> {
    fs::create_dir(dir).unwrap();
    (0..count)
        .map(|i| {
            let name = format!("stable-{i:05}");
            fs::write(dir.join(&name), b"").unwrap();
            name
        })
        .collect()
}

#[test]
fn twenty_thousand_entries_under_concurrent_change() {
    let place = Place::new();
    let dir = place.path("d");
    let stable = stable_entries(&dir, 20_000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                fs::write(dir.join(format!("passing-{i}")), b"").unwrap();
                if i >= 10 {
                    fs::remove_file(dir.join(format!("passing-{}", i - 10))).unwrap();
                }
            }
        });
        for round in 0..3 {
            let entries = read_some(&open_dir(&dir), usize::MAX);
            let mut seen = HashMap::<&str, u32>::new();
            for name in names(&entries) {
                *seen.entry(name).or_default() += 1;
            }
            let wrong = stable.iter().find(|name| seen.get(name.as_str()) != Some(&1));
            let times = wrong.map(|name| seen.get(name.as_str()).copied().unwrap_or(0));
            // Stop the other thread before a failure, which would otherwise wait for it for ever.
            if wrong.is_some() || round == 2 {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(wrong.is_none(), "round {round}: {wrong:?} was seen {times:?} times");
            assert!(seen.values().all(|n| *n == 1), "a passing entry was seen twice");
        }
    });
}

#[test]
fn a_cookie_leads_back_to_where_it_was_given() {
    let place = Place::new();
    let dir = place.path("d");
    stable_entries(&dir, 1000);
    let fd = open_dir(&dir);
    let all = read_some(&fd, usize::MAX);
    for index in [0, 1, 2, 17, 500, 999] {
        seek(&fd, rustix::fs::SeekFrom::Start(all[index].cookie)).unwrap();
        let rest = read_some(&fd, usize::MAX);
        assert_eq!(names(&rest), names(&all[index + 1..]), "after entry {index}");
    }
    seek(&fd, rustix::fs::SeekFrom::Start(0)).unwrap();
    assert_eq!(names(&read_some(&fd, usize::MAX)), names(&all), "rewinddir");
    assert_eq!(all.iter().map(|e| e.cookie).collect::<HashSet<_>>().len(), all.len(), "cookies are distinct");
}

#[test]
fn a_cookie_outlives_the_entry_it_was_given_for() {
    let place = Place::new();
    let dir = place.path("d");
    let mut stable = stable_entries(&dir, 1000);
    let fd = open_dir(&dir);
    let all = read_some(&fd, usize::MAX);
    // Remove the entry itself and every second one; what follows must go on from the same place.
    let gone: HashSet<_> = all
        .iter()
        .filter(|e| e.name.starts_with("stable"))
        .step_by(2)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|e| e.name.clone())
        .collect();
    for name in &gone {
        fs::remove_file(dir.join(name)).unwrap();
        stable.remove(name);
    }
    for index in [3, 4, 500, 501] {
        seek(&fd, rustix::fs::SeekFrom::Start(all[index].cookie)).unwrap();
        let expected: Vec<_> = names(&all[index + 1..]).into_iter().filter(|n| !gone.contains(*n)).collect();
        assert_eq!(names(&read_some(&fd, usize::MAX)), expected, "after entry {index}");
    }
}

#[test]
fn removing_while_listing_removes_everything() {
    const ENTRIES: usize = 5000;
    let place = Place::new();
    let dir = place.path("d");
    stable_entries(&dir, ENTRIES);
    let fd = open_dir(&dir);
    let mut removed = 0;
    loop {
        // As rm -r does: read a few, remove them, read on with the same descriptor.
        let entries = read_some(&fd, 100);
        if entries.is_empty() {
            break;
        }
        // The kernel may have handed out more than were taken: go on after the last one taken.
        let last = entries.last().unwrap().cookie;
        for name in names(&entries) {
            fs::remove_file(dir.join(name)).unwrap();
            removed += 1;
        }
        seek(&fd, rustix::fs::SeekFrom::Start(last)).unwrap();
    }
    assert_eq!(removed, ENTRIES);
    fs::remove_dir(&dir).unwrap();
}
