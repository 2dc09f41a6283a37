//! Shared memory maps.
#![expect(unsafe_code, reason = "mapping a file is what is tested")]

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Command,
};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use sluice_tests::Place;

use crate::pattern;

const LEN: usize = 256 << 10;

/// A shared map of the first `LEN` bytes of a file.
struct Map(*mut u8);

impl Map {
    fn new(file: &File) -> Self {
        // SAFETY: the kernel chooses an address that nothing else uses; the map is LEN bytes long until it is dropped.
        let address =
            unsafe { mmap(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
        Self(address.expect("mmap").cast())
    }

    fn set(&self, index: usize, value: u8) {
        assert!(index < LEN);
        // SAFETY: inside the map, which is writable; volatile, because others write to the same pages.
        unsafe { self.0.wrapping_add(index).write_volatile(value) }
    }

    fn get(&self, index: usize) -> u8 {
        assert!(index < LEN);
        // SAFETY: inside the map, which is readable; volatile, because others write to the same pages.
        unsafe { self.0.wrapping_add(index).read_volatile() }
    }

    fn sync(&self) {
        // SAFETY: the range is the map, whole.
        unsafe { msync(self.0.cast(), LEN, MsyncFlags::SYNC) }.expect("msync");
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the map, whole, and nobody holds a reference into it.
        unsafe { munmap(self.0.cast(), LEN) }.expect("munmap");
    }
}

#[test]
fn two_maps_are_one_memory() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(LEN)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let other = File::options().read(true).write(true).open(&path).unwrap();
    let (a, b) = (Map::new(&file), Map::new(&other));
    assert_eq!(b.get(100_000), pattern(LEN)[100_000]);
    a.set(100_000, 0xFA);
    assert_eq!(b.get(100_000), 0xFA);
    // write(2) is seen in the map, and the map by read(2).
    file.write_all_at(&[0xFB], 5000).unwrap();
    assert_eq!(b.get(5000), 0xFB);
    let mut byte = [0];
    other.read_exact_at(&mut byte, 100_000).unwrap();
    assert_eq!(byte, [0xFA]);
}

#[test]
fn another_process_sees_the_map_at_once() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![b'.'; LEN]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let map = Map::new(&file);
    map.set(70_000, b'A');
    let script = "import mmap, sys\n\
        f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)\n\
        assert m[70000:70001] == b'A', m[70000:70001]\n\
        m[70001:70002] = b'B'";
    let python = Command::new("python3").args(["-c", script]).arg(&path).status().expect("python3");
    assert!(python.success());
    assert_eq!(map.get(70_001), b'B');
}

#[test]
fn what_was_mapped_is_stored() {
    let mut place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(LEN)).unwrap();
    let mut expected = pattern(LEN);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    {
        let map = Map::new(&file);
        for index in [0, 4095, 4096, 131_071, LEN - 1] {
            map.set(index, 0xEE);
            expected[index] = 0xEE;
        }
        map.sync();
        map.set(200_000, 0xEF);
        expected[200_000] = 0xEF;
    }
    // The last byte was never synced: closing must publish it all the same.
    drop(file);
    place.remount();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn a_map_survives_the_unlink_and_a_truncate_zeroes_its_tail() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, pattern(LEN)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let map = Map::new(&file);
    fs::remove_file(&path).unwrap();
    map.set(10, 1);
    file.set_len(100).unwrap();
    file.set_len(LEN as u64).unwrap();
    assert_eq!((map.get(10), map.get(99), map.get(100), map.get(LEN - 1)), (1, pattern(100)[99], 0, 0));
}
