//! Operations on names that concern open files too: what is unlinked while in use lives until its last user goes.

use crate::{Opened, Vfs, error::errno};
use sluice_base::{Errno, Ino};
use sluice_meta::{Attr, Caller, NewNode, RenameMode, Unlinked};
use std::sync::{Arc, Weak};

impl Vfs {
    /// Creates a regular file and opens it.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, caller: Caller) -> Result<(Attr, Opened), Errno> {
        let node = NewNode { mode: mode & 0o7777 | sluice_meta::records::mode::REGULAR, rdev: 0, target: b"" };
        let attr = self.namespace().create(dir, name, node, caller).map_err(|e| errno(&e))?.value;
        let opened = self.opened(self.files.acquire(attr.ino), &attr);
        Ok((attr, opened))
    }

    /// Creates a file without a name (O_TMPFILE) and opens it.
    pub fn create_unnamed(&self, dir: Ino, mode: u32, caller: Caller) -> Result<(Attr, Opened), Errno> {
        let mode = mode & 0o7777 | sluice_meta::records::mode::REGULAR;
        let attr = self.namespace().create_unnamed(dir, mode, caller).map_err(|e| errno(&e))?.value;
        let file = self.files.acquire(attr.ino);
        file.orphaned.store(true, std::sync::atomic::Ordering::Release);
        Ok((attr.clone(), self.opened(file, &attr)))
    }

    /// Another name for an inode; a file without one is no orphan any more.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let held = self.files.with(ino);
        let attr = self.namespace().link(ino, dir, name).map_err(|e| errno(&e))?.value;
        held.file.orphaned.store(false, std::sync::atomic::Ordering::Release);
        Ok(attr)
    }

    /// unlink(2).
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        self.remove(dir, name, |frozen| self.namespace().unlink(dir, name, frozen).map(|done| Some(done.value)))
    }

    /// rmdir(2).
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        self.remove(dir, name, |frozen| self.namespace().rmdir(dir, name, frozen).map(|done| Some(done.value)))
    }

    /// rename(2), renameat2(2).
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: RenameMode) -> Result<(), Errno> {
        self.remove(to.0, to.1, |frozen| self.namespace().rename(from, to, how, frozen).map(|done| done.value))
    }

    /// Runs `change`, which may take the last name of what `name` stands for. The victim is found first and its uses are
    /// frozen until the change has committed, so that nobody opens it between the question and the removal.
    fn remove(
        &self,
        dir: Ino,
        name: &[u8],
        change: impl Fn(&dyn Fn(Ino) -> bool) -> sluice_meta::Result<Option<Unlinked>>,
    ) -> Result<(), Errno> {
        let victim = self.namespace().lookup(dir, name).map_or(Ino(0), |attr| attr.ino);
        let frozen = self.files.freeze(victim);
        let left = change(&|ino| frozen.in_use(ino)).map_err(|e| errno(&e))?;
        if let Some(left) = left.filter(|left| left.orphaned)
            && (left.ino != victim || !frozen.mark_orphan(left.ino))
        {
            drop(frozen);
            // The name changed hands meanwhile, or there is more to remove than one transaction holds.
            let held = self.files.with(left.ino);
            held.file.orphaned.store(true, std::sync::atomic::Ordering::Release);
        }
        Ok(())
    }
}

/// Removes what is left of orphans that nobody uses: those of earlier runs first, then each as its last user goes.
pub(crate) async fn reclaim(vfs: Weak<Vfs>) {
    let mut left = match vfs.upgrade().map(|vfs| vfs.namespace().orphans()) {
        Some(Ok(found)) => found,
        Some(Err(error)) => {
            tracing::error!(%error, "orphans of earlier runs were not found");
            Vec::new()
        }
        None => return,
    };
    loop {
        let Some(alive) = vfs.upgrade() else { return };
        left.extend(alive.files.take_orphans());
        let work = std::mem::take(&mut left);
        let runner = alive.clone();
        let done = tokio::task::spawn_blocking(move || work.into_iter().for_each(|ino| reclaim_one(&runner, ino)));
        let _ = done.await;
        let notified: Arc<Vfs> = alive;
        // Held across the wait only as long as the volume lives: `Vfs::stop` aborts this task.
        notified.files.orphan_left.notified().await;
    }
}

fn reclaim_one(vfs: &Vfs, ino: Ino) {
    // An earlier run's orphan cannot be in use, a new one only when it was linked or opened again.
    if vfs.files.freeze(ino).in_use(ino) {
        return;
    }
    if let Err(error) = vfs.namespace().reclaim(ino) {
        tracing::error!(%ino, %error, "an orphan was not reclaimed; it will be at the next start");
    }
}
