//! How a metadata operation may end.

use crate::store::MetaError;

/// Every way in which a [`crate::Namespace`] operation fails. Front ends map it to errno or NFS status, once each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The inode that a handle names is gone.
    #[error("the inode is gone")]
    Stale,
    /// The name or attribute is taken.
    #[error("exists")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDirectory,
    /// Not possible on a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name of more than NAME_MAX bytes.
    #[error("name too long")]
    NameTooLong,
    /// The arguments make no sense together.
    #[error("invalid: {0}")]
    Invalid(&'static str),
    /// The inode has as many links as it may.
    #[error("too many links")]
    TooManyLinks,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// An extended attribute's value or list is larger than Linux allows.
    #[error("attribute too large")]
    AttributeTooLarge,
    /// An extended attribute's name is longer than Linux allows, or empty.
    #[error("attribute name out of range")]
    AttributeName,
    /// Past the largest file offset.
    #[error("file too large")]
    FileTooLarge,
    /// Not allowed whatever the permissions.
    #[error("operation not permitted")]
    NotPermitted,
    /// The answer is with a server, and the calling thread must not wait for it.
    #[error("the answer is away")]
    Away,
    /// The session that the caller acts for has ended: its lease ran out, or somebody took it over.
    #[error("the session has ended")]
    Fenced,
    /// The lease ended, and with it the locks under which something was written.
    #[error("the locks are lost under which this was written")]
    LocksLost,
    /// Something that was done is lost, and could not be done again.
    #[error("something that was done here is lost: the server lost it, and it could not be done again")]
    Lost,
    /// A change refers to bytes that were deleted since, as nobody had used them for long.
    #[error("the bytes that it refers to were deleted since")]
    Gone,
    /// The server failed, or its answer made no sense.
    #[error("the metadata server: {0}")]
    Server(String),
    /// A stored record does not parse.
    #[error("metadata damaged: {0}; run `sluice fsck`")]
    Corrupt(String),
    /// The engine or the log refused.
    #[error(transparent)]
    Store(#[from] MetaError),
}

/// The result of a metadata operation.
pub type Result<T> = std::result::Result<T, Error>;
