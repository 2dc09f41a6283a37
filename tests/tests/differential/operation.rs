//! Random operations, from a seed.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};

/// Open files that the operations share.
pub const HANDLES: usize = 6;
/// Paths that were made lately and probably still exist.
const KNOWN_MAX: usize = 200;
/// Times before this one were set by an operation, later ones come from the clock.
pub const SET_TIMES_BEFORE: i64 = 1_000_000_000;

/// One operation. Paths are relative to the root of either side.
#[derive(Clone, Debug)]
pub enum Operation {
    Open { slot: usize, path: String, flags: OFlags },
    Close { slot: usize },
    WriteHandle { slot: usize, offset: u64, len: usize, fill: u8 },
    ReadHandle { slot: usize, offset: u64, len: usize },
    TruncateHandle { slot: usize, len: u64 },
    StatHandle { slot: usize },
    Fallocate { slot: usize, mode: FallocateFlags, offset: u64, len: u64 },
    CopyRange { from: usize, from_offset: u64, to: usize, to_offset: u64, len: usize },
    Holes { slot: usize },
    Fsync { slot: usize },
    Truncate { path: String, len: u64 },
    Rename { from: String, to: String, flags: RenameFlags },
    Link { from: String, to: String },
    Symlink { target: String, path: String },
    Mknod { path: String, socket: bool },
    Unlink { path: String },
    Mkdir { path: String, mode: u32 },
    Rmdir { path: String },
    Chmod { path: String, mode: u32 },
    Chown { path: String, uid: Option<u32>, gid: Option<u32> },
    SetTimes { path: String, atime: (i64, i64), mtime: (i64, i64) },
    SetXattr { path: String, name: String, len: usize, fill: u8, flags: XattrFlags },
    GetXattr { path: String, name: String },
    RemoveXattr { path: String, name: String },
    List { path: String },
    Stat { path: String },
    ReadLink { path: String },
}

