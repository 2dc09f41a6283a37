//! Operations on names that concern open files too: what is unlinked while in use lives until its last user goes.

use crate::{Failure, Opened, Vfs, waiting};
use sluice_base::Ino;
use sluice_meta::{Attr, Caller, NewNode, RenameMode, Unlinked};
use std::{sync::Weak, time::Duration};

/// Orphans that one transaction reclaims.
const RECLAIM_AT_ONCE: usize = 64;
/// How long orphans gather before they are reclaimed.
const RECLAIM_DELAY: Duration = Duration::from_millis(50);

impl Vfs {
    /// Creates a regular file and opens it.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, caller: Caller) -> Result<(Attr, Opened), Failure> {
        let node = NewNode { mode: mode & 0o7777 | sluice_meta::records::mode::REGULAR, rdev: 0, target: b"" };
        let losses = self.namespace().losses();
        let attr = self.namespace().create(dir, name, node, caller)?;
        let opened = self.opened(self.files.acquire(attr.ino), &attr, losses);
        Ok((attr, opened))
    }

    /// Creates a file without a name (O_TMPFILE) and opens it.
    pub fn create_unnamed(&self, dir: Ino, mode: u32, caller: Caller) -> Result<(Attr, Opened), Failure> {
        let mode = mode & 0o7777 | sluice_meta::records::mode::REGULAR;
        let losses = self.namespace().losses();
        let attr = self.namespace().create_unnamed(dir, mode, caller)?;
        self.files.orphaned(attr.ino);
        let file = self.files.acquire(attr.ino);
        Ok((attr.clone(), self.opened(file, &attr, losses)))
    }

    /// Another name for an inode; a file without one is no orphan any more.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, Failure> {
        let attr = self.namespace().link(ino, dir, name)?;
        self.files.named(ino);
        Ok(attr)
    }

    /// unlink(2).
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<(), Failure> {
        self.removed(self.namespace().unlink(dir, name).map(Some))
    }

    /// rmdir(2).
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<(), Failure> {
        self.removed(self.namespace().rmdir(dir, name).map(Some))
    }

    /// rename(2), renameat2(2).
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: RenameMode) -> Result<(), Failure> {
        self.removed(self.namespace().rename(from, to, how))
    }

    /// What lost its last name lives until nobody can ask for it any more.
    fn removed(&self, result: sluice_meta::Result<Option<Unlinked>>) -> Result<(), Failure> {
        if let Some(left) = result?.filter(|left| left.orphaned) {
            self.files.orphaned(left.ino);
        }
        Ok(())
    }

    /// The front end is gone, and with it every use: removes all that has no name.
    pub fn reclaim_rest(&self) {
        self.write_accesses();
        match self.namespace().orphans() {
            Ok(orphans) => reclaim_all(self, &orphans),
            Err(error) => tracing::error!(%error, "orphans were not found; they will be at the next start"),
        }
    }

    /// The front end gave back its last reference to an inode's number.
    pub fn forget(&self, ino: Ino) {
        self.files.forget(ino);
        self.namespace().forgotten(ino);
    }
}

/// Removes what is left of orphans that nobody uses: those of earlier runs, `left`, first, then each as its last user goes.
pub(crate) async fn reclaim(vfs: Weak<Vfs>, mut left: Vec<Ino>) {
    loop {
        let Some(alive) = vfs.upgrade() else { return };
        left.extend(alive.files.take_orphans());
        let work = std::mem::take(&mut left);
        let runner = alive.clone();
        let _ = sluice_run::task::spawn_blocking(move || waiting(|| reclaim_all(&runner, &work))).await;
        // Held across the wait: `Vfs::stop` aborts this task when the volume goes.
        alive.files.orphan_left.notified().await;
        // Where one file goes, more do: removed together they cost a fraction.
        sluice_run::time::sleep(RECLAIM_DELAY).await;
    }
}

fn reclaim_all(vfs: &Vfs, orphans: &[Ino]) {
    for some in orphans.chunks(RECLAIM_AT_ONCE) {
        if let Err(error) = vfs.namespace().reclaim(some) {
            tracing::error!(%error, "orphans were not reclaimed; they will be at the next start");
        }
    }
}
