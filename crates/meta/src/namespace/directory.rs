//! readdir: streamed by cursor. The cookie of an entry never changes while the entry lives, so entries that are there all
//! along are seen exactly once, whatever is made or removed meanwhile.

use super::{Attr, Namespace, Read};
use crate::{Result, keys, records::Dirent};
use sluice_base::Ino;
use std::ops::ControlFlow;

/// An entry as readdir gives it.
#[derive(Debug)]
pub struct DirEntry {
    /// The entry.
    pub entry: Dirent,
    /// Its attributes, when asked for; `None` when it vanished meanwhile.
    pub attr: Option<Attr>,
}

impl Namespace {
    /// Hands the entries of `dir` with cookies in (after, until] to `visit`, in order of cookie, until it breaks.
    /// `.` and `..` are the front end's.
    pub fn read_dir(
        &self,
        dir: Ino,
        after: u64,
        until: u64,
        with_attributes: bool,
        visit: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let (from, to) = (keys::cookie(dir, after.saturating_add(1)), keys::cookie(dir, until.saturating_add(1)));
        if *from >= *to {
            return Ok(());
        }
        let snapshot = self.store.snapshot();
        let mut failed = None;
        snapshot.scan(&from, &to, &mut |_, value| {
            let entry = match Dirent::decode(value) {
                Ok(entry) => entry,
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            };
            let attr = if with_attributes { self.store.snapshot().attr(entry.ino).ok() } else { None };
            visit(DirEntry { entry, attr })
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// A cookie not below that of any entry there is now: where a listing that begins now ends, so that entries renamed
    /// while it runs cannot make it endless.
    pub fn last_cookie(&self) -> u64 {
        let ids = self.ids.lock();
        // An empty block means that nothing was made since the volume started; entries of earlier runs lie below any block.
        if ids.block.end == 0 { u64::MAX >> 1 } else { ids.block.start }
    }

    /// The parent of a directory, for `..`.
    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(self.store.snapshot().directory(dir)?.parent)
    }
}
