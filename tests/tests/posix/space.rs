//! fallocate, holes, copy_file_range.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    time::SystemTime,
};

use rustix::{
    fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek},
    io::Errno,
};
use sluice_tests::Place;

use crate::pattern;

const MIB: u64 = 1 << 20;

fn read_write(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn fallocate_grows_with_zeros() {
    let mut place = Place::new();
    let path = place.path("f");
    let file = read_write(&path);
    file.write_all_at(b"abc", 0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 2).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3, "a range inside the file changes no size");
    fallocate(&file, FallocateFlags::empty(), 100_000, 50_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 150_000);
    drop(file);
    place.remount();
    let mut expected = b"abc".to_vec();
    expected.resize(150_000, 0);
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn fallocate_keep_size() {
    let place = Place::new();
    let file = read_write(&place.path("f"));
    file.write_all_at(b"abc", 0).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    assert!(file.metadata().unwrap().modified().unwrap() > SystemTime::UNIX_EPOCH, "as on ext4");
    file.set_len(MIB).unwrap();
    let mut tail = vec![1; 100];
    file.read_exact_at(&mut tail, 3).unwrap();
    assert!(tail.iter().all(|b| *b == 0));
}

#[test]
fn punch_and_zero() {
    let mut place = Place::new();
    let path = place.path("f");
    let mut expected = pattern(MIB as usize);
    fs::write(&path, &expected).unwrap();
    let file = read_write(&path);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (offset, len) in [(1, 10), (5000, 100_000), (262_144, 131_072), (MIB - 10, 100)] {
        fallocate(&file, punch, offset, len).unwrap();
        expected[offset as usize..(offset + len).min(MIB) as usize].fill(0);
    }
    assert_eq!(file.metadata().unwrap().len(), MIB, "punching past the end changes no size");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 600_001, 50_000).unwrap();
    expected[600_001..650_001].fill(0);
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, MIB - 5, 1000).unwrap();
    expected[MIB as usize - 5..].fill(0);
    assert_eq!(file.metadata().unwrap().len(), MIB);
    fallocate(&file, FallocateFlags::ZERO_RANGE, MIB - 5, 1005).unwrap();
    expected.resize(MIB as usize + 1000, 0);
    drop(file);
    for _ in 0..2 {
        assert!(fs::read(&path).unwrap() == expected);
        place.remount();
    }
}

#[test]
fn punching_gives_the_room_back() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(8 << 20)).unwrap();
    let file = read_write(&path);
    file.sync_all().unwrap();
    let before = file.metadata().unwrap().blocks();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 7 << 20).unwrap();
    let after = file.metadata().unwrap().blocks();
    assert!(after * 4 < before, "{before} blocks, {after} after punching seven eighths");
}

#[test]
fn fallocate_refuses() {
    let place = Place::new();
    let file = read_write(&place.path("f"));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 0).unwrap_err(), Errno::INVAL);
    assert_eq!(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 1).unwrap_err(), Errno::OPNOTSUPP);
    let read_only = File::open(place.path("f")).unwrap();
    assert_eq!(fallocate(&read_only, FallocateFlags::empty(), 0, 1).unwrap_err(), Errno::BADF);
    let too_far = fallocate(&file, FallocateFlags::empty(), i64::MAX as u64 - 10, 1000).unwrap_err();
    assert_eq!(too_far, Errno::FBIG);
}

/// The runs of data that SEEK_DATA and SEEK_HOLE report.
fn data_runs(file: &File) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut at = 0;
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(start) => {
                at = seek(file, SeekFrom::Hole(start)).unwrap();
                assert!(at > start, "a run without length at {start}");
                runs.push((start, at));
            }
            Err(e) => {
                assert_eq!(e, Errno::NXIO);
                return runs;
            }
        }
    }
}

