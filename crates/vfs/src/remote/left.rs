//! What a mount's own store has for the server and for the object store, looked at without asking either.

use super::{pending::Change, publish, session};
use sluice_base::{Ino, ObjectId, Seq, SessionId};
use sluice_meta::{Error, Result, store::MetaStore};
use sluice_run::collections::HashSet;
use std::ops::ControlFlow;

/// What an earlier process of a mount left behind.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// Its session and the incarnation of that, unless it has ended.
    pub session: Option<(SessionId, u32)>,
    /// Files with changes of content that are acked and not known to be published.
    pub files: usize,
    /// These changes.
    pub changes: usize,
    /// Bytes that they put into files.
    pub unpublished_bytes: u64,
    /// Objects that are not known to be stored.
    pub objects: HashSet<ObjectId>,
}

impl Left {
    /// Looks at the own store of a mount.
    pub fn of(own: &MetaStore) -> Result<Self> {
        let mut left = Self { session: session::left(own)?, objects: publish::unstored(own)?, ..Self::default() };
        let (mut files, mut is_sound) = (HashSet::<Ino>::default(), true);
        own.snapshot().scan(b"p", b"q", &mut |_, value| {
            match Change::decode(Seq(0), value) {
                Some((ino, change)) => {
                    files.insert(ino);
                    left.changes += 1;
                    left.unpublished_bytes += change.bytes();
                }
                None => is_sound = false,
            }
            ControlFlow::Continue(())
        })?;
        left.files = files.len();
        if is_sound { Ok(left) } else { Err(Error::Corrupt("the mount's own log".into())) }
    }

    /// Whether nothing acked would be missed without it.
    pub fn is_nothing(&self) -> bool {
        self.changes == 0 && self.objects.is_empty()
    }
}
