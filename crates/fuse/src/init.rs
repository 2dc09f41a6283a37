//! INIT: what the two sides agree on. No I/O here.

use crate::abi::flags::init as flag;
use crate::abi::inputs::InitIn;
use crate::abi::outputs::InitOut;
use crate::abi::{MAJOR, MINOR, MINOR_MIN};
use crate::session::Config;

/// The largest WRITE and READ in bytes: 256 pages, what the kernel's fs.fuse.max_pages_limit allows unless raised.
pub const TRANSFER_MAX: u32 = 1 << 20;

/// What holds for the life of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version of the protocol both speak.
    pub minor: u32,
    /// Flags both want, [`crate::abi::flags::init`].
    pub flags: u64,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
}

/// The kernel cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InitError {
    /// Another major version, or a minor one from before Linux 5.17.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.{MINOR_MIN} or later is needed (Linux 5.17)")]
    Version {
        /// Of the kernel.
        major: u32,
        /// Of the kernel.
        minor: u32,
    },
    /// A flag that the parser relies on is not offered.
    #[error("the kernel's FUSE lacks a feature that is needed (INIT flags {missing:#x})")]
    Missing {
        /// The flags.
        missing: u64,
    },
}

/// Without these the layout of requests is another one than the parser's.
const REQUIRED: u64 = flag::SETXATTR_EXT | flag::MAX_PAGES | flag::BIG_WRITES;

/// Taken when offered. Not among them, on purpose: WRITEBACK_CACHE (the kernel would own size and times), AUTO_ and
/// EXPLICIT_INVAL_DATA (invalidation is the server's, by notification), EXPORT_SUPPORT (needs LOOKUP of "." and ".."),
/// NO_OPEN and NO_OPENDIR (handles are wanted), ATOMIC_O_TRUNC (open(O_RDONLY | O_TRUNC) of a program that is running would have cut it
/// before the kernel says ETXTBSY).
const WANTED: u64 = REQUIRED
    | flag::ASYNC_READ
    | flag::SPLICE_WRITE
    | flag::SPLICE_MOVE
    | flag::SPLICE_READ
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::CACHE_SYMLINKS
    | flag::HANDLE_KILLPRIV_V2
    | flag::INIT_EXT
    | flag::HAS_EXPIRE_ONLY
    | flag::DIRECT_IO_ALLOW_MMAP;

/// The answer to `kernel`.
pub(crate) fn negotiate(config: &Config, kernel: &InitIn) -> Result<(InitOut, Negotiated), InitError> {
    let InitIn { major, minor, .. } = *kernel;
    if major != MAJOR || minor < MINOR_MIN {
        return Err(InitError::Version { major, minor });
    }
    let offered = u64::from(kernel.flags) | u64::from(kernel.flags2) << 32;
    let missing = REQUIRED & !offered;
    if missing != 0 {
        return Err(InitError::Missing { missing });
    }
    let locks = if config.kernel_locks { 0 } else { flag::POSIX_LOCKS | flag::FLOCK_LOCKS };
    // With ACLs the server applies the umask, for a default ACL of the directory replaces it.
    let acl = if config.posix_acl { flag::POSIX_ACL | flag::DONT_MASK } else { 0 };
    let ring = if config.ring.is_some() { flag::OVER_IO_URING } else { 0 };
    let through = if config.passthrough { flag::PASSTHROUGH } else { 0 };
    let flags = (WANTED | locks | acl | ring | through) & offered;
    let max_write = config.max_write.clamp(4096, TRANSFER_MAX);
    let agreed = Negotiated {
        minor: minor.min(MINOR),
        flags,
        max_write,
        // The kernel takes the lesser of this and its device's; the session raises the latter.
        max_readahead: config.max_readahead,
    };
    let out = InitOut {
        major: MAJOR,
        minor: agreed.minor,
        max_readahead: agreed.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        max_write,
        time_gran: 1,
        // Files of a plain file system, not of another one that hands them on.
        max_stack_depth: u32::from(flags & flag::PASSTHROUGH != 0),
        max_pages: u16::try_from(max_write.div_ceil(4096)).unwrap_or(u16::MAX),
        ..Default::default()
    };
    Ok((out, agreed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(flags: u64) -> InitIn {
        let (low, high) = (flags as u32, (flags >> 32) as u32);
        InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: low, flags2: high, unused: [0; 11] }
    }

    #[test]
    fn takes_only_what_is_offered_and_wanted() {
        let (out, agreed) = negotiate(&Config::default(), &kernel(u64::MAX)).unwrap();
        assert_eq!(agreed.flags, WANTED);
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, WANTED);
        assert_eq!((out.max_write, out.max_pages, out.time_gran, out.minor), (1 << 20, 256, 1, 45));
        let (_, agreed) = negotiate(&Config::default(), &kernel(REQUIRED)).unwrap();
        assert_eq!(agreed.flags, REQUIRED);
    }

    #[test]
    fn locks_and_acls_by_setting() {
        let config = Config { kernel_locks: false, posix_acl: true, ..Config::default() };
        let (_, agreed) = negotiate(&config, &kernel(u64::MAX)).unwrap();
        let extra = flag::POSIX_LOCKS | flag::FLOCK_LOCKS | flag::POSIX_ACL | flag::DONT_MASK;
        assert_eq!(agreed.flags, WANTED | extra);
        assert_eq!(agreed.flags & (flag::WRITEBACK_CACHE | flag::AUTO_INVAL_DATA), 0);
    }

    #[test]
    fn a_ring_by_setting() {
        let config = Config { ring: Some(crate::RingOptions::default()), ..Config::default() };
        let (out, agreed) = negotiate(&config, &kernel(u64::MAX)).unwrap();
        assert_eq!(
            (agreed.flags, u64::from(out.flags2) << 32 & flag::OVER_IO_URING),
            (WANTED | flag::OVER_IO_URING, flag::OVER_IO_URING)
        );
        let (_, agreed) = negotiate(&config, &kernel(!flag::OVER_IO_URING)).unwrap();
        assert_eq!(agreed.flags, WANTED);
    }

    #[test]
    fn refuses_old_kernels() {
        let old = InitIn { minor: 31, ..kernel(u64::MAX) };
        assert_eq!(negotiate(&Config::default(), &old), Err(InitError::Version { major: 7, minor: 31 }));
        let missing = flag::SETXATTR_EXT;
        assert_eq!(negotiate(&Config::default(), &kernel(!missing)), Err(InitError::Missing { missing }));
    }
}
