//! Names are bytes: any of them but `/` and NUL, up to 255.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use rustix::io::Errno;
use sluice_tests::Place;

use crate::{errno, exists};

#[test]
fn names_of_255_bytes_and_no_more() {
    let mut place = Place::new();
    let longest = "n".repeat(255);
    let longer = "n".repeat(256);
    fs::write(place.path(&longest), b"x").unwrap();
    assert_eq!(errno(fs::write(place.path(&longer), b"x")), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::create_dir(place.path(&longer))), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::rename(place.path(&longest), place.path(&longer))), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::hard_link(place.path(&longest), place.path(&longer))), Errno::NAMETOOLONG);
    assert_eq!(errno(std::os::unix::fs::symlink("x", place.path(&longer))), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::metadata(place.path(&longer))), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::remove_file(place.path(&longer))), Errno::NAMETOOLONG);
    place.remount();
    assert!(exists(place.path(&longest)));
}

#[test]
fn a_path_of_4096_bytes_is_too_long() {
    let place = Place::new();
    let path = place.path("x/".repeat(2048));
    assert_eq!(errno(fs::metadata(path)), Errno::NAMETOOLONG);
}

#[test]
fn names_need_not_be_text() {
    let mut place = Place::new();
    let mut names: Vec<Vec<u8>> = (1..=255).filter(|b| *b != b'/' && *b != b'.').map(|b| vec![b]).collect();
    names.extend([b"\xff\xfe\x80".to_vec(), b"caf\xe9".to_vec(), b"a\nb".to_vec(), b"...".to_vec(), vec![0xC3; 255]]);
    // Unicode's two spellings of one letter are two names.
    names.extend([
        "caf\u{e9}".as_bytes().to_vec(),
        "cafe\u{301}".as_bytes().to_vec(),
        b"CAFE".to_vec(),
        b"cafe".to_vec(),
    ]);
    for name in &names {
        fs::write(place.path(OsStr::from_bytes(name)), name).unwrap();
    }
    place.remount();
    let mut seen: Vec<_> =
        fs::read_dir(place.root()).unwrap().map(|e| OsString::into_vec(e.unwrap().file_name())).collect();
    seen.sort();
    names.sort();
    assert_eq!(seen, names);
    for name in &names {
        assert_eq!(&fs::read(place.path(OsStr::from_bytes(name))).unwrap(), name);
    }
}
