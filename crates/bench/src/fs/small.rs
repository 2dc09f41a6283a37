//! The two workloads on many small files.

use super::{
    content::{self, Key},
    hand::{Hand, Tally, together},
    large::{Done, Job},
    plan::{Variant, Workload},
};
use anyhow::Context;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    ops::RangeInclusive,
    path::PathBuf,
};

/// Sizes of `small-files`.
const FILE_BYTES: RangeInclusive<usize> = 1 << 10..=32 << 10;
/// The largest of them.
pub(super) const FILE_BYTES_MAX: u64 = 32 << 10;
/// Files in a directory of `small-files`.
const FILES_OF_DIR: usize = 100;
/// Bytes of a file of `metadata`.
const TINY: usize = 33;

/// Files that a workload makes.
struct Files {
    dirs: Vec<PathBuf>,
    paths: Vec<PathBuf>,
    sizes: Vec<usize>,
    /// Each file begins as it does.
    bytes: Vec<u8>,
    /// Seeds have nothing of their own.
    keys: Option<Vec<Key>>,
}

impl Files {
    /// What a file has to hold.
    fn bytes(&self, file: usize) -> Vec<u8> {
        let mut bytes = self.bytes[..self.sizes[file]].to_vec();
        if let Some(keys) = &self.keys {
            keys[file].mark(0, &mut bytes);
        }
        bytes
    }

    fn is_corrected(&self) -> bool {
        self.keys.is_some()
    }
}

impl Job<'_> {
    /// Makes ready, measures.
    pub(super) fn small(&mut self) -> anyhow::Result<Done> {
        self.place.keep_only("")?;
        let corrected = self.variant == Variant::Corrected;
        let is_metadata = self.workload == Workload::Metadata;
        let files = if is_metadata { self.metadata_files(corrected) } else { self.small_files(corrected) };
        // The published program has threads here only.
        let threads = if is_metadata && !corrected { 1 } else { self.plan.threads };
        for dir in &files.dirs {
            fs::create_dir(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let phases = if is_metadata { 3.0 } else { 4.0 };
        // What is written is put together before the time begins, what is read compared after it.
        let make = |hand: &mut Hand<'_>, file: usize| {
            let bytes = files.bytes(file);
            hand.does(|| create(&files, file, &bytes));
        };
        let mut tally = self.phase(&files, threads, 0.0, phases, make)?;
        tally.then(self.sync_names(&files, threads)?);
        if !is_metadata {
            if corrected {
                self.forget_small(&files);
            }
            tally.then(self.phase(&files, threads, 1.0, phases, |hand, file| read(hand, &files, file))?);
        }
        let stat = |hand: &mut Hand<'_>, file: usize| hand.does(|| fs::metadata(&files.paths[file]).map(|_| 0));
        tally.then(self.phase(&files, threads, phases - 2.0, phases, stat)?);
        let remove = |hand: &mut Hand<'_>, file: usize| hand.does(|| fs::remove_file(&files.paths[file]).map(|()| 0));
        tally.then(self.phase(&files, threads, phases - 1.0, phases, remove)?);
        tally.then(if corrected { self.sync_names(&files, threads)? } else { self.remove_dirs(&files)? });
        Ok(Done { tally, threads, written_part: None })
    }

    fn metadata_files(&self, corrected: bool) -> Files {
        let dir = self.place.path("metadata");
        let count = self.plan.metadata_files;
        let keys = self.keys(count, corrected);
        let paths = (0..count).map(|at| dir.join(format!("file_{at:06}"))).collect();
        Files { dirs: vec![dir], paths, sizes: vec![TINY; count], bytes: content::random(TINY, 3), keys }
    }

    fn small_files(&self, corrected: bool) -> Files {
        let (top, count) = (self.place.path("small-files"), self.plan.small_files);
        let dir = |at: usize| top.join(format!("d{at:04}"));
        let mut dirs = vec![top.clone()];
        dirs.extend((0..count.div_ceil(FILES_OF_DIR)).map(dir));
        let paths = (0..count).map(|at| dir(at / FILES_OF_DIR).join(format!("f{at:06}"))).collect();
        let keys = self.keys(count, corrected);
        let (min, max) = (*FILE_BYTES.start(), *FILE_BYTES.end());
        let mut random = SmallRng::seed_from_u64(4);
        let size = |at: usize| match corrected {
            true => random.random_range(FILE_BYTES),
            // Said to be random, but they rise.
            false => min + at * (max - min) / count,
        };
        Files { dirs, paths, sizes: (0..count).map(size).collect(), bytes: content::random(max, 5), keys }
    }

    fn keys(&self, count: usize, corrected: bool) -> Option<Vec<Key>> {
        corrected.then(|| (0..count).map(|at| self.place.key(at, self.round as u64)).collect())
    }

    /// Something with each file, after so many of all phases.
    fn phase(
        &self,
        files: &Files,
        threads: usize,
        before: f64,
        phases: f64,
        work: impl Fn(&mut Hand<'_>, usize) + Sync,
    ) -> anyhow::Result<Tally> {
        let count = files.paths.len();
        together(self.watch, threads, |hand| {
            for file in (hand.at..count).step_by(threads) {
                work(hand, file);
                hand.is_at((before + file as f64 / count as f64) / phases);
                if !hand.goes_on() {
                    return;
                }
            }
        })
    }

    /// Corrected: creations and deletions count once they would survive a crash.
    fn sync_names(&self, files: &Files, threads: usize) -> anyhow::Result<Tally> {
        if !files.is_corrected() {
            return Ok(Tally::default());
        }
        together(self.watch, threads, |hand| {
            for dir in files.dirs.iter().skip(hand.at).step_by(threads) {
                hand.notes(File::open(dir).and_then(|dir| dir.sync_all()));
            }
        })
    }

    /// Seed: in its time.
    fn remove_dirs(&self, files: &Files) -> anyhow::Result<Tally> {
        together(self.watch, 1, |hand| hand.notes(fs::remove_dir_all(&files.dirs[0])))
    }

    /// Not in the time. What cannot be opened is told of by its read.
    fn forget_small(&self, files: &Files) {
        for path in &files.paths {
            let _ = File::open(path).and_then(|file| super::place::forget(&file));
        }
    }
}

fn create(files: &Files, at: usize, bytes: &[u8]) -> io::Result<u64> {
    let mut file = File::create(&files.paths[at])?;
    file.write_all(bytes)?;
    if files.is_corrected() {
        file.sync_all()?;
    }
    Ok(bytes.len() as u64)
}

fn read(hand: &mut Hand<'_>, files: &Files, at: usize) {
    let mut came = Vec::with_capacity(FILE_BYTES_MAX as usize);
    hand.does(|| Ok(File::open(&files.paths[at])?.read_to_end(&mut came)? as u64));
    if files.is_corrected() && came != files.bytes(at) {
        hand.notes(Err(io::Error::other(format!("{} is not what was written", files.paths[at].display()))));
    }
}
