//! Warm-up: bytes are brought near before anybody reads them, in the order in which they were named, behind whoever reads now.
//!
//! A walker finds the files below the paths, a little ahead; what each needs is loaded, and its objects are brought, `WARMING_MAX` at
//! once over all warm-ups of the mount. While a reader waits for a fetch of his own only one is under way. What is there is
//! skipped, so that a second warm-up of the same paths goes on where the first one ended.

mod check;
mod openings;
mod walk;

pub use check::Held;
pub use openings::Openings;

use crate::{Vfs, ahead::Room, fetch::Holder};
use futures::{StreamExt, stream};
use sluice_base::{Errno, limits::SEGMENT_BYTES};
use sluice_run::{lock::Mutex, task::JoinSet};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use walk::{FoundFile, Need, bytes_in};

/// Objects that are brought at once, 4 MiB of memory each: enough to keep a store that takes 30 ms for a request at 1 GB/s busy.
const WARMING_MAX: usize = 8;
/// Paths and files that wait; whoever names more waits himself.
const QUEUE_MAX: usize = 4096;
/// Files whose extents are asked for at once.
const LOADS_MAX: usize = 4;
/// Between two looks whether readers still wait.
const MAKE_WAY: Duration = Duration::from_millis(5);

/// Where warmed bytes are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmTo {
    /// Names, attributes and extents alone.
    Metadata,
    /// In this mount's own cache.
    Local,
    /// In the caches of the nodes that own them; they do not pass through this mount.
    Group,
}

/// What all warm-ups of a mount share.
pub(crate) struct Warming {
    turns: Arc<Semaphore>,
    /// Who gets room as readers do: one of all goes on, whatever they have.
    first: Semaphore,
    under_way: AtomicUsize,
    running: Mutex<Vec<Arc<Warmup>>>,
    /// Who wants to know which files are opened; whether there is anybody.
    openings: Mutex<Vec<Weak<Openings>>>,
    is_noting: AtomicBool,
}

impl Default for Warming {
    fn default() -> Self {
        let turns = Arc::new(Semaphore::new(WARMING_MAX));
        let (under_way, is_noting) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self {
            turns,
            first: Semaphore::new(1),
            under_way,
            running: Mutex::default(),
            openings: Mutex::default(),
            is_noting,
        }
    }
}

/// A warm-up, as it goes on.
pub struct Warmup {
    /// Where to.
    pub to: WarmTo,
    counts: Counts,
    over: AtomicBool,
    stopped: AtomicBool,
    trouble: Mutex<Option<String>>,
    /// Files that programs have opened since it began: they read them themselves.
    opened: Arc<Openings>,
}

#[derive(Default)]
struct Counts {
    files: AtomicU64,
    files_done: AtomicU64,
    files_failed: AtomicU64,
    bytes: AtomicU64,
    present: AtomicU64,
    brought: AtomicU64,
    unstored: AtomicU64,
    failed: AtomicU64,
}

/// How far a warm-up is. Bytes are those of files, holes left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WarmNumbers {
    /// Files found so far.
    pub files: u64,
    /// Files whose bytes have all been looked after.
    pub files_done: u64,
    /// Paths and files of which not everything could be brought.
    pub files_failed: u64,
    /// Bytes of the files that were found so far, holes included.
    pub bytes: u64,
    /// Bytes that were there.
    pub present_bytes: u64,
    /// Bytes that were brought.
    pub brought_bytes: u64,
    /// Bytes that their writer has not stored yet: they are his alone.
    pub unstored_bytes: u64,
    /// Bytes that could not be brought.
    pub failed_bytes: u64,
    /// The latest reason for that.
    pub trouble: Option<String>,
    /// Nothing more happens.
    pub over: bool,
}

impl Warmup {
    /// How far it is.
    pub fn numbers(&self) -> WarmNumbers {
        let (c, over) = (&self.counts, self.over.load(Relaxed));
        WarmNumbers {
            files: c.files.load(Relaxed),
            files_done: c.files_done.load(Relaxed),
            files_failed: c.files_failed.load(Relaxed),
            bytes: c.bytes.load(Relaxed),
            present_bytes: c.present.load(Relaxed),
            brought_bytes: c.brought.load(Relaxed),
            unstored_bytes: c.unstored.load(Relaxed),
            failed_bytes: c.failed.load(Relaxed),
            trouble: self.trouble.lock().clone(),
            over,
        }
    }

    /// Nothing more is begun.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    fn fail(&self, name: &str, bytes: u64, why: &str) {
        self.counts.failed.fetch_add(bytes, Relaxed);
        *self.trouble.lock() = Some(format!("{name}: {why}"));
    }
}

/// A file that counts as done once nobody brings anything of it any more.
struct Warmed {
    warmup: Arc<Warmup>,
    name: String,
    failed: AtomicBool,
}

