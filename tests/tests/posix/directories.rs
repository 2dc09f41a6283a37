//! Making and removing directories, their link counts, deep trees.

use std::{fs, path::PathBuf};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat},
    io::Errno,
};
use sluice_tests::Place;

use crate::{errno, stat};

#[test]
fn make_and_remove() {
    let place = Place::new();
    let dir = place.path("d");
    fs::create_dir(&dir).unwrap();
    assert_eq!(errno(fs::create_dir(&dir)), Errno::EXIST);
    assert_eq!(errno(fs::create_dir(place.path("no/d"))), Errno::NOENT);
    fs::write(dir.join("f"), b"x").unwrap();
    assert_eq!(errno(fs::create_dir(dir.join("f/d"))), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_dir(&dir)), Errno::NOTEMPTY);
    assert_eq!(errno(fs::remove_dir(dir.join("f"))), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(&dir)), Errno::ISDIR);
    fs::remove_file(dir.join("f")).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(errno(fs::remove_dir(&dir)), Errno::NOENT);
    assert_eq!(unlinkat(CWD, place.path("."), AtFlags::REMOVEDIR).unwrap_err(), Errno::INVAL);
}

#[test]
fn a_directory_counts_its_subdirectories() {
    let mut place = Place::new();
    let dir = place.path("d");
    fs::create_dir(&dir).unwrap();
    let base = stat(place.root()).st_nlink;
    assert_eq!(stat(&dir).st_nlink, 2);
    for i in 0..5 {
        fs::create_dir(dir.join(format!("{i}"))).unwrap();
        fs::write(dir.join(format!("f{i}")), b"").unwrap();
    }
    assert_eq!(stat(&dir).st_nlink, 7);
    fs::remove_dir(dir.join("3")).unwrap();
    fs::rename(dir.join("4"), place.path("moved")).unwrap();
    assert_eq!(stat(&dir).st_nlink, 5);
    assert_eq!(stat(place.root()).st_nlink, base + 1);
    place.remount();
    assert_eq!(stat(&dir).st_nlink, 5);
}

#[test]
fn a_tree_may_be_deeper_than_a_path_is_long() {
    // 200 levels of 100 bytes: 20,000 bytes, five times PATH_MAX, reachable only step by step.
    const LEVELS: usize = 200;
    let place = Place::new();
    let name = "d".repeat(100);
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let mut fds = vec![openat(CWD, place.root(), flags, Mode::empty()).unwrap()];
    for _ in 0..LEVELS {
        let parent = fds.last().unwrap();
        mkdirat(parent, &name, Mode::from_raw_mode(0o755)).unwrap();
        fds.push(openat(parent, &name, flags, Mode::empty()).unwrap());
    }
    let bottom = rustix::fs::fstat(fds.last().unwrap()).unwrap();
    let up: PathBuf = std::iter::repeat_n("..", LEVELS).collect();
    let top = openat(fds.last().unwrap(), &up, flags, Mode::empty()).unwrap();
    assert_eq!(rustix::fs::fstat(top).unwrap().st_ino, stat(place.root()).st_ino);
    assert_eq!(bottom.st_nlink, 2);
    while fds.pop().is_some() {
        if let Some(parent) = fds.last() {
            unlinkat(parent, &name, AtFlags::REMOVEDIR).unwrap();
        }
    }
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
}

#[test]
fn a_removed_directory_that_is_open_takes_nothing_new() {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = openat(CWD, place.path("d"), flags, Mode::empty()).unwrap();
    fs::remove_dir(place.path("d")).unwrap();
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_nlink, 0);
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    assert_eq!(openat(&fd, "f", create, Mode::from_raw_mode(0o644)).unwrap_err(), Errno::NOENT);
    assert_eq!(mkdirat(&fd, "d", Mode::from_raw_mode(0o755)).unwrap_err(), Errno::NOENT);
}
