//! Reads of what is hot: by copy and by reference, with and without checks, in good and in bad weather. All of them need the binary.

mod cold;
mod rot;
mod steady;
mod transfer;

use rustix::fs::{Mode, OFlags};
use sluice_tests::{Mount, needs_binary, noise};
use std::{fs::File, os::unix::fs::FileExt, path::Path};

/// Opens a file whose reads do not go through the page cache.
fn open_direct(path: &Path) -> File {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).expect("open").into()
}

/// A place of memory as O_DIRECT needs it.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// Reads blocks of `block` bytes from all over `file` and compares them with `bytes`.
#[track_caller]
fn read_all_over(file: &File, bytes: &[u8], block: usize, count: usize) {
    let mut found = Aligned::new(block);
    for index in 0..count {
        let at = index.wrapping_mul(7_000_003) % (bytes.len() - block) / block * block;
        file.read_exact_at(found.get(), at as u64).expect("read");
        assert!(*found.get() == bytes[at..at + block], "{block} bytes at {at}");
    }
}

/// A number of the mount's requests.
fn requests(mount: &Mount, name: &str) -> u64 {
    mount.status()["requests"][name].as_u64().unwrap_or_else(|| panic!("no {name}"))
}
