//! Hard links and symbolic links.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use rustix::{
    fs::{AtFlags, CWD, linkat},
    io::Errno,
};
use sluice_tests::Place;

use crate::{errno, pattern, stat};

#[test]
fn hard_links_share_everything() {
    let mut place = Place::new();
    let (a, b) = (place.path("a"), place.path("d/b"));
    fs::create_dir(place.path("d")).unwrap();
    fs::write(&a, pattern(10_000)).unwrap();
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(stat(&a).st_ino, stat(&b).st_ino);
    assert_eq!(stat(&a).st_nlink, 2);
    assert_eq!(errno(fs::hard_link(&a, &b)), Errno::EXIST);
    fs::write(&b, b"through the other name").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"through the other name");
    place.remount();
    assert_eq!(stat(&a).st_ino, stat(&b).st_ino);
    fs::remove_file(&a).unwrap();
    assert_eq!(stat(&b).st_nlink, 1);
    assert_eq!(fs::read(&b).unwrap(), b"through the other name");
}

#[test]
fn a_thousand_links_to_one_file() {
    const LINKS: u64 = 1000;
    let place = Place::new();
    fs::write(place.path("f"), b"x").unwrap();
    for i in 0..LINKS {
        fs::hard_link(place.path("f"), place.path(format!("l{i}"))).unwrap();
    }
    assert_eq!(fs::metadata(place.path("f")).unwrap().nlink(), LINKS + 1);
    for i in 0..LINKS / 2 {
        fs::remove_file(place.path(format!("l{i}"))).unwrap();
    }
    assert_eq!(fs::metadata(place.path("f")).unwrap().nlink(), LINKS / 2 + 1);
}

#[test]
fn directories_cannot_be_hard_linked() {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    assert_eq!(errno(fs::hard_link(place.path("d"), place.path("e"))), Errno::PERM);
    assert_eq!(errno(fs::hard_link(place.path("no"), place.path("e"))), Errno::NOENT);
}

#[test]
fn a_symbolic_link_can_be_hard_linked() {
    let place = Place::new();
    symlink("nowhere", place.path("s")).unwrap();
    linkat(CWD, place.path("s"), CWD, place.path("t"), AtFlags::empty()).unwrap();
    assert_eq!(stat(place.path("s")).st_ino, stat(place.path("t")).st_ino);
    assert_eq!(stat(place.path("t")).st_nlink, 2);
}

#[test]
fn symbolic_links_keep_their_bytes() {
    let mut place = Place::new();
    let longest = "x/".repeat(2047) + "y";
    assert_eq!(longest.len(), 4095);
    symlink(&longest, place.path("long")).unwrap();
    symlink("a", place.path("short")).unwrap();
    let bytes = std::ffi::OsStr::new("caf\u{e9}");
    symlink(bytes, place.path("other")).unwrap();
    assert!(rustix::fs::symlink(longest + "z", place.path("longer")).is_err());
    assert_eq!(errno(symlink("", place.path("empty"))), Errno::NOENT);
    place.remount();
    assert_eq!(fs::read_link(place.path("long")).unwrap().as_os_str().len(), 4095);
    assert_eq!(stat(place.path("long")).st_size, 4095);
    assert_eq!(stat(place.path("long")).st_mode & 0o7777, 0o777);
    assert_eq!(fs::read_link(place.path("short")).unwrap().as_os_str(), "a");
    assert_eq!(fs::read_link(place.path("other")).unwrap(), bytes);
    assert_eq!(errno(fs::read_link(place.root())), Errno::INVAL);
}

#[test]
fn symbolic_links_are_followed() {
    let place = Place::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    symlink("../a", place.path("a/up")).unwrap();
    fs::write(place.path("a/up/b/f"), b"found").unwrap();
    assert_eq!(fs::read(place.path("a/b/f")).unwrap(), b"found");
    symlink("loop", place.path("loop")).unwrap();
    assert_eq!(errno(fs::read(place.path("loop"))), Errno::LOOP);
    symlink("missing", place.path("dangling")).unwrap();
    assert_eq!(errno(fs::read(place.path("dangling"))), Errno::NOENT);
    // Creating through a dangling link creates its target; with O_EXCL the link itself is in the way.
    fs::write(place.path("dangling"), b"made").unwrap();
    assert_eq!(fs::read(place.path("missing")).unwrap(), b"made");
    assert_eq!(errno(fs::File::create_new(place.path("dangling"))), Errno::EXIST);
}
