//! A disk in memory that can be copied at no cost, and the record of what was done to it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rand::{Rng, rngs::StdRng};

/// Pages are shared between copies of an image until one of them writes.
const PAGE: usize = 4096;
/// What a drive writes in one piece.
const SECTOR: usize = 512;

/// The bytes of a disk. Cloning shares them.
#[derive(Clone, Default)]
pub struct Image(HashMap<u64, Arc<[u8; PAGE]>>);

impl Image {
    fn read(&self, offset: u64, out: &mut [u8]) {
        for (page, within, part) in parts(offset, out.len()) {
            let out = &mut out[part];
            match self.0.get(&page) {
                Some(bytes) => out.copy_from_slice(&bytes[within..within + out.len()]),
                None => out.fill(0),
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, part) in parts(offset, bytes.len()) {
            let bytes = &bytes[part];
            let page = self.0.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// (page, offset in it, range of the buffer) for each page that a range touches.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let start = done;
        done = (start + PAGE - within).min(len);
        (start < len).then(|| (at / PAGE as u64, within, start..done))
    })
}

/// One thing that the kernel asked of the disk.
#[derive(Clone)]
enum Event {
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
    },
    /// What was written before is durable.
    Flush,
}

/// Which of the writes that no flush followed are on the disk after the power came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// All of them.
    All,
    /// None.
    None,
    /// Each of them by chance: a drive writes its cache back in any order. Where two of them overlap the later one wins, if both are
    /// there: no drive brings back what it has replaced.
    Some,
    /// The same sector by sector.
    Torn,
    /// All but the last, of which some sectors are there.
    LastTorn,
}

impl Survivors {
    pub const EVERY: [Self; 5] = [Self::All, Self::None, Self::Some, Self::Torn, Self::LastTorn];
}

/// What happened to a disk since `base`.
#[derive(Clone, Default)]
pub struct Recording {
    base: Image,
    events: Vec<Event>,
}

impl Recording {
    /// How many points it can be cut at, less one: the last one is here.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Flushes in it.
    pub fn flushes(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Flush)).count()
    }

    /// Bytes written in it.
    pub fn bytes(&self) -> usize {
        let len = |event: &Event| if let Event::Write { bytes, .. } = event { bytes.len() } else { 0 };
        self.events.iter().map(len).sum()
    }

    /// Writes before `cut` that no flush before `cut` followed.
    pub fn in_doubt(&self, cut: usize) -> usize {
        self.events[..cut].iter().rev().take_while(|event| matches!(event, Event::Write { .. })).count()
    }

    /// The disk after the power went before event number `cut`.
    pub fn cut(&self, cut: usize, survivors: Survivors, rng: &mut StdRng) -> Image {
        self.cutter().cut(cut, survivors, rng)
    }

    /// For many cuts.
    pub fn cutter(&self) -> Cutter<'_> {
        Cutter { recording: self, durable: self.base.clone(), until: 0 }
    }
}

/// Cuts a recording again and again. What is durable at one point is so at all later ones, so it is put together once.
pub struct Cutter<'a> {
    recording: &'a Recording,
    durable: Image,
    /// Events in `durable`.
    until: usize,
}

impl Cutter<'_> {
    /// The disk after the power went before event number `cut`.
    pub fn cut(&mut self, cut: usize, survivors: Survivors, rng: &mut StdRng) -> Image {
        let events = &self.recording.events;
        let durable = cut - self.recording.in_doubt(cut);
        if durable < self.until {
            (self.durable, self.until) = (self.recording.base.clone(), 0);
        }
        for event in &events[self.until..durable] {
            if let Event::Write { offset, bytes } = event {
                self.durable.write(*offset, bytes);
            }
        }
        self.until = durable;
        let mut image = self.durable.clone();
        for (index, event) in events[..cut].iter().enumerate().skip(durable) {
            let Event::Write { offset, bytes } = event else { continue };
            let is_last = index + 1 == cut;
            match survivors {
                Survivors::All => image.write(*offset, bytes),
                Survivors::LastTorn if !is_last => image.write(*offset, bytes),
                Survivors::Some if rng.random() => image.write(*offset, bytes),
                Survivors::None | Survivors::Some => {}
                Survivors::Torn | Survivors::LastTorn => {
                    for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR)).filter(|_| rng.random()) {
                        image.write(offset + sector * SECTOR as u64, bytes);
                    }
                }
            }
        }
        image
    }
}

/// A disk in use.
#[derive(Default)]
pub struct Disk {
    /// Bytes.
    pub size: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: Image,
    recording: Recording,
}

impl Disk {
    /// A disk of `size` bytes that holds `image`.
    pub fn new(size: u64, image: Image) -> Self {
        let recording = Recording { base: image.clone(), events: Vec::new() };
        Self { size, state: Mutex::new(State { now: image, recording }) }
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.state().now.read(offset, out);
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        state.now.write(offset, bytes);
        state.recording.events.push(Event::Write { offset, bytes: bytes.into() });
    }

    pub fn flush(&self) {
        self.state().recording.events.push(Event::Flush);
    }

    /// Events so far.
    pub fn position(&self) -> usize {
        self.state().recording.len()
    }

    /// What it holds, whether durable or not.
    pub fn image(&self) -> Image {
        self.state().now.clone()
    }

    pub fn recording(&self) -> Recording {
        self.state().recording.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
