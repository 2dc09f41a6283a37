//! rename and renameat2.

use std::{fs, path::Path};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use sluice_tests::Place;

use crate::{errno, exists, stat};

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> rustix::io::Result<()> {
    renameat_with(CWD, from, CWD, to, flags)
}

#[test]
fn files_over_files() {
    let mut place = Place::new();
    fs::write(place.path("a"), b"a").unwrap();
    fs::write(place.path("b"), b"b").unwrap();
    fs::hard_link(place.path("b"), place.path("b2")).unwrap();
    fs::rename(place.path("a"), place.path("b")).unwrap();
    assert!(!exists(place.path("a")));
    assert_eq!(fs::read(place.path("b")).unwrap(), b"a");
    assert_eq!(stat(place.path("b2")).st_nlink, 1);
    assert_eq!(errno(fs::rename(place.path("a"), place.path("b"))), Errno::NOENT);
    place.remount();
    assert_eq!(fs::read(place.path("b2")).unwrap(), b"b");
}

#[test]
fn two_names_of_one_file_stay() {
    let place = Place::new();
    fs::write(place.path("a"), b"x").unwrap();
    fs::hard_link(place.path("a"), place.path("b")).unwrap();
    fs::rename(place.path("a"), place.path("b")).unwrap();
    assert!(exists(place.path("a")) && exists(place.path("b")));
    fs::rename(place.path("a"), place.path("a")).unwrap();
    assert_eq!(stat(place.path("a")).st_nlink, 2);
}

#[test]
fn directories_over_directories() {
    let place = Place::new();
    fs::create_dir_all(place.path("full/below")).unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    fs::create_dir_all(place.path("other/below")).unwrap();
    fs::write(place.path("file"), b"").unwrap();
    assert_eq!(errno(fs::rename(place.path("full"), place.path("other"))), Errno::NOTEMPTY);
    assert_eq!(errno(fs::rename(place.path("full"), place.path("file"))), Errno::NOTDIR);
    assert_eq!(errno(fs::rename(place.path("file"), place.path("full"))), Errno::ISDIR);
    fs::rename(place.path("full"), place.path("empty")).unwrap();
    assert!(exists(place.path("empty/below")));
    assert!(!exists(place.path("full")));
    assert_eq!(stat(place.path("empty")).st_nlink, 3);
}

#[test]
fn a_directory_cannot_move_into_itself() {
    let place = Place::new();
    fs::create_dir_all(place.path("a/b/c")).unwrap();
    assert_eq!(errno(fs::rename(place.path("a"), place.path("a/b/c/a"))), Errno::INVAL);
    assert_eq!(errno(fs::rename(place.path("a"), place.path("a/x"))), Errno::INVAL);
    assert!(matches!(errno(fs::rename(place.path("a/b/c"), place.path("a"))), Errno::NOTEMPTY | Errno::EXIST));
}

#[test]
fn a_moved_directory_knows_its_new_parent() {
    let mut place = Place::new();
    fs::create_dir_all(place.path("from/d/below")).unwrap();
    fs::create_dir(place.path("to")).unwrap();
    fs::rename(place.path("from/d"), place.path("to/d")).unwrap();
    for _ in 0..2 {
        assert_eq!(stat(place.path("to/d/..")).st_ino, stat(place.path("to")).st_ino);
        assert_eq!((stat(place.path("from")).st_nlink, stat(place.path("to")).st_nlink), (2, 3));
        place.remount();
    }
}

#[test]
fn noreplace() {
    let place = Place::new();
    fs::write(place.path("a"), b"a").unwrap();
    fs::write(place.path("b"), b"b").unwrap();
    let (a, b, c) = (place.path("a"), place.path("b"), place.path("c"));
    assert_eq!(rename_with(&a, &b, RenameFlags::NOREPLACE).unwrap_err(), Errno::EXIST);
    assert_eq!(fs::read(&b).unwrap(), b"b");
    rename_with(&a, &c, RenameFlags::NOREPLACE).unwrap();
    assert_eq!(fs::read(&c).unwrap(), b"a");
    assert!(!exists(&a));
}

#[test]
fn exchange() {
    let mut place = Place::new();
    fs::write(place.path("file"), b"bytes").unwrap();
    fs::create_dir_all(place.path("x/dir/below")).unwrap();
    let (file, dir) = (place.path("file"), place.path("x/dir"));
    let (file_ino, dir_ino) = (stat(&file).st_ino, stat(&dir).st_ino);
    let root_nlink = stat(place.root()).st_nlink;
    assert_eq!(rename_with(&file, &place.path("no"), RenameFlags::EXCHANGE).unwrap_err(), Errno::NOENT);
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    assert_eq!(rename_with(&file, &dir, both).unwrap_err(), Errno::INVAL);
    rename_with(&file, &dir, RenameFlags::EXCHANGE).unwrap();
    for _ in 0..2 {
        assert_eq!((stat(&file).st_ino, stat(&dir).st_ino), (dir_ino, file_ino));
        assert!(exists(place.path("file/below")));
        assert_eq!(fs::read(&dir).unwrap(), b"bytes");
        assert_eq!((stat(place.root()).st_nlink, stat(place.path("x")).st_nlink), (root_nlink + 1, 2));
        place.remount();
    }
    let inside = place.path("file/below");
    assert_eq!(rename_with(&place.path("file"), &inside, RenameFlags::EXCHANGE).unwrap_err(), Errno::INVAL);
}

#[test]
fn a_replaced_name_is_never_missing() {
    const ROUNDS: u32 = 500;
    let place = Place::new();
    let path = place.path("config");
    fs::write(&path, "0".repeat(100)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..ROUNDS {
                fs::write(place.path("new"), (round % 10).to_string().repeat(100)).unwrap();
                fs::rename(place.path("new"), &path).unwrap();
            }
        });
        while !writer.is_finished() {
            let text = fs::read_to_string(&path).expect("one of the versions");
            assert_eq!(text.len(), 100);
            assert!(text.bytes().all(|b| b == text.as_bytes()[0]), "a mixture: {text}");
        }
    });
}
