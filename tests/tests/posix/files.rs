//! Regular files: bytes in, bytes out, sizes, truncation, holes, life after unlink.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt},
};

use rustix::{fs::OFlags, io::Errno};
use sluice_tests::Place;

use crate::{errno, exists, open, pattern, stat};

#[test]
fn what_was_written_is_read() {
    let mut place = Place::new();
    // Inline files, the edges of a segment, a journal write, a slot write, and several objects.
    for len in [0, 1, 4095, 4096, 4097, 32 << 10, (32 << 10) + 1, 128 << 10, 1 << 20, (9 << 20) + 7] {
        fs::write(place.path(format!("f{len}")), pattern(len)).unwrap();
    }
    for _ in 0..2 {
        for entry in fs::read_dir(place.root()).unwrap() {
            let path = entry.unwrap().path();
            let len: usize = path.file_name().unwrap().to_str().unwrap()[1..].parse().unwrap();
            assert_eq!(stat(&path).st_size as usize, len);
            assert!(fs::read(&path).unwrap() == pattern(len), "{} differs", path.display());
        }
        place.remount();
    }
}

#[test]
fn overwriting_in_the_middle_changes_only_that() {
    let mut place = Place::new();
    let path = place.path("f");
    let mut expected = pattern(300_000);
    fs::write(&path, &expected).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    for (offset, len) in [(0, 1), (4090, 12), (32_760, 20), (100_000, 70_000), (299_990, 20)] {
        let patch = vec![0xA5; len];
        file.write_all_at(&patch, offset as u64).unwrap();
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&patch);
    }
    drop(file);
    assert!(fs::read(&path).unwrap() == expected);
    place.remount();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn a_read_stops_at_the_end() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"0123456789").unwrap();
    let file = File::open(&path).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(file.read_at(&mut buffer, 4).unwrap(), 6);
    assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);
}

#[test]
fn truncate_cuts_grows_and_forgets() {
    let mut place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(100_000)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.set_len(50_001).unwrap();
    // What was cut off must not come back when the file grows again.
    file.set_len(90_000).unwrap();
    let mut expected = pattern(50_001);
    expected.resize(90_000, 0);
    assert!(fs::read(&path).unwrap() == expected);
    place.remount_after(file);
    assert!(fs::read(&path).unwrap() == expected);
    rustix::fs::ftruncate(File::options().write(true).open(&path).unwrap(), 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    assert_eq!(rustix::fs::ftruncate(File::open(&path).unwrap(), 0).unwrap_err(), Errno::INVAL);
    assert_eq!(errno(File::options().write(true).truncate(true).open(place.root())), Errno::ISDIR);
}

trait RemountAfter {
    fn remount_after(&mut self, open: File);
}

impl RemountAfter for Place {
    /// Closes a file first: a mount point with open files cannot be unmounted.
    fn remount_after(&mut self, open: File) {
        drop(open);
        self.remount();
    }
}

#[test]
fn a_sparse_file_reads_zeros_and_takes_little_room() {
    let mut place = Place::new();
    let path = place.path("f");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let far = 5 << 30;
    file.write_all_at(b"end", far).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    place.remount();
    let file = File::open(&path).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!(meta.len(), far + 3);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks for a few bytes", meta.blocks());
    let mut buffer = vec![1; 1 << 16];
    file.read_exact_at(&mut buffer, 3 << 30).unwrap();
    assert!(buffer.iter().all(|b| *b == 0));
    file.read_exact_at(&mut buffer[..3], far).unwrap();
    assert_eq!(&buffer[..3], b"end");
}

#[test]
fn blocks_follow_what_is_stored() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(1 << 20)).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let full = fs::metadata(&path).unwrap().blocks() * 512;
    assert!((1 << 20..=(1 << 20) + (64 << 10)).contains(&full), "{full} bytes in blocks for 1 MiB");
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    let place = Place::new();
    let path = place.path("f");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&pattern(200_000)).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!exists(&path));
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"still here", 150_000).unwrap();
    file.sync_all().unwrap();
    // The name is free for another file, which is not the same one.
    fs::write(&path, b"another").unwrap();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let mut expected = pattern(200_000);
    expected[150_000..150_010].copy_from_slice(b"still here");
    assert!(bytes == expected);
    assert_ne!(file.metadata().unwrap().ino(), stat(&path).st_ino);
    file.set_len(10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
}

#[test]
fn a_file_renamed_over_lives_while_it_is_open() {
    let place = Place::new();
    fs::write(place.path("old"), b"old bytes").unwrap();
    fs::write(place.path("new"), b"new bytes").unwrap();
    let mut file = File::open(place.path("old")).unwrap();
    fs::rename(place.path("new"), place.path("old")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old bytes");
    assert_eq!(fs::read(place.path("old")).unwrap(), b"new bytes");
}

#[test]
fn create_and_exclusive() {
    let place = Place::new();
    let path = place.path("f");
    assert_eq!(open(&path, OFlags::RDONLY).unwrap_err(), Errno::NOENT);
    open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).unwrap();
    assert_eq!(open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).unwrap_err(), Errno::EXIST);
    open(&path, OFlags::CREATE | OFlags::WRONLY).unwrap();
    assert_eq!(open(path.join("below"), OFlags::CREATE | OFlags::WRONLY).unwrap_err(), Errno::NOTDIR);
    assert_eq!(open(place.path("no/f"), OFlags::CREATE | OFlags::WRONLY).unwrap_err(), Errno::NOENT);
    assert_eq!(open(place.root(), OFlags::WRONLY).unwrap_err(), Errno::ISDIR);
    assert_eq!(open(&path, OFlags::DIRECTORY).unwrap_err(), Errno::NOTDIR);
}

#[test]
fn the_largest_file_has_an_end() {
    let place = Place::new();
    let file = File::options().write(true).create_new(true).open(place.path("f")).unwrap();
    let error = rustix::fs::ftruncate(&file, i64::MAX as u64)
        .and_then(|()| rustix::io::pwrite(&file, b"x", i64::MAX as u64).map(drop));
    assert!(matches!(error, Err(Errno::FBIG | Errno::INVAL)), "{error:?}");
    assert_eq!(rustix::io::write(File::open(place.path("f")).unwrap(), b"x").unwrap_err(), Errno::BADF);
}
