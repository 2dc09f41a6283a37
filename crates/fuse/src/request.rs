//! One request of the kernel, parsed.
//!
//! [`Request::parse`] takes any bytes whatever without a panic: the kernel is trusted, fuzzers and later ABI versions are
//! not. Names and payloads are borrowed from the buffer that was read into.

mod body;
mod operation;
mod parse;

pub use operation::{Forgets, LockRequest, Operation, SetAttr, SetTime};

use crate::abi::InHeader;
use zerocopy::FromBytes;

/// A request with its caller. `uid` and `gid` are those the caller acts with on file systems (fsuid, fsgid).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// The kernel's number for this request.
    pub unique: u64,
    /// The inode it is about; the parent directory for operations that take a name.
    pub nodeid: u64,
    /// User of the caller.
    pub uid: u32,
    /// Primary group of the caller.
    pub gid: u32,
    /// Thread of the caller; 0 when it lives in another pid namespace, or for writeback.
    pub pid: u32,
    /// What to do.
    pub operation: Operation<'a>,
}

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header, or the length in the header is not the number of bytes read. Nobody can be answered.
    #[error("a FUSE request without a sound header")]
    Header,
    /// The header is sound, its body is not what the opcode asks for.
    #[error("FUSE request {unique}: malformed body for opcode {opcode}")]
    Body {
        /// Number to answer to.
        unique: u64,
        /// Opcode as sent.
        opcode: u32,
    },
}

impl<'a> Request<'a> {
    /// Parses what one read of the device returned.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Header)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Header);
        }
        let malformed = Malformed::Body { unique: header.unique, opcode: header.opcode };
        // Extensions (security context, groups) are never asked for in INIT; they would stand after the body.
        let extensions = usize::from(header.total_extlen) * 8;
        let body = rest.len().checked_sub(extensions).and_then(|len| rest.get(..len)).ok_or(malformed)?;
        let operation = parse::operation(header.opcode, body).ok_or(malformed)?;
        let InHeader { unique, nodeid, uid, gid, pid, .. } = header;
        Ok(Self { unique, nodeid, uid, gid, pid, operation })
    }
}

#[cfg(test)]
mod tests;
