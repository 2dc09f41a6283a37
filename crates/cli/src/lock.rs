//! One process at a time owns a volume's directory.

use anyhow::{Context, bail};
use rustix::{
    fs::{FlockOperation, flock},
    thread::Timespec,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, Write},
    path::Path,
    time::Duration,
};

/// How long to wait for a killed holder to be gone.
const ENDING_WAIT: Duration = Duration::from_secs(10);

/// Whether the process that `holder` names ("pid 12: sluice up ...") is gone or on its way out (proc_pid_stat(5): PF_EXITING).
fn is_ending(holder: &str) -> bool {
    const PF_EXITING: u64 = 4;
    let Some(pid) = holder.strip_prefix("pid ").and_then(|rest| rest.split(':').next()) else { return true };
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let flags = fields.get(6).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(fields.first(), Some(&"Z" | &"X")) || flags & PF_EXITING != 0
}

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
        let mut waited = Duration::ZERO;
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
            let holder = fs::read_to_string(&path).unwrap_or_default().trim().to_string();
            if waited >= ENDING_WAIT || !is_ending(&holder) {
                let holder = if holder.is_empty() { "another process".to_string() } else { holder };
                bail!("the volume {} is in use by {holder}; `sluice status {}` shows it", dir.display(), dir.display());
            }
            // Its last descriptor closes when the kernel has torn it down, which nothing can be awaited for.
            let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = rustix::thread::nanosleep(&pause);
            waited += Duration::from_millis(20);
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