impl Warmed {
    fn fail(&self, bytes: u64, why: &str) {
        self.failed.store(true, Relaxed);
        self.warmup.fail(&self.name, bytes, why);
    }
}

impl Drop for Warmed {
    fn drop(&mut self) {
        let counts = &self.warmup.counts;
        if self.failed.load(Relaxed) { &counts.files_failed } else { &counts.files_done }.fetch_add(1, Relaxed);
    }
}

/// An object that is being brought, until this is dropped.
struct UnderWay(Arc<Vfs>);

impl UnderWay {
    fn new(vfs: &Arc<Vfs>) -> Self {
        vfs.warming.under_way.fetch_add(1, Relaxed);
        Self(vfs.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.warming.under_way.fetch_sub(1, Relaxed);
    }
}

/// Objects that are being brought.
#[derive(Default)]
struct Begun {
    tasks: JoinSet<()>,
    count: usize,
}

impl Begun {
    async fn one_ends(&mut self) {
        self.tasks.join_next().await;
        self.count -= 1;
    }
}

impl Vfs {
    /// Begins a warm-up of the paths, from the root of the volume, that are sent to it. It is over once the sender was dropped
    /// and everything was looked after.
    pub fn warm(self: &Arc<Self>, to: WarmTo) -> (mpsc::Sender<Vec<u8>>, Arc<Warmup>) {
        let warmup = Arc::new(Warmup {
            to,
            counts: Counts::default(),
            over: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            trouble: Mutex::default(),
            opened: self.warming.openings(),
        });
        let (paths, named) = mpsc::channel(QUEUE_MAX);
        let (files, found) = mpsc::channel(QUEUE_MAX);
        self.warming.running.lock().push(warmup.clone());
        let (vfs, walked) = (self.clone(), warmup.clone());
        self.parts.runtime.spawn(async move { vfs.walk(walked, named, files).await });
        let (vfs, brought) = (self.clone(), warmup.clone());
        self.parts.runtime.spawn(async move { vfs.bring_all(brought, found).await });
        (paths, warmup)
    }

    /// Warm-ups that are not over.
    pub fn warmups(&self) -> Vec<Arc<Warmup>> {
        self.warming.running.lock().clone()
    }

    async fn walk(
        self: Arc<Self>,
        warmup: Arc<Warmup>,
        mut named: mpsc::Receiver<Vec<u8>>,
        files: mpsc::Sender<FoundFile>,
    ) {
        while let Some(path) = named.recv().await {
            if warmup.is_stopped() {
                return;
            }
            if let Err(errno) = self.files_below(&path, &files).await {
                warmup.counts.files_failed.fetch_add(1, Relaxed);
                warmup.fail(&String::from_utf8_lossy(&path), 0, &errno.to_string());
            }
        }
    }

    async fn bring_all(self: Arc<Self>, warmup: Arc<Warmup>, found: mpsc::Receiver<FoundFile>) {
        self.bring_files(&warmup, found).await;
        warmup.over.store(true, Relaxed);
        self.warming.running.lock().retain(|other| !Arc::ptr_eq(other, &warmup));
        drop(warmup);
        self.warming.drop_openings();
    }

    async fn bring_files(self: &Arc<Self>, warmup: &Arc<Warmup>, found: mpsc::Receiver<FoundFile>) {
        let files = stream::unfold(found, |mut found| async { Some((found.recv().await?, found)) });
        let loaded = files.map(|file| {
            warmup.counts.files.fetch_add(1, Relaxed);
            warmup.counts.bytes.fetch_add(file.size, Relaxed);
            let vfs = self.clone();
            async move { (vfs.needs(file.ino).await, file) }
        });
        let mut loaded = std::pin::pin!(loaded.buffered(LOADS_MAX));
        let mut begun = Begun::default();
        let mut opened = Vec::new();
        while let Some((needs, file)) = loaded.next().await {
            // The walk ends with us.
            if warmup.is_stopped() {
                break;
            }
            match needs {
                // Whoever reads it is there first. What he leaves comes last.
                Ok(needs) if warmup.opened.has(file.ino) && !needs.is_empty() => opened.push(file),
                needs => self.bring_file(warmup, file, needs, &mut begun).await,
            }
        }
        for file in opened {
            let needs = self.needs(file.ino).await;
            self.bring_file(warmup, file, needs, &mut begun).await;
        }
        while begun.count > 0 {
            begun.one_ends().await;
        }
    }

