//! Every type that mknod makes.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
};

use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    io::Errno,
};
use sluice_tests::{NOBODY, Place, as_user};

use crate::{chmod, stat};

fn mknod(place: &Place, name: &str, kind: FileType, dev: u64) -> rustix::io::Result<()> {
    mknodat(CWD, place.path(name), kind, Mode::from_raw_mode(0o640), dev)
}

#[test]
fn every_type() {
    let mut place = Place::new();
    // Numbers that need all the bits of Linux's 12 + 20 bit device numbers.
    let dev = makedev(0xABC, 0xF_1234);
    let kinds = [
        ("regular", FileType::RegularFile, 0),
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("char", FileType::CharacterDevice, dev),
        ("block", FileType::BlockDevice, dev),
    ];
    for (name, kind, dev) in kinds {
        mknod(&place, name, kind, dev).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(mknod(&place, name, kind, dev).unwrap_err(), Errno::EXIST);
    }
    place.remount();
    for (name, kind, dev) in kinds {
        let stat = stat(place.path(name));
        assert_eq!(FileType::from_raw_mode(stat.st_mode), kind, "{name}");
        assert_eq!(stat.st_mode & 0o7777, 0o640, "{name}");
        assert_eq!((stat.st_nlink, stat.st_size), (1, 0), "{name}");
        if dev != 0 {
            assert_eq!(stat.st_rdev, dev, "{name}");
        }
        fs::remove_file(place.path(name)).unwrap();
    }
}

#[test]
fn a_fifo_carries_bytes() {
    let place = Place::new();
    mknod(&place, "fifo", FileType::Fifo, 0).unwrap();
    let path = place.path("fifo");
    std::thread::scope(|scope| {
        scope.spawn(|| File::options().write(true).open(&path).unwrap().write_all(b"through").unwrap());
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    });
}

#[test]
fn a_socket_carries_bytes() {
    let place = Place::new();
    let listener = UnixListener::bind(place.path("socket")).unwrap();
    let mut client = UnixStream::connect(place.path("socket")).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn only_root_makes_devices() {
    let place = Place::new();
    chmod(place.root(), 0o777);
    as_user(NOBODY, NOBODY, &[], || {
        assert_eq!(mknod(&place, "null", FileType::CharacterDevice, makedev(1, 3)).unwrap_err(), Errno::PERM);
        mknod(&place, "fifo", FileType::Fifo, 0).unwrap();
    });
}
