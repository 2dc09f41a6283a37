//! How a drain goes on, looked at from time to time.

use crate::output;
use sluice_vfs::Vfs;
use std::time::Duration;

/// Between two looks.
pub const TELL_INTERVAL: Duration = Duration::from_millis(300);
/// Looks without anything stored before that is called trouble: 3 s.
const STALLED_TELLS: u32 = 10;

/// See the module.
pub struct DrainWatch {
    least: u64,
    stalled: u32,
}

impl Default for DrainWatch {
    fn default() -> Self {
        Self { least: u64::MAX, stalled: 0 }
    }
}

impl DrainWatch {
    /// Objects and bytes that are to be stored yet.
    pub fn look(&mut self, vfs: &Vfs) -> (usize, u64) {
        let (objects, bytes) = vfs.dirty_totals();
        self.note(bytes);
        (objects, bytes)
    }

    /// So many bytes are to be stored yet.
    pub fn note(&mut self, bytes: u64) {
        self.stalled = if bytes < self.least { 0 } else { self.stalled + 1 };
        self.least = self.least.min(bytes);
    }

    /// Looks since anything was stored.
    pub fn stalled(&self) -> u32 {
        self.stalled
    }

    /// Why the store takes long, when it does.
    pub fn trouble(&self, vfs: &Vfs) -> Option<String> {
        if self.stalled < STALLED_TELLS {
            return None;
        }
        let mut text = format!("nothing was stored for {} s", (TELL_INTERVAL * self.stalled).as_secs());
        if let Ok(status) = vfs.status() {
            let (failed, retries) = (status.upload_errors, status.store.retries);
            text += &format!("; {failed} uploads failed and {retries} requests were repeated since the start");
        }
        if let Some(warning) = output::last_warning() {
            text += &format!("; the last warning: {warning}");
        }
        Some(text)
    }
}
