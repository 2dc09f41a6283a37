//! O_APPEND, O_DIRECT, O_TMPFILE, O_SYNC.

use std::{
    fs::{self, File},
    io::Write,
    os::{fd::AsRawFd, unix::fs::FileExt, unix::fs::MetadataExt},
    process::{Child, Command},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat, openat},
    io::Errno,
};
use sluice_tests::Place;

use crate::{exists, open, pattern, stat};

#[test]
fn concurrent_appends_keep_every_record_whole() {
    const WRITERS: u32 = 4;
    const RECORDS: u32 = 500;
    let place = Place::new();
    let path = place.path("log");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &path;
            scope.spawn(move || {
                let mut file = File::options().append(true).create(true).open(path).unwrap();
                for record in 0..RECORDS {
                    let mut line = format!("{writer} {record} ").into_bytes();
                    line.resize(63, b'.');
                    line.push(b'\n');
                    assert_eq!(file.write(&line).unwrap(), 64);
                }
            });
        }
    });
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.len(), (WRITERS * RECORDS * 64) as usize);
    let mut next = [0; WRITERS as usize];
    for line in text.lines() {
        let mut words = line.split(' ').map(|w| w.parse::<u32>());
        let (writer, record) = (words.next().unwrap().unwrap(), words.next().unwrap().unwrap());
        assert_eq!(record, next[writer as usize], "out of order: {line}");
        next[writer as usize] += 1;
    }
    assert_eq!(next, [RECORDS; WRITERS as usize]);
}

/// `program` for a minute. A test beside this one that forks just now may have the file open for writing until its child is another program.
fn run(program: &std::path::Path) -> Child {
    loop {
        match Command::new(program).arg("60").spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            spawned => return spawned.unwrap(),
        }
    }
}

#[test]
fn a_program_that_runs_is_not_cut() {
    let place = Place::new();
    let path = place.path("program");
    fs::copy("/bin/sleep", &path).unwrap();
    let mut running = run(&path);
    let ways = [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC, OFlags::WRONLY | OFlags::TRUNC];
    let opened = ways.map(|way| openat(CWD, &path, way, Mode::empty()).err());
    let left = fs::read(&path).unwrap();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(opened, [Some(Errno::TXTBSY); 4]);
    assert!(left == fs::read("/bin/sleep").unwrap(), "{} bytes are left", left.len());
    openat(CWD, &path, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).unwrap();
    assert_eq!(stat(&path).st_size, 0);
}

#[test]
fn append_ignores_the_offset() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"first").unwrap();
    let file = File::options().append(true).open(&path).unwrap();
    // Linux appends even with pwrite: see BUGS in pwrite(2).
    file.write_all_at(b" second", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first second");
}

#[test]
fn direct_and_buffered_io_see_each_other() {
    const BLOCK: usize = 4096;
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(1 << 20)).unwrap();
    let buffered = File::options().read(true).write(true).open(&path).unwrap();
    let direct = open(&path, OFlags::RDWR | OFlags::DIRECT).unwrap();
    let mut memory = vec![0; (1 << 20) + BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let aligned = &mut memory[start..start + (1 << 20)];
    direct.read_exact_at(aligned, 0).unwrap();
    assert!(aligned == pattern(1 << 20));
    aligned[..BLOCK].fill(0xD1);
    direct.write_all_at(&aligned[..BLOCK], 8192).unwrap();
    let mut seen = [0; BLOCK];
    buffered.read_exact_at(&mut seen, 8192).unwrap();
    assert!(seen == [0xD1; BLOCK]);
    buffered.write_all_at(&[0xB0; BLOCK], 16384).unwrap();
    direct.read_exact_at(&mut aligned[..BLOCK], 16384).unwrap();
    assert!(aligned[..BLOCK] == [0xB0; BLOCK]);
    // Growing by a direct write, and a direct read across the end.
    direct.write_all_at(&aligned[..BLOCK], 1 << 20).unwrap();
    assert_eq!(buffered.metadata().unwrap().len(), (1 << 20) + BLOCK as u64);
    assert_eq!(direct.read_at(&mut aligned[..2 * BLOCK], 1 << 20).unwrap(), BLOCK);
}

fn tmpfile(place: &Place, more: OFlags) -> rustix::io::Result<File> {
    openat(CWD, place.root(), OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more, Mode::from_raw_mode(0o640))
        .map(Into::into)
}

#[test]
fn a_tmpfile_has_no_name_until_it_is_linked() {
    let mut place = Place::new();
    let mut file = tmpfile(&place, OFlags::empty()).expect("O_TMPFILE");
    file.write_all(&pattern(70_000)).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
    let path = place.path("named");
    let by_fd = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, by_fd.as_str(), CWD, &path, AtFlags::SYMLINK_FOLLOW).expect("linkat");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(file);
    place.remount();
    assert!(fs::read(&path).unwrap() == pattern(70_000));
    assert_eq!(stat(&path).st_mode & 0o777, 0o640);
}

#[test]
fn an_exclusive_tmpfile_cannot_be_linked() {
    let place = Place::new();
    let file = tmpfile(&place, OFlags::EXCL).expect("O_TMPFILE");
    let by_fd = format!("/proc/self/fd/{}", file.as_raw_fd());
    let linked = linkat(CWD, by_fd.as_str(), CWD, place.path("named"), AtFlags::SYMLINK_FOLLOW);
    assert_eq!(linked.unwrap_err(), Errno::NOENT);
    drop(file);
    assert!(!exists(place.path("named")));
}

#[test]
fn synchronous_writes_are_there_after_a_remount() {
    let mut place = Place::new();
    for (name, flag) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let mut file = open(place.path(name), OFlags::CREATE | OFlags::WRONLY | flag).unwrap();
        file.write_all(&pattern(40_000)).unwrap();
    }
    place.remount();
    assert!(fs::read(place.path("sync")).unwrap() == pattern(40_000));
    assert!(fs::read(place.path("dsync")).unwrap() == pattern(40_000));
}
