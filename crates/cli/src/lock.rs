//! One process at a time owns a volume's directory, and one a cache's.

use crate::{output::explained, units::quoted};
use anyhow::{Context, anyhow, bail};
use rustix::{
    fs::{FlockOperation, flock},
    thread::Timespec,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

/// How long to wait for others who mount at the same place.
const ENDING_WAIT: Duration = Duration::from_secs(10);

/// How long to wait for a lock whose holder is gone: it is being torn down, or somebody takes a look, which reads the journal twice. Programs
/// of a mount that is taken over wait as long.
const LOOK_WAIT: Duration = Duration::from_secs(15);

/// Whether the process that `holder` names ("pid 12: sluice up ...") is gone or on its way out (proc_pid_stat(5): PF_EXITING).
fn is_ending(holder: &str) -> bool {
    const PF_EXITING: u64 = 4;
    let Some(pid) = holder.strip_prefix("pid ").and_then(|rest| rest.split(':').next()) else { return true };
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let flags = fields.get(6).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(fields.first(), Some(&"Z" | &"X")) || flags & PF_EXITING != 0
}

fn is_at(file: &File, path: &Path) -> bool {
    let place = |found: &fs::Metadata| (found.dev(), found.ino());
    matches!((&file.metadata(), &fs::metadata(path)), (Ok(held), Ok(there)) if place(held) == place(there))
}

/// A moment before something is tried again.
fn pause() -> Duration {
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
    Duration::from_millis(20)
}

/// The right to mount at a place. mount(2) would put one mount over the other, in silence.
pub struct MountTurn {
    _directory: File,
}

impl MountTurn {
    /// Waits for other processes that are about to mount there: each takes a moment.
    pub fn take(mountpoint: &Path) -> anyhow::Result<Self> {
        let place = || format!("the mount point {}", mountpoint.display());
        let directory = File::open(mountpoint).with_context(place)?;
        let mut waited = Duration::ZERO;
        while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error).with_context(place);
            }
            if waited >= ENDING_WAIT {
                bail!("{} is locked by another program (flock): end it, or choose another directory", place());
            }
            waited += pause();
        }
        Ok(Self { _directory: directory })
    }
}

/// The lock, held until dropped or until the process ends, however it ends.
pub struct VolumeLock {
    _file: File,
    /// The cache's, where that is a directory apart.
    _cache: Option<File>,
}

impl VolumeLock {
    /// Takes the lock of the volume in `dir`, or says who has it.
    pub fn take(dir: &Path) -> anyhow::Result<Self> {
        Ok(Self { _file: lock(dir, |holder| in_use(dir, holder))?, _cache: None })
    }

    /// Says who has the volume in `dir`, if anybody has; nothing is changed.
    pub fn check_free(dir: &Path) -> anyhow::Result<()> {
        if !dir.join("lock").exists() {
            return Ok(());
        }
        Self::look(dir)?.map(drop).map_err(|holder| anyhow!(in_use(dir, &holder)))
    }

    /// Takes the lock of a directory that is nothing but a cache.
    pub fn take_cache(dir: &Path) -> anyhow::Result<Self> {
        Ok(Self { _file: lock_cache(dir)?, _cache: None })
    }

    /// Takes the lock of the cache too, made if it is missing: it may be anywhere, and others may be told to use it.
    pub fn with_cache(self, dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(Self { _cache: Some(lock_cache(dir)?), ..self })
    }

    /// Takes the lock of the directory `dir` for a look, or tells who has it. Who wants it meanwhile waits for the look: the file goes on
    /// naming the process before, which is gone.
    pub fn look(dir: &Path) -> anyhow::Result<Result<Self, String>> {
        Ok(acquire(dir)?.map(|file| Self { _file: file, _cache: None }))
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

fn in_use(dir: &Path, holder: &str) -> String {
    format!("the volume {} is in use by {holder}; `sluice status {}` shows it", dir.display(), quoted(dir))
}

fn lock_cache(dir: &Path) -> anyhow::Result<File> {
    lock(dir, |holder| {
        format!(
            "the cache {} is in use by {holder}; each process needs a directory of its own: choose another",
            dir.display()
        )
    })
}

/// The lock file of `dir`, locked and with this process in it; or an error in the words of `in_use`.
fn lock(dir: &Path, in_use: impl Fn(&str) -> String) -> anyhow::Result<File> {
    let mut file = acquire(dir)?.map_err(|holder| anyhow!(in_use(&holder)))?;
    let arguments: Vec<_> = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let holder = format!("pid {}: {}\n", std::process::id(), arguments.join(" "));
    let mut write = || {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(holder.as_bytes())
    };
    write().map_err(|error| explained(&format!("writing {}", dir.join("lock").display()), &error))?;
    Ok(file)
}

/// The lock file of `dir`, locked; or who holds it.
fn acquire(dir: &Path) -> anyhow::Result<Result<File, String>> {
    let path = dir.join("lock");
    let mut waited = Duration::ZERO;
    loop {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(|error| explained(&format!("opening {}", path.display()), &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // A start that failed may have removed the file meanwhile: then this is nobody's lock.
            Ok(()) if is_at(&file, &path) => return Ok(Ok(file)),
            Ok(()) => continue,
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error).with_context(|| format!("locking {}", path.display())),
        }
        let holder = fs::read_to_string(&path).unwrap_or_default().trim().to_string();
        if waited >= LOOK_WAIT || !is_ending(&holder) {
            return Ok(Err(if holder.is_empty() { "another process".into() } else { holder }));
        }
        // Its last descriptor closes when the kernel has torn it down, which nothing can be awaited for.
        waited += pause();
    }
}
