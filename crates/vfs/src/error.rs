//! The one mapping from the inner crates' errors to errno, and what makes a writer wait.

use sluice_base::Errno;
use sluice_meta::{
    Error as Meta,
    store::{LogError, MetaError},
};
use sluice_store::CacheError;

/// Why an operation did not succeed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It failed.
    Errno(Errno),
    /// Journal or cache have no room until something is uploaded: see [`crate::Vfs::make_room`].
    Wait,
    /// The answer is with a server: ask again from a thread that may wait ([`crate::waiting`]).
    Away,
    /// The journal's disk is full, which uploads alone may not mend: worth a short wait.
    DiskFull,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Failure::Errno(errno)
    }
}

impl Failure {
    /// The errno for a caller that cannot wait.
    pub fn errno(self) -> Errno {
        match self {
            Failure::Errno(errno) => errno,
            Failure::Wait | Failure::DiskFull => Errno::ENOSPC,
            Failure::Away => Errno::EIO,
        }
    }
}

impl From<Meta> for Failure {
    fn from(error: Meta) -> Self {
        match &error {
            Meta::Away => Failure::Away,
            Meta::Store(MetaError::Log(LogError::Full)) => Failure::Wait,
            Meta::Store(MetaError::Log(LogError::DiskFull)) => Failure::DiskFull,
            _ => Failure::Errno(errno(&error)),
        }
    }
}

impl From<CacheError> for Failure {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::NoRoom => Failure::Wait,
            other => {
                tracing::error!(error = %other, "the cache refused");
                Failure::Errno(Errno::EIO)
            }
        }
    }
}

/// The errno of a metadata error.
pub fn errno(error: &Meta) -> Errno {
    match error {
        Meta::NotFound => Errno::ENOENT,
        Meta::Stale => Errno::ESTALE,
        Meta::Exists => Errno::EEXIST,
        Meta::NotDirectory => Errno::ENOTDIR,
        Meta::IsDirectory => Errno::EISDIR,
        Meta::NotEmpty => Errno::ENOTEMPTY,
        Meta::NameTooLong => Errno::ENAMETOOLONG,
        Meta::Invalid(_) => Errno::EINVAL,
        Meta::TooManyLinks => Errno::EMLINK,
        Meta::NoAttribute => Errno::ENODATA,
        Meta::AttributeTooLarge => Errno::E2BIG,
        Meta::AttributeName => Errno::ERANGE,
        Meta::FileTooLarge => Errno::EFBIG,
        Meta::NotPermitted => Errno::EPERM,
        Meta::Store(MetaError::Log(LogError::Full | LogError::DiskFull)) => Errno::ENOSPC,
        Meta::Away
        | Meta::Fenced
        | Meta::LocksLost
        | Meta::Lost
        | Meta::Gone
        | Meta::Server(_)
        | Meta::Corrupt(_)
        | Meta::Store(_) => {
            tracing::error!(%error, "metadata failed");
            Errno::EIO
        }
    }
}
