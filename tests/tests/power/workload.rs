//! A program that does everything a file system knows, decided by a seed, on a volume whose disk is recorded.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_tests::{Mount, Volume, wait_for};

use crate::{
    disk::Recording,
    host::Host,
    model::{Change, History, LARGE, Node},
};

/// Few names, so that each is changed often.
const DIRS: u32 = 4;
const FILES: u32 = 8;
/// A file stays below this many bytes.
const FILE_MAX: usize = 2 << 20;
/// One request of the kernel each, so that a write is there or not.
const LARGE_MAX: usize = 512 << 10;
/// Small enough that journal segments and slots are used again and again.
const OPTIONS: [(&str, &str); 4] =
    [("--journal-size", "16M"), ("--cache-size", "16M"), ("--upload-delay", "100ms"), ("--scrub-rate", "0")];

/// The volume on the disk that is mounted at `disk`.
pub fn volume(disk: &Path) -> Volume {
    OPTIONS.iter().fold(Volume::new().in_dir(disk.join("volume")), |volume, (name, value)| volume.option(name, *value))
}

/// Makes a volume, changes it, and tells what happened to its disk meanwhile.
pub fn record(host: &Host, seed: u64, changes: u64) -> (Recording, History) {
    let place = sluice_tests::Scratch::new();
    let path = place.path().join("disk");
    let mounted = host.mount(host.format(), &path);
    let volume = volume(&path);
    let mut program =
        Program { rng: StdRng::seed_from_u64(seed), history: History::default(), mount: Some(volume.up()) };
    program.history.made = mounted.disk.position();
    for number in 1..=changes {
        let change = match number {
            _ if number == changes / 3 => Change::Kill,
            _ if number == changes * 2 / 3 => Change::Remount,
            _ => program.choose(),
        };
        let begun = mounted.disk.position();
        program.perform(&change).unwrap_or_else(|e| panic!("{}: {e}", change.describe()));
        program.history.push(change, begun, mounted.disk.position());
        if number % (changes / 10).max(1) == 0 {
            program.until_stored();
        }
    }
    let begun = mounted.disk.position();
    program.mount.take().expect("mounted").umount();
    program.history.push(Change::Remount, begun, mounted.disk.position());
    let recording = mounted.disk.recording();
    (recording, program.history)
}

struct Program {
    rng: StdRng,
    history: History,
    mount: Option<Mount>,
}

impl Program {
    fn path(&self, name: &str) -> PathBuf {
        self.mount.as_ref().expect("mounted").path(name)
    }

    /// Waits until the store has what was written so far, so that later changes meet tables, objects and free slots.
    fn until_stored(&self) {
        let mount = self.mount.as_ref().expect("mounted");
        wait_for("what was written to be stored", Duration::from_secs(60), || {
            mount.status()["numbers"]["dirty_bytes"].as_u64().expect("a number of bytes") == 0
        });
    }

    fn choose(&mut self) -> Change {
        loop {
            if let Some(change) = self.propose() {
                return change;
            }
        }
    }

    /// A change that will succeed, or nothing.
    fn propose(&mut self) -> Option<Change> {
        let (path, other) = (self.name(), self.name());
        let names = &self.history.now().names;
        let parent_is_there = |path: &str| path.rsplit_once('/').is_none_or(|(dir, _)| names.contains_key(dir));
        let is_free = |path: &str| !names.contains_key(path) && parent_is_there(path);
        let is_file = |path: &str| matches!(names.get(path), Some(Node::File(_)));
        let dir = format!("d{}", self.rng.random_range(0..DIRS));
        let other_dir = format!("d{}", self.rng.random_range(0..DIRS));
        let is_empty = |dir: &str| !names.keys().any(|path| path.starts_with(&format!("{dir}/")));
        let len = self.history.now().file(&path).map_or(0, |file| file.bytes.len());
        match self.rng.random_range(0..100) {
            0..16 if is_free(&path) => Some(Change::Create(path)),
            16..40 if is_file(&path) => self.write(path, len),
            40..52 if is_file(&path) => {
                let bytes = self.bytes();
                (len + bytes.len() <= FILE_MAX).then_some(Change::Append { path, bytes })
            }
            52..56 if is_file(&path) => {
                let (offset, bytes) = (self.rng.random_range(0..=len), self.bytes());
                (offset + bytes.len() <= FILE_MAX).then_some(Change::WriteSync { path, offset, bytes })
            }
            56..62 if is_file(&path) => {
                Some(Change::Truncate { path, len: self.rng.random_range(0..=len + 10_000).min(FILE_MAX) })
            }
            62..65 if is_file(&path) => {
                Some(Change::Chmod { path, mode: [0o600, 0o644, 0o755][self.rng.random_range(0..3)] })
            }
            65..73 if is_file(&path) && (is_file(&other) || is_free(&other)) => {
                Some(Change::Rename { from: path, to: other })
            }
            73..75 if names.contains_key(&dir) && is_free(&other_dir) => {
                Some(Change::Rename { from: dir, to: other_dir })
            }
            75..78 if is_file(&path) && is_free(&other) => Some(Change::Link { from: path, to: other }),
            78..80 if is_free(&path) => Some(Change::Symlink { path, target: other }),
            80..85 if is_file(&path) => Some(Change::Unlink(path)),
            85..86 if matches!(names.get(&path), Some(Node::Symlink(_))) => Some(Change::Unlink(path)),
            86..90 if is_free(&dir) => Some(Change::Mkdir(dir)),
            90..91 if names.contains_key(&dir) && is_empty(&dir) => Some(Change::Rmdir(dir)),
            91..95 if is_file(&path) => Some(Change::Fsync(path)),
            95..97 if is_file(&path) => Some(Change::Fdatasync(path)),
            97..99 if names.contains_key(&dir) => Some(Change::FsyncDir(dir)),
            _ => None,
        }
    }