/// Makes operations that succeed often enough to be interesting and fail often enough to compare errors.
pub struct Generator {
    rng: StdRng,
    files: Vec<String>,
    directories: Vec<String>,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), files: Vec::new(), directories: Vec::new() }
    }

    /// Remembers the paths that operations made, forgets those that they removed. What a rename does to the paths below
    /// a directory is not followed: they become the paths that fail.
    pub fn learn(&mut self, operation: &Operation, succeeded: bool) {
        if !succeeded {
            return;
        }
        match operation {
            Operation::Open { path, flags, .. } if flags.contains(OFlags::CREATE) => self.made(path, false),
            Operation::Symlink { path, .. } | Operation::Mknod { path, .. } => self.made(path, false),
            Operation::Link { to, .. } => self.made(to, false),
            Operation::Mkdir { path, .. } => self.made(path, true),
            Operation::Unlink { path } | Operation::Rmdir { path } => self.forget(path),
            Operation::Rename { from, to, flags } if !flags.contains(RenameFlags::EXCHANGE) => {
                let was_directory = self.directories.contains(from);
                self.forget(from);
                self.forget(to);
                self.made(to, was_directory);
            }
            _ => {}
        }
    }

    fn made(&mut self, path: &str, directory: bool) {
        let list = if directory { &mut self.directories } else { &mut self.files };
        if list.len() >= KNOWN_MAX {
            let victim = self.rng.random_range(0..list.len());
            list.swap_remove(victim);
        }
        if !list.iter().any(|known| known == path) {
            list.push(path.to_owned());
        }
    }

    fn forget(&mut self, path: &str) {
        self.files.retain(|known| known != path);
        self.directories.retain(|known| known != path);
    }

    pub fn next(&mut self) -> Operation {
        let slot = self.rng.random_range(0..HANDLES);
        match self.rng.random_range(0..100) {
            0..10 => {
                let path = if self.rng.random_bool(0.5) { self.file() } else { self.any() };
                Operation::Open { slot, path, flags: self.open_flags() }
            }
            10..11 => Operation::Close { slot },
            11..26 => Operation::WriteHandle { slot, offset: self.offset(), len: self.length(), fill: self.fill() },
            26..34 => Operation::ReadHandle { slot, offset: self.offset(), len: self.length() },
            34..38 => Operation::TruncateHandle { slot, len: self.offset() },
            38..40 => Operation::StatHandle { slot },
            40..46 => {
                let (mode, offset, len) = (self.fallocate_mode(), self.offset(), self.length() as u64);
                Operation::Fallocate { slot, mode, offset, len }
            }
            46..50 => {
                let to = self.rng.random_range(0..HANDLES);
                let (from_offset, to_offset, len) = (self.offset(), self.offset(), self.length());
                Operation::CopyRange { from: slot, from_offset, to, to_offset, len }
            }
            50..52 => Operation::Holes { slot },
            52..53 => Operation::Fsync { slot },
            53..55 => Operation::Truncate { path: self.file(), len: self.offset() },
            55..62 => Operation::Rename {
                from: self.either(),
                to: if self.rng.random_bool(0.5) { self.either() } else { self.any() },
                flags: self.rename_flags(),
            },
            62..65 => Operation::Link { from: self.file(), to: self.any() },
            65..67 => Operation::Symlink { target: self.either(), path: self.any() },
            67..68 => Operation::Mknod { path: self.any(), socket: self.rng.random() },
            68..72 => Operation::Unlink { path: self.file() },
            72..77 => Operation::Mkdir { path: self.any(), mode: self.mode() },
            77..79 => Operation::Rmdir { path: self.directory() },
            79..82 => Operation::Chmod { path: self.either(), mode: self.mode() },
            82..84 => {
                let (path, uid, gid) = (self.either(), self.id(), self.id());
                // chown(-1, -1) takes setuid away on a local file system; the kernel does not send it to a FUSE one.
                let uid = uid.or_else(|| gid.is_none().then_some(0));
                Operation::Chown { path, uid, gid }
            }
            84..87 => Operation::SetTimes { path: self.either(), atime: self.time(), mtime: self.time() },
            87..90 => {
                let (path, name, len) = (self.either(), self.xattr_name(), self.rng.random_range(0..100));
                Operation::SetXattr { path, name, len, fill: self.fill(), flags: self.xattr_flags() }
            }
            90..91 => Operation::GetXattr { path: self.either(), name: self.xattr_name() },
            91..92 => Operation::RemoveXattr { path: self.either(), name: self.xattr_name() },
            92..95 => Operation::List { path: self.directory() },
            95..99 => Operation::Stat { path: self.either() },
            _ => Operation::ReadLink { path: self.file() },
        }
    }

    /// The path of something that was made and probably still is what it was.
    fn file(&mut self) -> String {
        self.known(0.9, |g| &g.files)
    }

    fn directory(&mut self) -> String {
        self.known(0.9, |g| &g.directories)
    }

    fn either(&mut self) -> String {
        if self.rng.random_bool(0.7) { self.file() } else { self.directory() }
    }

    fn known(&mut self, chance: f64, list: impl Fn(&Self) -> &Vec<String>) -> String {
        let (index, wanted) = (self.rng.random_range(0..KNOWN_MAX), self.rng.random_bool(chance));
        match list(self) {
            known if wanted && !known.is_empty() => known[index % known.len()].clone(),
            _ => self.any(),
        }
    }

    /// A path at which there may or may not be something, mostly in a directory that exists.
    fn any(&mut self) -> String {
        let name = char::from(b'a' + self.rng.random_range(0..26));
        match self.directories.choose(&mut self.rng).cloned() {
            // Not deeper than this, or directories would outnumber files.
            Some(parent) if parent.len() < 8 && self.rng.random_bool(0.6) => format!("{parent}/{name}"),
            _ => name.to_string(),
        }
    }

    /// The edges of blocks, segments and objects are met more often than by chance alone.
    fn offset(&mut self) -> u64 {
        let near = *[0, 4096, 32 << 10, 128 << 10, 1 << 20, 4 << 20].choose(&mut self.rng).expect("not empty");
        match self.rng.random_range(0..10) {
            0..4 => self.rng.random_range(0..8192),
            4..7 => self.rng.random_range(0..256 << 10),
            7..9 => (near as u64).saturating_add_signed(self.rng.random_range(-2..=2)),
            _ => self.rng.random_range(0..6 << 20),
        }
    }

    fn length(&mut self) -> usize {
        match self.rng.random_range(0..20) {
            0 => 0,
            1..12 => self.rng.random_range(1..6000),
            12..18 => self.rng.random_range(1..200 << 10),
            18 => 32 << 10,
            _ => self.rng.random_range(1..1500 << 10),
        }
    }

    fn fill(&mut self) -> u8 {
        self.rng.random_range(1..=255)
    }

    fn mode(&mut self) -> u32 {
        self.rng.random_range(0..0o10000)
    }

    fn id(&mut self) -> Option<u32> {
        *[None, Some(0), Some(1000), Some(65534)].choose(&mut self.rng).expect("not empty")
    }

    fn time(&mut self) -> (i64, i64) {
        (self.rng.random_range(-1_000_000_000..SET_TIMES_BEFORE), self.rng.random_range(0..1_000_000_000))
    }

    fn open_flags(&mut self) -> OFlags {
        let mut flags = *[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR, OFlags::RDWR, OFlags::RDWR]
            .choose(&mut self.rng)
            .expect("not empty");
        for (flag, chance) in [
            (OFlags::CREATE, 0.8),
            (OFlags::EXCL, 0.05),
            (OFlags::TRUNC, 0.1),
            (OFlags::APPEND, 0.1),
            (OFlags::NOFOLLOW, 0.05),
            (OFlags::DIRECTORY, 0.02),
        ] {
            if self.rng.random_bool(chance) {
                flags |= flag;
            }
        }
        // Both at once mean EINVAL on new kernels and a file on old ones, decided before any file system is asked.
        if flags.contains(OFlags::DIRECTORY) { flags - OFlags::CREATE } else { flags }
    }

    fn rename_flags(&mut self) -> RenameFlags {
        let none = RenameFlags::empty();
        *[none, none, none, RenameFlags::NOREPLACE, RenameFlags::EXCHANGE].choose(&mut self.rng).expect("not empty")
    }

    fn fallocate_mode(&mut self) -> FallocateFlags {
        let keep = FallocateFlags::KEEP_SIZE;
        let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        *[FallocateFlags::empty(), keep, punch | keep, punch | keep, zero, zero | keep]
            .choose(&mut self.rng)
            .expect("not empty")
    }

    fn xattr_name(&mut self) -> String {
        (*["user.a", "user.b", "trusted.c", "security.d"].choose(&mut self.rng).expect("not empty")).to_owned()
    }

    fn xattr_flags(&mut self) -> XattrFlags {
        let none = XattrFlags::empty();
        *[none, none, XattrFlags::CREATE, XattrFlags::REPLACE].choose(&mut self.rng).expect("not empty")
    }
}
