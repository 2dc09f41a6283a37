//! Which volume is mounted where: /proc/self/mountinfo, and for mounts that are gone while their process stores what is left,
//! the processes.

use crate::{
    control::{Ask, Control, Told},
    directory,
    units::quoted,
};
use anyhow::bail;
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// A mount of ours.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The mount point.
    pub at: PathBuf,
    /// The volume's directory; of a served volume the one that is the mount's own.
    pub dir: PathBuf,
    /// Who serves the volume, `sluice://HOST:PORT`, if it is one of another process.
    pub server: Option<String>,
}

/// The topmost mount at `path` itself, or where it leads to as a symbolic link.
pub fn at(path: &Path) -> Option<Found> {
    let wanted = resolve(path)?;
    let table = fs::read("/proc/self/mountinfo").ok()?;
    table.split(|byte| *byte == b'\n').filter_map(parse).rfind(|found| found.at == wanted)
}

/// Type and source of the file system that the absolute `path`, without symbolic links, is on.
pub fn file_system(path: &Path) -> Option<(String, String)> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let mounts: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(parse_any).collect();
    let (_, kind, source) = path.ancestors().find_map(|path| mounts.iter().rfind(|(at, ..)| at == path))?;
    Some((String::from_utf8_lossy(kind).into_owned(), String::from_utf8_lossy(source).into_owned()))
}

/// The directory that META names, for a command that needs it unmounted.
pub fn unmounted_dir(meta: &OsStr, command: &str) -> anyhow::Result<PathBuf> {
    if let Some(Found { at, dir, .. }) = at(Path::new(meta)) {
        bail!(
            "{} is where the volume {} is mounted: `sluice umount {}` first, then `sluice {command} {}`",
            at.display(),
            dir.display(),
            quoted(&at),
            quoted(&dir)
        );
    }
    directory::volume_dir(meta)
}

/// The mount that the absolute `path`, without symbolic links, is at or below.
pub fn above(path: &Path) -> Option<Found> {
    path.ancestors().find_map(at)
}

/// The directory of the process that works on what `target` names: a mount, a volume, or a node's cache.
pub fn dir_of_process(target: &OsStr) -> anyhow::Result<PathBuf> {
    match at(Path::new(target)) {
        Some(found) => Ok(found.dir),
        None => directory::volume_dir(target),
    }
}

/// The volume that was mounted at `path` and whose process still stores what is left, with that process.
pub fn draining_at(path: &Path) -> Option<(Found, u32)> {
    let wanted = resolve(path)?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let descriptors = processes.filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok()).flatten().flatten();
    let locks = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|to| to.ends_with("lock"));
    let mut dirs = locks.filter_map(|lock| Some(lock.parent()?.to_path_buf()));
    dirs.find_map(|dir| {
        let mut control = Control::connect(&dir).ok()??;
        let mut is_it = false;
        let compare = |told| {
            if let Told::Status { status } = told {
                is_it = status["mountpoint"].as_str() == Some(&*wanted.to_string_lossy());
            }
            Ok(false)
        };
        control.ask(Ask::Status, compare).ok()?;
        is_it.then(|| (Found { at: wanted.clone(), dir, server: None }, control.pid()))
    })
}

/// The absolute path without symbolic links. The last part is never entered: the mount there may be dead.
fn resolve(path: &Path) -> Option<PathBuf> {
    /// As many as the kernel follows (path_resolution(7)).
    const LINKS_MAX: usize = 40;
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().ok();
        };
        // A dead mount further up cannot be resolved either; then the path counts as it is written.
        let Ok(parent) = parent.canonicalize() else { return Some(path) };
        let here = parent.join(name);
        match fs::read_link(&here) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Some(here),
        }
    }
    None
}

/// A line (proc_pid_mountinfo(5)): mount point, type and source.
fn parse_any(line: &[u8]) -> Option<(PathBuf, &[u8], Vec<u8>)> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let at = PathBuf::from(OsString::from_vec(unescape(fields.get(4)?)));
    Some((at, fields.get(dash + 1)?, unescape(fields.get(dash + 2)?)))
}

/// A line, when it is one of ours.
fn parse(line: &[u8]) -> Option<Found> {
    let (at, kind, source) = parse_any(line)?;
    if kind != b"fuse.sluice" {
        return None;
    }
    let (dir, server) = match source.strip_prefix(b"local:") {
        Some(dir) => (dir.to_vec(), None),
        // A mount of another host's volume: behind the server's name, where it keeps what is its own.
        None if source.starts_with(b"sluice://") => {
            let name = source.iter().position(|byte| *byte == b'#')?;
            (source[name + 1..].to_vec(), Some(String::from_utf8_lossy(&source[..name]).into_owned()))
        }
        None => return None,
    };
    Some(Found { at, dir: PathBuf::from(OsString::from_vec(dir)), server })
}

/// Octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = b"99 30 0:77 / /mnt/a\\040b rw,relatime - fuse.sluice local:/srv/v rw,user_id=0";
        assert_eq!(parse(line), Some(Found { at: "/mnt/a b".into(), dir: "/srv/v".into(), server: None }));
        let line = b"99 30 0:77 / /mnt rw - fuse.sluice sluice://[::1]:7#/home/a#b rw";
        let server = Some("sluice://[::1]:7".into());
        assert_eq!(parse(line), Some(Found { at: "/mnt".into(), dir: "/home/a#b".into(), server }));
        let line = b"99 30 0:77 / /mnt rw - ext4 /dev/vda rw";
        assert_eq!((parse(line), parse(b""), parse_any(b"99 30 0:77 / /mnt rw - ext4")), (None, None, None));
        assert_eq!(parse_any(line), Some(("/mnt".into(), &b"ext4"[..], b"/dev/vda".to_vec())));
    }

    #[test]
    fn the_file_system_of_a_path_is_that_of_the_mount_above_it() {
        assert_eq!(file_system(Path::new("/proc/self/fd")).expect("a mount").0, "proc");
    }

    #[test]
    fn links_are_followed_to_the_last_part() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir(real.join("mnt")).unwrap();
        std::os::unix::fs::symlink("mnt", real.join("a")).unwrap();
        std::os::unix::fs::symlink(real.join("a"), real.join("b")).unwrap();
        std::os::unix::fs::symlink("loop", real.join("loop")).unwrap();
        assert_eq!(resolve(&real.join("b")), Some(real.join("mnt")));
        assert_eq!(resolve(&real.join("mnt/")), Some(real.join("mnt")));
        assert_eq!(resolve(&real.join("mnt/../a")), Some(real.join("mnt")));
        assert_eq!(resolve(&real.join("missing")), Some(real.join("missing")));
        assert_eq!(resolve(&real.join("loop")), None);
    }
}