    /// Begins to bring what a file needs, in order.
    async fn bring_file(
        self: &Arc<Self>,
        warmup: &Arc<Warmup>,
        file: FoundFile,
        needs: Result<Vec<Need>, Errno>,
        begun: &mut Begun,
    ) {
        let file = Arc::new(Warmed { warmup: warmup.clone(), name: file.name, failed: AtomicBool::new(false) });
        let needs = match needs {
            Ok(needs) if warmup.to != WarmTo::Metadata => needs,
            Ok(_) => return,
            Err(errno) => return file.fail(0, &errno.to_string()),
        };
        for need in needs {
            if warmup.is_stopped() {
                return file.fail(0, "stopped");
            }
            if warmup.to == WarmTo::Local && self.is_here(&need) {
                warmup.counts.present.fetch_add(need.bytes, Relaxed);
                continue;
            }
            while begun.count >= WARMING_MAX {
                begun.one_ends().await;
            }
            let Ok(turn) = self.warming.turns.clone().acquire_owned().await else { return };
            self.make_way().await;
            let (vfs, file) = (self.clone(), file.clone());
            begun.count += 1;
            // From here on: a task that has not run yet would not be made way for.
            let under_way = UnderWay::new(self);
            begun.tasks.spawn(async move {
                let _under_way = under_way;
                let brought = match file.warmup.to {
                    WarmTo::Group => vfs.bring_to_group(&file, &need).await,
                    _ => vfs.bring_here(&file, &need).await,
                };
                if let Err(why) = brought {
                    file.fail(need.bytes, &why);
                }
                drop(turn);
            });
        }
    }

    /// Whoever reads goes first; one of us goes on all the same.
    async fn make_way(&self) {
        while self.fetches.waiting.load(Relaxed) > 0 && self.warming.under_way.load(Relaxed) > 0 {
            sluice_run::time::sleep(MAKE_WAY).await;
        }
    }

    /// Room for what is brought through this mount's memory, of which readers have the last quarter to themselves.
    async fn room_to_warm(&self, bytes: usize) -> (Option<Room>, Option<SemaphorePermit<'_>>) {
        let left_over = async {
            loop {
                if let Some(room) = self.ahead.room_to_warm(bytes, self.parts.clock.monotonic()) {
                    return room;
                }
                sluice_run::time::sleep(MAKE_WAY).await;
            }
        };
        let first = async {
            let turn = self.warming.first.acquire().await;
            (self.ahead.room(bytes).await, turn.ok())
        };
        tokio::select! {
            biased;
            room = left_over => (Some(room), None),
            both = first => both,
        }
    }

    /// Whether a file's part of an object is in this mount's cache; if so it stays for a while.
    fn is_here(&self, need: &Need) -> bool {
        if self.dirty.get(need.object).is_some() {
            return true;
        }
        let Some(cache) = &self.parts.cache else { return false };
        let is_here = need.segments & !cache.present(need.object) == 0;
        if is_here {
            cache.favour(need.object);
        }
        is_here
    }

    async fn bring_here(self: &Arc<Self>, file: &Warmed, need: &Need) -> Result<(), String> {
        let counts = &file.warmup.counts;
        let cache = self.parts.cache.as_ref().ok_or("the mount has no cache (--cache none): warm it --to group")?;
        // A reader may have been quicker.
        if self.is_here(need) {
            counts.present.fetch_add(need.bytes, Relaxed);
            return Ok(());
        }
        let stored = match self.holder(need.object).await.map_err(|errno| errno.to_string())? {
            Holder::Stored(stored) => stored,
            Holder::Writer(_) => {
                counts.unstored.fetch_add(need.bytes, Relaxed);
                return Ok(());
            }
        };
        let before = cache.present(need.object);
        let missing = need.segments & !before;
        let range = missing.trailing_zeros()..stored.segment_count().min(u128::BITS - missing.leading_zeros());
        if range.is_empty() {
            return Err("its object is shorter than the file says".into());
        }
        // Those that are brought beside it would push it out again.
        let slot = cache.prepare(need.object).map_err(|error| error.to_string())?;
        let room = self.room_to_warm(range.len() * SEGMENT_BYTES).await;
        let fetched = self.fetch_into_cache(&stored, range).await;
        drop(room);
        drop(slot);
        if cache.present(need.object) == 0 {
            cache.evict(need.object);
        }
        fetched.map_err(|errno| format!("fetching it failed: {errno}"))?;
        if !self.is_here(need) {
            return Err("the cache could not keep it: `sluice status` tells how it is".into());
        }
        let present = bytes_in(need, before);
        counts.present.fetch_add(present, Relaxed);
        counts.brought.fetch_add(need.bytes - present, Relaxed);
        Ok(())
    }

    async fn bring_to_group(self: &Arc<Self>, file: &Warmed, need: &Need) -> Result<(), String> {
        let counts = &file.warmup.counts;
        let group = self.parts.group.as_ref().ok_or("the volume has no nodes: it is mounted by `sluice up`")?;
        let stored = match self.holder(need.object).await.map_err(|errno| errno.to_string())? {
            Holder::Stored(stored) => stored,
            Holder::Writer(_) => {
                counts.unstored.fetch_add(need.bytes, Relaxed);
                return Ok(());
            }
        };
        match group.fill(stored).await? {
            0 => counts.present.fetch_add(need.bytes, Relaxed),
            _ => counts.brought.fetch_add(need.bytes, Relaxed),
        };
        Ok(())
    }
}
