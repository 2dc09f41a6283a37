//! One writer: its load, its memory of what was acknowledged, and the check against what is there.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

/// Files that one writer keeps: few enough that each is changed often.
const FILES: u32 = 40;
/// One write goes into the journal, into a slot (128 KiB and more), or into several requests (above 1 MiB).
const LENGTHS_MAX: [usize; 4] = [4096, 100 << 10, 600 << 10, 2 << 20];

/// A change that was asked for.
#[derive(Clone, Debug)]
enum Change {
    Create { name: String, bytes: Vec<u8> },
    Write { name: String, offset: usize, bytes: Vec<u8> },
    Append { name: String, bytes: Vec<u8> },
    Truncate { name: String, len: usize },
    Rename { from: String, to: String },
    Unlink { name: String },
    Fsync { name: String },
}

/// A writer with a directory of its own.
pub struct Writer {
    dir: PathBuf,
    rng: StdRng,
    /// What every call that returned success adds up to.
    known: BTreeMap<String, Vec<u8>>,
    /// The calls of the change that was under way when the process died, in order: none, one, or all of them happened.
    pending: Option<Change>,
    /// Calls that returned success.
    pub acknowledged: u64,
}

impl Writer {
    pub fn new(root: &Path, number: u64, seed: u64) -> Self {
        let dir = root.join(format!("writer-{number}"));
        fs::create_dir(&dir).expect("the writer's directory");
        let rng = StdRng::seed_from_u64(seed ^ (number << 32));
        Self { dir, rng, known: BTreeMap::new(), pending: None, acknowledged: 0 }
    }

    /// Writes until the process is killed.
    pub fn work(&mut self, killed: &AtomicBool) {
        loop {
            if let Err((change, error)) = self.step() {
                assert!(killed.load(Ordering::SeqCst), "{change:.200} failed before the kill: {error}");
                return;
            }
        }
    }

    /// Makes this many changes, all of which must succeed.
    pub fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step().unwrap_or_else(|(change, e)| panic!("{change:.200}: {e}"));
        }
    }

    /// Changes one byte behind the writer's back, to see that the check finds it.
    pub fn spoil(&self) {
        let (name, bytes) = self.known.iter().find(|(_, b)| !b.is_empty()).expect("a file with bytes");
        let file = File::options().write(true).open(self.dir.join(name)).expect("open");
        file.write_all_at(&[!bytes[0]], 0).expect("write");
    }

    fn step(&mut self) -> Result<(), (String, io::Error)> {
        let change = self.choose();
        self.pending = Some(change.clone());
        self.perform(&change).map_err(|e| (format!("{change:?}"), e))?;
        self.pending = None;
        apply(&mut self.known, &change);
        self.acknowledged += 1;
        Ok(())
    }

    fn choose(&mut self) -> Change {
        let any = |rng: &mut StdRng| format!("f{}", rng.random_range(0..FILES));
        let name = any(&mut self.rng);
        let Some(existing) = self.known.get(&name) else {
            return Change::Create { name, bytes: self.bytes() };
        };
        let len = existing.len();
        match self.rng.random_range(0..20) {
            0..7 => Change::Write { name, offset: self.rng.random_range(0..=len), bytes: self.bytes() },
            7..12 => Change::Append { name, bytes: self.bytes() },
            12..14 => Change::Truncate { name, len: self.rng.random_range(0..=len + 10_000) },
            14..17 => Change::Rename { from: name, to: any(&mut self.rng) },
            17..18 => Change::Fsync { name },
            _ => Change::Unlink { name },
        }
    }

    /// Never zero, so that an invented zero shows; different from every other write, so that an old byte shows.
    fn bytes(&mut self) -> Vec<u8> {
        let max = LENGTHS_MAX[[0, 0, 0, 0, 0, 1, 1, 1, 2, 3][self.rng.random_range(0..10)]];
        let len = self.rng.random_range(1..max);
        let start: u32 = self.rng.random();
        (0..len as u32).map(|i| (start.wrapping_add(i.wrapping_mul(0x9E37)) >> 7) as u8 | 1).collect()
    }

    fn perform(&self, change: &Change) -> io::Result<()> {
        let path = |name: &str| self.dir.join(name);
        let open = |name: &str| File::options().write(true).open(path(name));
        match change {
            Change::Create { name, bytes } => File::create_new(path(name))?.write_all_at(bytes, 0),
            Change::Write { name, offset, bytes } => open(name)?.write_all_at(bytes, *offset as u64),
            Change::Append { name, bytes } => {
                let mut file = File::options().append(true).open(path(name))?;
                io::Write::write_all(&mut file, bytes)
            }
            Change::Truncate { name, len } => open(name)?.set_len(*len as u64),
            Change::Rename { from, to } => fs::rename(path(from), path(to)),
            Change::Unlink { name } => fs::remove_file(path(name)),
            Change::Fsync { name } => open(name)?.sync_all(),
        }
    }

    /// Compares what is there with what was acknowledged; then takes what is there as known.
    pub fn verify(&mut self) -> Result<(), String> {
        let found = read_dir(&self.dir)?;
        let pending = self.pending.take();
        let mut after = self.known.clone();
        if let Some(change) = &pending {
            apply(&mut after, change);
        }
        let names: std::collections::BTreeSet<_> =
            found.keys().chain(self.known.keys()).chain(after.keys()).cloned().collect();
        let renamed = matches!(pending, Some(Change::Rename { .. })) && after != self.known;
        if renamed && found != self.known && found != after {
            return Err(format!("a rename happened by half: {}", describe(&pending)));
        }
        for name in names {
            let (before, after, found) = (self.known.get(&name), after.get(&name), found.get(&name));
            if found != before && found != after && !is_part_of(before, after, found) {
                let what = difference(before, found);
                return Err(format!("{}/{name}: {what}; under way: {}", self.dir.display(), describe(&pending)));
            }
        }
        self.known = found;
        Ok(())
    }
}

