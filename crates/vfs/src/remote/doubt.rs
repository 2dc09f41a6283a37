//! What a mount does with its log when the host may have lost power since it was written.
//!
//! Then the log may end between a change and the note that it was published, although the server has it. Published once more it would
//! go over what other mounts have written since. Each change says on which change counter of its file it was made. A publish raises
//! the counter, to where no run of the server but this one comes, so a change that was made on the counter that the file has now was not published, nor has anybody changed the file
//! after it; and what follows it in its file was not published either. What comes before the first such change may have been, and
//! is dropped: its file was neither synced since, which publishes it first and returns when the note is durable, nor closed before an
//! fsync of anything. After kill -9 the log is whole, and nothing is dropped.

use super::Remote;
use sluice_base::Ino;
use sluice_meta::{Error, Result, rpc::message::Getattr};
use sluice_run::collections::HashMap;

/// Where the mount's own store keeps the boot of the host in which all of its changes are known to be whole.
const BOOT_KEY: &[u8] = b"mboot";
/// A boot that is not known is no boot that can be recognized.
const UNKNOWN: [u8; 16] = [0; 16];

impl Remote {
    /// Whether the log has all that was written to it: nothing has taken the power since.
    pub(super) fn is_whole(&self, boot: [u8; 16]) -> Result<bool> {
        let known = self.own.snapshot().get(BOOT_KEY)?;
        Ok(boot != UNKNOWN && known.is_some_and(|known| *known == boot[..]))
    }

    /// From here on it has, until the power is lost: nothing is left of what was in doubt.
    pub(super) fn set_whole(&self, boot: [u8; 16]) -> Result<()> {
        if !self.is_whole(boot)? {
            self.own.transact(|txn| -> Result<()> {
                txn.put(BOOT_KEY, boot);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Drops changes that may have been published. `sent` has the last change of each file that is known to have been sent: up to there
    /// the server is asked by number.
    pub(super) fn drop_doubtful(&self, sent: &HashMap<Ino, u64>) -> Result<()> {
        for ino in self.pending.files() {
            let now = match self.ask(&Getattr { ino }) {
                Ok((_, attr)) => attr.change,
                // Its publish will hear so too.
                Err(Error::NotFound | Error::Stale) => continue,
                Err(error) => return Err(error),
            };
            let dropped = self.pending.doubtful(ino, sent.get(&ino).copied().unwrap_or(0), now);
            if !dropped.is_empty() {
                tracing::warn!(
                    %ino, changes = dropped.len(),
                    "the host lost power: what was written to a file last and not synced is as the server has it"
                );
                self.forget(ino, &dropped)?;
            }
        }
        Ok(())
    }
}
