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
    known: Vec<String>,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), known: Vec::new() }
    }

    /// Remembers the paths that operations made.
    pub fn learn(&mut self, operation: &Operation, succeeded: bool) {
        let made = match operation {
            Operation::Open { path, flags, .. } if flags.contains(OFlags::CREATE) => path,
            Operation::Mkdir { path, .. } | Operation::Symlink { path, .. } | Operation::Mknod { path, .. } => path,
            Operation::Rename { to, .. } | Operation::Link { to, .. } => to,
            _ => return,
        };
        if succeeded {
            if self.known.len() >= KNOWN_MAX {
                let victim = self.rng.random_range(0..self.known.len());
                self.known.swap_remove(victim);
            }
            self.known.push(made.clone());
        }
    }

    pub fn next(&mut self) -> Operation {
        let slot = self.rng.random_range(0..HANDLES);
        match self.rng.random_range(0..100) {
            0..10 => Operation::Open { slot, path: self.path(0.5), flags: self.open_flags() },
            10..12 => Operation::Close { slot },
            12..26 => Operation::WriteHandle { slot, offset: self.offset(), len: self.length(), fill: self.fill() },
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
            53..55 => Operation::Truncate { path: self.path(0.9), len: self.offset() },
            55..62 => Operation::Rename { from: self.path(0.95), to: self.path(0.5), flags: self.rename_flags() },
            62..65 => Operation::Link { from: self.path(0.95), to: self.path(0.1) },
            65..67 => Operation::Symlink { target: self.path(0.7), path: self.path(0.1) },
            67..68 => Operation::Mknod { path: self.path(0.1), socket: self.rng.random() },
            68..72 => Operation::Unlink { path: self.path(0.95) },
            72..77 => Operation::Mkdir { path: self.path(0.1), mode: self.mode() },
            77..79 => Operation::Rmdir { path: self.path(0.95) },
            79..82 => Operation::Chmod { path: self.path(0.95), mode: self.mode() },
            82..84 => Operation::Chown { path: self.path(0.95), uid: self.id(), gid: self.id() },
            84..87 => Operation::SetTimes { path: self.path(0.95), atime: self.time(), mtime: self.time() },
            87..90 => {
                let (path, name, len) = (self.path(0.95), self.xattr_name(), self.rng.random_range(0..100));
                Operation::SetXattr { path, name, len, fill: self.fill(), flags: self.xattr_flags() }
            }
            90..91 => Operation::GetXattr { path: self.path(0.95), name: self.xattr_name() },
            91..92 => Operation::RemoveXattr { path: self.path(0.95), name: self.xattr_name() },
            92..95 => Operation::List { path: self.path(0.95) },
            95..99 => Operation::Stat { path: self.path(0.95) },
            _ => Operation::ReadLink { path: self.path(0.95) },
        }
    }

    /// A path that was made before, with this probability, or any of a few hundred.
    fn path(&mut self, known: f64) -> String {
        if self.rng.random_bool(known)
            && let Some(path) = self.known.choose(&mut self.rng)
        {
            return path.clone();
        }
        let depth = self.rng.random_range(1..=3);
        let parts: Vec<_> =
            (0..depth).map(|_| (b'a' + self.rng.random_range(0..6)) as char).map(String::from).collect();
        parts.join("/")
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
        let mut flags =
            *[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR].choose(&mut self.rng).expect("not empty");
        for (flag, chance) in [
            (OFlags::CREATE, 0.7),
            (OFlags::EXCL, 0.1),
            (OFlags::TRUNC, 0.1),
            (OFlags::APPEND, 0.1),
            (OFlags::NOFOLLOW, 0.05),
            (OFlags::DIRECTORY, 0.03),
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
