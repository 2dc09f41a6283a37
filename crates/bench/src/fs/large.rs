//! The four workloads on large files.

use super::{
    content::{self, Key},
    hand::{Tally, Watch, together},
    place::{DATA, Data, INTACT, Place, chunks, forget, forget_range, written_part},
    plan::{CHUNK, Offsets, Plan, Variant, Workload},
};
use anyhow::Context;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rustix::fs::{Advice, fadvise};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::FileExt,
};

/// Seed's files that are written and read in order, and at random.
const SEQUENCE: &str = "seq";
const RANDOM: &str = "rand";

/// One measurement at one place.
pub(super) struct Job<'a> {
    pub plan: &'a Plan,
    pub place: &'a mut Place,
    pub watch: &'a Watch,
    pub workload: Workload,
    pub variant: Variant,
    /// Of a corrected workload at random.
    pub offsets: Offsets,
    pub round: usize,
}

/// What came of it.
pub(super) struct Done {
    pub tally: Tally,
    pub threads: usize,
    /// Of reads.
    pub written_part: Option<f64>,
}

impl Job<'_> {
    /// Makes ready, measures.
    pub(super) fn large(&mut self) -> anyhow::Result<Done> {
        let kind = match (self.variant, self.workload.is_random()) {
            (Variant::Corrected, _) => DATA,
            (Variant::Seed, false) => SEQUENCE,
            (Variant::Seed, true) => RANDOM,
        };
        self.place.keep_only(kind)?;
        let threads = if self.variant == Variant::Seed { 1 } else { self.plan.threads };
        let (tally, written) = match (self.workload, self.variant) {
            (Workload::SeqWrite, Variant::Seed) => (self.seed_seq_write()?, None),
            (Workload::SeqWrite, Variant::Corrected) => (self.seq_write()?, None),
            (Workload::SeqRead, Variant::Seed) => self.seed_seq_read()?,
            (Workload::SeqRead, Variant::Corrected) => self.seq_read()?,
            (Workload::RandWrite, Variant::Seed) => (self.seed_rand_write()?, None),
            (Workload::RandWrite, Variant::Corrected) => (self.rand_write()?, None),
            (_, Variant::Seed) => self.seed_rand_read()?,
            (_, Variant::Corrected) => self.rand_read()?,
        };
        Ok(Done { tally, threads, written_part: written })
    }

    /// One thread, a file after the other, the same bytes each time; fsync is in the time, but in that of no operation.
    fn seed_seq_write(&self) -> anyhow::Result<Tally> {
        let buffer = seed_bytes(CHUNK);
        let (plan, place) = (self.plan, &*self.place);
        together(self.watch, 1, |hand| {
            for at in 0..plan.threads {
                let mut file = match File::create(place.file(SEQUENCE, at)) {
                    Ok(file) => file,
                    Err(error) => return hand.notes(Err(error)),
                };
                for (offset, len) in chunks(plan.file_bytes) {
                    hand.does(|| file.write_all(&buffer[..len]).map(|()| len as u64));
                    hand.is_at(part_of(plan, at, offset));
                    if !hand.goes_on() {
                        return;
                    }
                }
                hand.notes(file.sync_all());
            }
        })
    }

    /// A thread for each file, bytes that are nowhere else; the last write's time is also that of fsync of the file and its name.
    fn seq_write(&mut self) -> anyhow::Result<Tally> {
        self.place.keep_only("")?;
        let (plan, place, bytes) = (self.plan, &*self.place, content::random(CHUNK as usize, 1));
        let tally = together(self.watch, plan.threads, |hand| {
            let (key, mut buffer) = (place.key(hand.at, INTACT), bytes.clone());
            let mut file = match File::create_new(place.file(DATA, hand.at)) {
                Ok(file) => file,
                Err(error) => return hand.notes(Err(error)),
            };
            for (offset, len) in chunks(plan.file_bytes) {
                key.mark(offset, &mut buffer[..len]);
                hand.does(|| {
                    file.write_all(&buffer[..len])?;
                    if offset + len as u64 == plan.file_bytes {
                        file.sync_all()?;
                        place.sync_names()?;
                    }
                    Ok(len as u64)
                });
                hand.is_at(offset as f64 / plan.file_bytes as f64);
                if !hand.goes_on() {
                    return;
                }
            }
        })?;
        self.place.data = if tally.errors == 0 { Data::Intact } else { Data::None };
        Ok(tally)
    }

    /// One thread, a file after the other, from the page cache as far as that has them.
    fn seed_seq_read(&mut self) -> anyhow::Result<(Tally, Option<f64>)> {
        if !self.place.file(SEQUENCE, self.plan.threads - 1).exists() {
            // Not measured: the published program fails without them.
            self.seed_seq_write()?;
        }
        let plan = self.plan;
        let files = self.place.open_all(SEQUENCE, plan, OpenOptions::new().read(true))?;
        let tally = together(self.watch, 1, |hand| {
            let mut buffer = vec![0; CHUNK as usize];
            for (at, mut file) in files.iter().enumerate() {
                for (offset, len) in chunks(plan.file_bytes) {
                    hand.does(|| file.read(&mut buffer[..len]).map(|count| count as u64));
                    hand.is_at(part_of(plan, at, offset));
                    if !hand.goes_on() {
                        return;
                    }
                }
            }
        })?;
        Ok((tally, Some(written_part(&files)?)))
    }

    /// A thread for each file; the kernel has none of their pages before.
    fn seq_read(&mut self) -> anyhow::Result<(Tally, Option<f64>)> {
        self.place.prepare(Data::Intact, self.plan, self.watch)?;
        let plan = self.plan;
        let files = self.place.open_all(DATA, plan, OpenOptions::new().read(true))?;
        let written = written_part(&files)?;
        self.rewind_and_forget(&files)?;
        let tally = together(self.watch, plan.threads, |hand| {
            let (mut file, key) = (&files[hand.at], self.place.key(hand.at, INTACT));
            let mut buffer = vec![0; CHUNK as usize];
            for (offset, len) in chunks(plan.file_bytes) {
                let buffer = &mut buffer[..len];
                hand.does(|| file.read_exact(buffer).map(|()| len as u64));
                hand.notes(right(key, offset, buffer));
                hand.is_at(offset as f64 / plan.file_bytes as f64);
                if !hand.goes_on() {
                    return;
                }
            }
        })?;
        Ok((tally, Some(written)))
    }

    /// One thread, one write to each file in turn, into holes, at any byte; no fsync.
    fn seed_rand_write(&mut self) -> anyhow::Result<Tally> {
        let files = self.seed_holes(true)?;
        let plan = self.plan;
        let buffer = seed_bytes(plan.block_bytes);
        together(self.watch, 1, |hand| {
            let mut random = self.random(hand.at);
            for file in files.iter().cycle() {
                if !hand.goes_on_until(plan.time) {
                    return;
                }
                let offset = random.random_range(0..=plan.file_bytes - plan.block_bytes);
                hand.does(|| file.write_at(&buffer, offset).map(|count| count as u64));
            }
        })
    }

    /// A thread for each file, over what was written before; each write is followed by fdatasync, in its time.
    fn rand_write(&mut self) -> anyhow::Result<Tally> {
        self.place.prepare(Data::Whole, self.plan, self.watch)?;
        self.place.data = Data::Whole;
        let plan = self.plan;
        let files = self.place.open_all(DATA, plan, OpenOptions::new().write(true))?;
        self.forget(&files)?;
        let bytes = content::random(plan.block_bytes as usize, 2);
        together(self.watch, plan.threads, |hand| {
            // Not the bytes that are there: some file systems would have nothing to do.
            let generation = 1 + 2 * self.round as u64 + u64::from(self.offsets == Offsets::Unaligned);
            let (file, key, mut random) = (&files[hand.at], self.place.key(hand.at, generation), self.random(hand.at));
            let mut buffer = bytes.clone();
            while hand.goes_on_until(plan.time) {
                let offset = self.offset(&mut random);
                key.mark(offset, &mut buffer);
                hand.does(|| {
                    file.write_all_at(&buffer, offset)?;
                    file.sync_data()?;
                    Ok(buffer.len() as u64)
                });
            }
        })
    }

    /// One thread, one read from each file in turn: mostly holes, else the page cache.
    fn seed_rand_read(&mut self) -> anyhow::Result<(Tally, Option<f64>)> {
        let files = self.seed_holes(false)?;
        let plan = self.plan;
        let tally = together(self.watch, 1, |hand| {
            let mut buffer = vec![0; plan.block_bytes as usize];
            let mut random = self.random(hand.at);
            for file in files.iter().cycle() {
                if !hand.goes_on_until(plan.time) {
                    return;
                }
                let offset = random.random_range(0..=plan.file_bytes - plan.block_bytes);
                hand.does(|| file.read_at(&mut buffer, offset).map(|count| count as u64));
            }
        })?;
        Ok((tally, Some(written_part(&files)?)))
    }

    /// A thread for each file, which has no holes; the kernel has none of its pages before, and keeps none.
    fn rand_read(&mut self) -> anyhow::Result<(Tally, Option<f64>)> {
        self.place.prepare(Data::Intact, self.plan, self.watch)?;
        let plan = self.plan;
        let files = self.place.open_all(DATA, plan, OpenOptions::new().read(true))?;
        let written = written_part(&files)?;
        self.forget(&files)?;
        for file in &files {
            fadvise(file, 0, None, Advice::Random).context("fadvise")?;
        }
        let tally = together(self.watch, plan.threads, |hand| {
            let (file, key, mut random) = (&files[hand.at], self.place.key(hand.at, INTACT), self.random(hand.at));
            let mut buffer = vec![0; plan.block_bytes as usize];
            while hand.goes_on_until(plan.time) {
                let offset = self.offset(&mut random);
                hand.does(|| file.read_exact_at(&mut buffer, offset).map(|()| buffer.len() as u64));
                hand.notes(right(key, offset, &buffer));
                hand.notes(forget_range(file, offset, plan.block_bytes));
            }
        })?;
        Ok((tally, Some(written)))
    }

    /// Files that are one hole each; what was written into them stays if it may.
    fn seed_holes(&self, fresh: bool) -> anyhow::Result<Vec<File>> {
        let mut options = OpenOptions::new();
        let files =
            self.place.open_all(RANDOM, self.plan, options.create(true).truncate(fresh).read(true).write(true))?;
        for file in &files {
            file.set_len(self.plan.file_bytes).context("making a file of holes")?;
        }
        Ok(files)
    }

    /// Random numbers, the same at each place.
    fn random(&self, hand: usize) -> SmallRng {
        SmallRng::seed_from_u64(((self.round as u64) << 32) | hand as u64)
    }

    fn offset(&self, random: &mut SmallRng) -> u64 {
        self.offsets.choose(random, self.plan.file_bytes, self.plan.block_bytes)
    }

    fn forget(&self, files: &[File]) -> anyhow::Result<()> {
        files.iter().try_for_each(forget).context("fadvise")
    }

    fn rewind_and_forget(&self, files: &[File]) -> anyhow::Result<()> {
        // Looking for holes has moved them.
        for file in files {
            rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0)).context("lseek")?;
        }
        self.forget(files)
    }
}

/// How much of all files is done by one thread.
fn part_of(plan: &Plan, file: usize, offset: u64) -> f64 {
    (file as f64 + offset as f64 / plan.file_bytes as f64) / plan.threads as f64
}

/// The pattern of the published program.
fn seed_bytes(len: u64) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

fn right(key: Key, offset: u64, bytes: &[u8]) -> io::Result<()> {
    match key.is(offset, bytes) {
        true => Ok(()),
        false => Err(io::Error::other(format!("what was read at {offset} is not what was written there"))),
    }
}
