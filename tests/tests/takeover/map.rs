//! A shared memory map.
#![expect(unsafe_code, reason = "mapping a file is what is tested")]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::File;

/// The first [`Map::LEN`] bytes of a file.
pub struct Map(*mut u8);

impl Map {
    pub const LEN: usize = 64 << 10;

    pub fn new(file: &File) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nothing else uses; the map is LEN bytes long until it is dropped.
        let address = unsafe { mmap(std::ptr::null_mut(), Self::LEN, access, MapFlags::SHARED, file, 0) };
        Self(address.expect("mmap").cast())
    }

    pub fn set(&self, index: usize, value: u8) {
        assert!(index < Self::LEN);
        // SAFETY: inside the map, which is writable; volatile, because the kernel writes the page out meanwhile.
        unsafe { self.0.wrapping_add(index).write_volatile(value) }
    }

    pub fn get(&self, index: usize) -> u8 {
        assert!(index < Self::LEN);
        // SAFETY: inside the map, which is readable; volatile as above.
        unsafe { self.0.wrapping_add(index).read_volatile() }
    }

    pub fn sync(&self) {
        // SAFETY: the range is the map, whole.
        unsafe { msync(self.0.cast(), Self::LEN, MsyncFlags::SYNC) }.expect("msync");
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the map, whole, and nobody holds a reference into it.
        unsafe { munmap(self.0.cast(), Self::LEN) }.expect("munmap");
    }
}
