//! The differences that are allowed, all of them.

use rustix::io::Errno;

use crate::{apply::Outcome, operation::Operation};

type Result = std::result::Result<Outcome, Errno>;

/// One allowed difference.
struct Allowed {
    reason: &'static str,
    applies: fn(&Operation, &Result, &Result) -> bool,
}

const TABLE: &[Allowed] = &[Allowed {
    reason: "ext4 keeps the attributes of a file in its inode and one block and then says ENOSPC; \
             a volume takes what xattr(7) allows",
    applies: |operation, ours, theirs| {
        matches!(operation, Operation::SetXattr { .. }) && ours.is_ok() && *theirs == Err(Errno::NOSPC)
    },
}];

/// Why this difference is allowed, if it is.
pub fn reason(operation: &Operation, ours: &Result, theirs: &Result) -> Option<&'static str> {
    TABLE.iter().find(|a| (a.applies)(operation, ours, theirs)).map(|a| a.reason)
}
