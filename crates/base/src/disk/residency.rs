//! What of a file the kernel has in memory.

#![allow(unsafe_code, reason = "no library has cachestat(2)")]

use rustix::{
    fs::sendfile,
    io::{Errno, ReadWriteFlags, preadv2},
};
use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::{fd::AsRawFd, unix::fs::FileExt},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Number of cachestat(2), since Linux 6.5; the same on every architecture with the common table of numbers.
const CACHESTAT: libc::c_long = 451;

/// The kernel has no cachestat(2), or does not let us use it.
static LACKS_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    bytes: u64,
}

/// `struct cachestat`; counts of pages.
#[derive(Default)]
#[repr(C)]
struct Counts {
    cached: u64,
    dirty: u64,
    under_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Fills `buf` if that needs no disk.
pub(super) fn read(file: &File, buf: &mut [u8], offset: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        match preadv2(file, &mut [IoSliceMut::new(&mut buf[done..])], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(false),
            // File systems without it, as tmpfs.
            Err(Errno::OPNOTSUPP) => {
                let rest = &mut buf[done..];
                let is_there = cached_pages(file, at, rest.len() as u64)? == Some(pages(at, rest.len() as u64));
                return if is_there { file.read_exact_at(rest, at).map(|()| true) } else { Ok(false) };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

pub(super) fn is_resident(file: &File, offset: u64, bytes: u64) -> io::Result<Option<bool>> {
    Ok(cached_pages(file, offset, bytes)?.map(|cached| cached >= pages(offset, bytes)))
}

/// Waits for the disk. sendfile(2) takes references to pages once they are there, and /dev/null takes those for nothing.
pub(super) fn load(file: &File, mut offset: u64, bytes: u64) -> io::Result<()> {
    static NOWHERE: OnceLock<File> = OnceLock::new();
    let nowhere = match NOWHERE.get() {
        Some(nowhere) => nowhere,
        None => {
            let opened = File::options().write(true).open("/dev/null")?;
            NOWHERE.get_or_init(|| opened)
        }
    };
    let end = offset + bytes;
    while offset < end {
        let left = usize::try_from(end - offset).unwrap_or(usize::MAX);
        match sendfile(nowhere, file, Some(&mut offset), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Pages of [offset, offset + bytes) that are in memory; `None` where the kernel does not say.
fn cached_pages(file: &File, offset: u64, bytes: u64) -> io::Result<Option<u64>> {
    // A length of zero would mean the rest of the file.
    if bytes == 0 {
        return Ok(Some(0));
    }
    if LACKS_CACHESTAT.load(Relaxed) {
        return Ok(None);
    }
    let (range, mut counts) = (Range { offset, bytes }, Counts::default());
    // SAFETY: the descriptor is open for as long as `file` is borrowed; both structures are laid out as cachestat(2) has them, and
    // live on this stack until it returns. It writes to the second one alone, any bytes of which are valid.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    if done == 0 {
        return Ok(Some(counts.cached));
    }
    match io::Error::last_os_error() {
        // A filter of system calls, or a file that may not be asked about.
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP)) => {
            LACKS_CACHESTAT.store(true, Relaxed);
            Ok(None)
        }
        error => Err(error),
    }
}

/// Pages that hold a byte of [offset, offset + bytes).
fn pages(offset: u64, bytes: u64) -> u64 {
    let page_bytes = rustix::param::page_size() as u64;
    (offset + bytes).div_ceil(page_bytes) - offset / page_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise};
    use std::io::Write;

    const BYTES: usize = 1 << 20;

    /// A file of the disk, durable, so that its pages may be dropped.
    fn file() -> File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&(0..BYTES).map(|at| (at / 4096) as u8).collect::<Vec<_>>()).unwrap();
        file.sync_all().unwrap();
        file
    }

    fn is_there(file: &File, offset: u64, bytes: u64) -> bool {
        is_resident(file, offset, bytes).unwrap().expect("a kernel with cachestat(2)")
    }

    fn drop_pages(file: &File) {
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
    }

    #[test]
    fn what_was_written_is_there_until_it_is_dropped() {
        let (file, mut buf) = (file(), [0; 5000]);
        assert!(is_there(&file, 0, BYTES as u64) && is_there(&file, 4095, 2));
        assert!(read(&file, &mut buf, 4096 * 7 + 10).unwrap());
        assert_eq!((buf[0], buf[4999]), (7, 8));
        drop_pages(&file);
        fadvise(&file, 0, None, Advice::Random).unwrap();
        assert!(!is_there(&file, 0, BYTES as u64));
        file.read_exact_at(&mut buf, 8192).unwrap();
        assert!(is_there(&file, 8192, 5000));
        let neighbours = (is_there(&file, 4096, 4096), is_there(&file, 16384, 4096));
        assert_eq!(neighbours, (false, false), "no more than was asked for");
        assert!(!is_there(&file, 8192, 9000));
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        let file = file();
        let read = read(&file, &mut [0; 100], BYTES as u64 - 50).map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn pages_are_those_that_are_touched() {
        let page_bytes = rustix::param::page_size() as u64;
        assert_eq!([pages(0, 1), pages(page_bytes - 1, 2), pages(page_bytes, page_bytes)], [1, 2, 1]);
    }
}