#[test]
fn seek_data_and_hole() {
    let mut place = Place::new();
    let path = place.path("f");
    let file = read_write(&path);
    file.write_all_at(&pattern(MIB as usize), 4 * MIB).unwrap();
    file.write_all_at(&pattern(10), 80 * MIB).unwrap();
    file.set_len(100 * MIB).unwrap();
    file.sync_all().unwrap();
    let mut file = file;
    for _ in 0..2 {
        let runs = data_runs(&file);
        // Where a run ends may be rounded, but nothing written may be reported as a hole, nor much else as data.
        for (start, end) in [(4 * MIB, 5 * MIB), (80 * MIB, 80 * MIB + 10)] {
            let covered = runs.iter().any(|r| r.0 <= start && end <= r.1);
            assert!(covered, "{start}..{end} is not reported as data: {runs:?}");
        }
        let reported: u64 = runs.iter().map(|r| r.1 - r.0).sum();
        assert!(reported <= 2 * MIB, "{runs:?}");
        assert_eq!(seek(&file, SeekFrom::Data(100 * MIB)).unwrap_err(), Errno::NXIO);
        assert_eq!(seek(&file, SeekFrom::Hole(100 * MIB)).unwrap_err(), Errno::NXIO);
        assert_eq!(seek(&file, SeekFrom::Hole(90 * MIB)).unwrap(), 90 * MIB);
        drop(file);
        place.remount();
        file = read_write(&path);
    }
}

fn copy_all(from: &File, from_offset: u64, to: &File, to_offset: u64, len: usize) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done < len {
        let (mut from_at, mut to_at) = (from_offset + done as u64, to_offset + done as u64);
        match copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len - done)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

#[test]
fn copy_file_range_copies() {
    let mut place = Place::new();
    let (a, b) = (place.path("a"), place.path("b"));
    let source = pattern(5_000_000);
    fs::write(&a, &source).unwrap();
    fs::write(&b, vec![0xEE; 100_000]).unwrap();
    let (from, to) = (read_write(&a), read_write(&b));
    let mut expected = vec![0xEE; 100_000];
    for (from_at, to_at, len) in [(0, 0, 10), (40_000, 50_001, 7_777), (1_000_000, 200_000, 3_000_000)] {
        assert_eq!(copy_all(&from, from_at as u64, &to, to_at as u64, len).unwrap(), len);
        expected.resize(expected.len().max(to_at + len), 0);
        expected[to_at..to_at + len].copy_from_slice(&source[from_at..from_at + len]);
    }
    assert_eq!(copy_all(&from, 4_999_990, &to, 0, 1000).unwrap(), 10, "it ends where the source ends");
    expected[..10].copy_from_slice(&source[4_999_990..]);
    // A copy is a copy: changing the source afterwards does not show in it.
    from.write_all_at(&[0; 4096], 1_500_000).unwrap();
    drop((from, to));
    for _ in 0..2 {
        assert!(fs::read(&b).unwrap() == expected);
        place.remount();
    }
}

#[test]
fn a_copy_outlives_its_source() {
    let mut place = Place::new();
    let (a, b) = (place.path("a"), place.path("b"));
    let bytes = pattern(1_000_000);
    let (from, to) = (read_write(&a), read_write(&b));
    from.write_all_at(&bytes, 0).unwrap();
    assert_eq!(copy_all(&from, 0, &to, 0, bytes.len()).unwrap(), bytes.len());
    // The copy is in the volume before the source, which then has nothing of it any more.
    to.sync_all().unwrap();
    from.set_len(0).unwrap();
    drop((from, to));
    for _ in 0..2 {
        assert!(fs::read(&b).unwrap() == bytes);
        place.remount();
    }
}

#[test]
fn copy_file_range_within_a_file() {
    let place = Place::new();
    let path = place.path("f");
    let mut expected = pattern(400_000);
    fs::write(&path, &expected).unwrap();
    let file = read_write(&path);
    assert_eq!(copy_all(&file, 0, &file, 300_000, 200_000).unwrap(), 200_000);
    expected.resize(500_000, 0);
    expected.copy_within(0..200_000, 300_000);
    assert!(fs::read(&path).unwrap() == expected);
    let mut offsets = (0, 100);
    let overlap = copy_file_range(&file, Some(&mut offsets.0), &file, Some(&mut offsets.1), 1000);
    assert_eq!(overlap.unwrap_err(), Errno::INVAL);
}

#[test]
fn a_hole_is_copied_as_zeros() {
    let place = Place::new();
    let (from, to) = (read_write(&place.path("a")), read_write(&place.path("b")));
    from.set_len(MIB).unwrap();
    from.write_all_at(b"tail", MIB - 4).unwrap();
    to.write_all_at(&vec![7; MIB as usize], 0).unwrap();
    assert_eq!(copy_all(&from, 0, &to, 0, MIB as usize).unwrap(), MIB as usize);
    assert!(fs::read(place.path("a")).unwrap() == fs::read(place.path("b")).unwrap());
}