    fn name(&mut self) -> String {
        let file = format!("f{}", self.rng.random_range(0..FILES));
        // As many as there are directories, and the root.
        match self.rng.random_range(0..=DIRS) {
            DIRS => file,
            dir => format!("d{dir}/{file}"),
        }
    }

    fn write(&mut self, path: String, len: usize) -> Option<Change> {
        // Now and then behind the end, which leaves a hole.
        let gap = if self.rng.random_range(0..10) == 0 { 50_000 } else { 0 };
        let (offset, bytes) = (self.rng.random_range(0..=len + gap), self.bytes());
        (offset + bytes.len() <= FILE_MAX).then_some(Change::Write { path, offset, bytes })
    }

    /// Never zero, so that an invented zero shows; different from every other write, so that an old byte shows.
    fn bytes(&mut self) -> Arc<Vec<u8>> {
        let len = match self.rng.random_range(0..10) {
            0..5 => self.rng.random_range(1..4096),
            5..8 => self.rng.random_range(4096..LARGE),
            _ => self.rng.random_range(LARGE..LARGE_MAX),
        };
        let start: u32 = self.rng.random();
        let byte = |i: u32| (start.wrapping_add(i.wrapping_mul(0x9E37_79B1)) >> 13) as u8 | 1;
        Arc::new((0..len as u32).map(byte).collect())
    }

    fn perform(&mut self, change: &Change) -> io::Result<()> {
        let path = |name: &str| self.path(name);
        let open = |name: &str| File::options().write(true).open(path(name));
        match change {
            Change::Create(name) => {
                let mut options = File::options();
                options.write(true).create_new(true).mode(0o644).open(path(name)).map(drop)
            }
            Change::Write { path: name, offset, bytes } => once(bytes, open(name)?.write_at(bytes, *offset as u64)?),
            Change::WriteSync { path: name, offset, bytes } => {
                let flags = libc::O_DSYNC;
                let file = File::options().write(true).custom_flags(flags).open(path(name))?;
                once(bytes, file.write_at(bytes, *offset as u64)?)
            }
            Change::Append { path: name, bytes } => {
                once(bytes, File::options().append(true).open(path(name))?.write(bytes)?)
            }
            Change::Truncate { path: name, len } => open(name)?.set_len(*len as u64),
            Change::Chmod { path: name, mode } => fs::set_permissions(path(name), fs::Permissions::from_mode(*mode)),
            Change::Rename { from, to } => fs::rename(path(from), path(to)),
            Change::Link { from, to } => fs::hard_link(path(from), path(to)),
            Change::Symlink { path: name, target } => std::os::unix::fs::symlink(target, path(name)),
            Change::Unlink(name) => fs::remove_file(path(name)),
            Change::Mkdir(name) => fs::create_dir(path(name)),
            Change::Rmdir(name) => fs::remove_dir(path(name)),
            Change::Fsync(name) => open(name)?.sync_all(),
            Change::Fdatasync(name) => open(name)?.sync_data(),
            Change::FsyncDir(name) => File::open(path(name))?.sync_all(),
            Change::Remount => {
                self.mount = self.mount.take().map(Mount::remount);
                Ok(())
            }
            Change::Kill => {
                let mount = self.mount.take().expect("mounted");
                let again = mount.again();
                mount.kill9();
                self.mount = Some(again());
                Ok(())
            }
        }
    }
}

/// The kernel takes a write of this size whole, in one request.
fn once(bytes: &[u8], written: usize) -> io::Result<()> {
    assert_eq!(written, bytes.len(), "a short write");
    Ok(())
}
