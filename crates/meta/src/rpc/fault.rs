//! How a request may fail: the code and text of every error, both ways, once.

use super::codec::{Reader, Wire};
use crate::{
    Error,
    store::{LogError, MetaError},
};

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operation's own answer. The session goes on.
    #[error(transparent)]
    Meta(#[from] Error),
    /// Somebody took the session over: this incarnation may do nothing any more, and its handles fail.
    #[error("the session was taken over by a newer incarnation; unmount and mount again")]
    Fenced,
    /// The lease ended. What was cached is worthless; the session may be resumed.
    #[error("the session's lease has ended; resume it")]
    Expired,
    /// No such session, or one that has ended. Its handles fail; begin another one.
    #[error("the session has ended; begin another one")]
    Ended,
    /// The server was restarted: resume the session first.
    #[error("the session must be resumed first")]
    NotResumed,
    /// The bytes are not a message.
    #[error("the message does not parse")]
    Malformed,
    /// A message of another version.
    #[error("version {0} of the metadata protocol is not known here; use the same sluice on both sides")]
    Version(u8),
    /// A method that is not known here.
    #[error("method {0} of the metadata protocol is not known here; use the same sluice on both sides")]
    Method(u16),
    /// Number too far beyond what was seen: answers must be taken before more is asked.
    #[error("too many unanswered requests")]
    Window,
    /// The number's answer was seen, so its result is forgotten.
    #[error("the request was answered before")]
    Forgotten,
    /// More open inodes than one session may have.
    #[error("too many open files in this session")]
    TooManyOpen,
    /// What was written under a lock comes too late: the lease ended, and others may have the lock.
    #[error("the lease ended, and with it the locks under which this was written")]
    LocksLost,
    /// The server goes on with another line of changes, this one: what it was asked about it may never have had.
    #[error(
        "the volume was recovered from its store since, and goes on without what the store had not: what was written before may be lost"
    )]
    OtherLine(u64),
    /// The server failed.
    #[error("the server failed: {0}")]
    Server(String),
}

impl From<MetaError> for Fault {
    fn from(error: MetaError) -> Self {
        Fault::Meta(error.into())
    }
}

/// Longest text of an error in a message, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

impl Fault {
    /// Whether the session cannot go on as it is: its handles fail until it is resumed or begun anew.
    pub fn is_of_session(&self) -> bool {
        matches!(self, Fault::Fenced | Fault::Expired | Fault::Ended | Fault::NotResumed)
    }

    /// Code, and text where the code does not say all.
    fn parts(&self) -> (u16, String) {
        let text = String::new();
        let code = match self {
            Fault::Meta(error) => return meta_parts(error),
            Fault::Fenced => 32,
            Fault::Expired => 33,
            Fault::Ended => 34,
            Fault::NotResumed => 35,
            Fault::Malformed => 36,
            Fault::Version(version) => return (37, version.to_string()),
            Fault::Method(method) => return (38, method.to_string()),
            Fault::Window => 39,
            Fault::Forgotten => 40,
            Fault::TooManyOpen => 41,
            Fault::Server(text) => return (42, text.clone()),
            Fault::LocksLost => 43,
            Fault::OtherLine(line) => return (44, line.to_string()),
        };
        (code, text)
    }

    fn of(code: u16, text: &str) -> Self {
        if let Some(error) = meta_of(code, text) {
            return Fault::Meta(error);
        }
        match code {
            32 => Fault::Fenced,
            33 => Fault::Expired,
            34 => Fault::Ended,
            35 => Fault::NotResumed,
            36 => Fault::Malformed,
            37 => Fault::Version(text.parse().unwrap_or_default()),
            38 => Fault::Method(text.parse().unwrap_or_default()),
            39 => Fault::Window,
            40 => Fault::Forgotten,
            41 => Fault::TooManyOpen,
            43 => Fault::LocksLost,
            44 => Fault::OtherLine(text.parse().unwrap_or_default()),
            _ => Fault::Server(text.into()),
        }
    }
}

fn meta_parts(error: &Error) -> (u16, String) {
    let code = match error {
        Error::NotFound => 1,
        Error::Stale => 2,
        Error::Exists => 3,
        Error::NotDirectory => 4,
        Error::IsDirectory => 5,
        Error::NotEmpty => 6,
        Error::NameTooLong => 7,
        Error::Invalid(why) => return (8, (*why).into()),
        Error::TooManyLinks => 9,
        Error::NoAttribute => 10,
        Error::AttributeTooLarge => 11,
        Error::AttributeName => 12,
        Error::FileTooLarge => 13,
        Error::NotPermitted => 14,
        Error::Corrupt(what) => return (15, what.clone()),
        Error::Store(MetaError::Log(LogError::Full)) => 16,
        Error::Store(MetaError::Log(LogError::DiskFull)) => 17,
        Error::Store(MetaError::Log(LogError::Failed(why))) => return (18, why.clone()),
        Error::Store(MetaError::Checkpoint(why)) => return (19, why.clone()),
        Error::Gone => 20,
        other => return (42, other.to_string()),
    };
    (code, String::new())
}

fn meta_of(code: u16, text: &str) -> Option<Error> {
    Some(match code {
        1 => Error::NotFound,
        2 => Error::Stale,
        3 => Error::Exists,
        4 => Error::NotDirectory,
        5 => Error::IsDirectory,
        6 => Error::NotEmpty,
        7 => Error::NameTooLong,
        // The text was for people, and what reaches them from a mount is the errno.
        8 => Error::Invalid("the server refused the arguments"),
        9 => Error::TooManyLinks,
        10 => Error::NoAttribute,
        11 => Error::AttributeTooLarge,
        12 => Error::AttributeName,
        13 => Error::FileTooLarge,
        14 => Error::NotPermitted,
        15 => Error::Corrupt(text.into()),
        16 => Error::Store(MetaError::Log(LogError::Full)),
        17 => Error::Store(MetaError::Log(LogError::DiskFull)),
        18 => Error::Store(MetaError::Log(LogError::Failed(text.into()))),
        19 => Error::Store(MetaError::Checkpoint(text.into())),
        20 => Error::Gone,
        _ => return None,
    })
}

impl<'a> Wire<'a> for Fault {
    fn put(&self, out: &mut Vec<u8>) {
        let (code, text) = self.parts();
        code.put(out);
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        (&text.as_bytes()[..end]).put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let code = u16::take(from)?;
        let text = <&[u8]>::take(from)?;
        Some(Fault::of(code, std::str::from_utf8(text).ok()?))
    }
}
