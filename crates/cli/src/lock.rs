//! One process at a time owns a volume's directory.

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    path::Path,
};

/// The lock, held until dropped or until the process ends, however it ends.
pub struct VolumeLock {
    _file: File,
}

impl VolumeLock {
    /// Takes the lock of the volume in `dir`, or says who has it.
    pub fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.with_context(|| format!("opening {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = if holder.trim().is_empty() { "another process".to_string() } else { holder.trim().to_string() };
                bail!("the volume {} is in use by {holder}; `sluice status {}` shows it", dir.display(), dir.display());
            }
            Err(error) => return Err(error).with_context(|| format!("locking {}", path.display())),
        }
        let arguments: Vec<_> = std::env::args().collect();
        let holder = format!("pid {}: {}\n", std::process::id(), arguments.join(" "));
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(holder.as_bytes())
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { _file: file })
    }

    /// The process that holds the lock of `dir`, when one does.
    pub fn holder(dir: &Path) -> Option<String> {
        let path = dir.join("lock");
        let file = File::open(&path).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => None,
            Err(_) => Some(fs::read_to_string(&path).unwrap_or_default().trim().to_string()),
        }
    }
}