fn describe(change: &Option<Change>) -> String {
    match change {
        None => "nothing".to_owned(),
        Some(Change::Create { name, bytes }) => format!("create {name} with {} bytes", bytes.len()),
        Some(Change::Write { name, offset, bytes }) => format!("write {name} {offset}+{}", bytes.len()),
        Some(Change::Append { name, bytes }) => format!("append {} bytes to {name}", bytes.len()),
        Some(other) => format!("{other:?}"),
    }
}

fn apply(files: &mut BTreeMap<String, Vec<u8>>, change: &Change) {
    let mut patch = |name: &String, offset: usize, bytes: &[u8]| {
        let file = files.entry(name.clone()).or_default();
        file.resize(file.len().max(offset + bytes.len()), 0);
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    match change {
        Change::Create { name, bytes } => patch(name, 0, bytes),
        Change::Write { name, offset, bytes } => patch(name, *offset, bytes),
        Change::Append { name, bytes } => {
            let end = files.get(name).map_or(0, Vec::len);
            let file = files.entry(name.clone()).or_default();
            file.truncate(end);
            file.extend(bytes);
        }
        Change::Truncate { name, len } => files.entry(name.clone()).or_default().resize(*len, 0),
        Change::Rename { from, to } => {
            if from != to
                && let Some(bytes) = files.remove(from)
            {
                files.insert(to.clone(), bytes);
            }
        }
        Change::Unlink { name } => drop(files.remove(name)),
        Change::Fsync { .. } => {}
    }
}

/// A change of several calls, or a write of several requests, may have happened in part: a file that was made but not
/// yet written, or bytes each of which is either the old or the new one.
fn is_part_of(before: Option<&Vec<u8>>, after: Option<&Vec<u8>>, found: Option<&Vec<u8>>) -> bool {
    let none = Vec::new();
    let (Some(after), Some(found)) = (after, found) else { return false };
    let before = before.unwrap_or(&none);
    let len_is_between = before.len().min(after.len()) <= found.len() && found.len() <= before.len().max(after.len());
    len_is_between
        && found.iter().enumerate().all(|(i, byte)| before.get(i) == Some(byte) || after.get(i) == Some(byte))
}

fn difference(expected: Option<&Vec<u8>>, found: Option<&Vec<u8>>) -> String {
    match (expected, found) {
        (Some(_), None) => "missing".to_owned(),
        (None, Some(bytes)) => format!("{} bytes that should not exist", bytes.len()),
        (Some(expected), Some(found)) => {
            let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(expected.len().min(found.len()));
            let zeros = found[at.min(found.len())..].iter().take_while(|b| **b == 0).count();
            let (want, have) = (expected.len(), found.len());
            format!("{want} bytes acknowledged, {have} found, different from byte {at} on ({zeros} zeros there)")
        }
        (None, None) => "nothing on either side".to_owned(),
    }
}

fn read_dir(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let fail = |e: io::Error| format!("{}: {e}", dir.display());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let bytes = fs::read(entry.path()).map_err(|e| format!("{}: {e}", entry.path().display()))?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), bytes);
    }
    Ok(files)
}
