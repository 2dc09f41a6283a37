//! What takes the tee's records to the store.

mod error;
mod position;
mod status;

use crate::{
    blob::{self, About, Kind, Line},
    checkpoint,
    found::{self, BLOBS_MAX},
    head::{self, Head},
    in_use::{self, Place},
    names,
    tee::{Next, Tee},
};
use bytes::Bytes;
use error::ShipError;
use futures::{StreamExt, stream::FuturesUnordered};
use position::{Made, Making, Position};
use sluice_base::{Clock, Entropy, Seq};
use sluice_meta::store::MetaStore;
use sluice_object::{PutMode, Store, StoreError};
use sluice_run::{
    lock::Mutex,
    task::{Handle, JoinHandle},
    time::timeout,
    watch,
};
pub use status::ShipStatus;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Between two looks, so that the store is at most 5 s behind: a sync of the journal and a request come on top.
const INTERVAL: Duration = Duration::from_secs(3);
/// Bytes of a blob, about.
const BLOB_BYTES: usize = 4 << 20;
/// A log this long, and as long as the checkpoint, is replaced by another checkpoint: so nothing is shipped more than twice.
const LOG_BYTES: u64 = 64 << 20;
/// A log of so many blobs takes minutes to read, however small they are.
const LOG_BLOBS: u64 = 16 << 10;
/// Blobs that are made before a look at anything else.
const BLOBS_A_LOOK: usize = 64;
/// The wait after a failure doubles from here to the last.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// What may be shipped before the bytes that it speaks of, so that a restore, which looks for them, need not hold more in memory.
const AHEAD_BYTES: usize = 16 << 20;

/// Up to where the store has all bytes that the metadata speaks of: given what an earlier answer was, or less, and how far it is asked for.
pub type Bound = dyn Fn(Seq, Seq) -> Seq + Send + Sync;

/// See [`ShipperParts::on_checkpoint`].
pub type OnCheckpoint = dyn Fn() -> sluice_meta::Result<()> + Send + Sync;

/// What a [`Shipper`] is made of.
pub struct ShipperParts {
    /// The metadata.
    pub tables: Arc<MetaStore>,
    /// What was committed.
    pub tee: Arc<Tee>,
    /// Where it goes.
    pub store: Store,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where the number of this run comes from.
    pub entropy: Arc<dyn Entropy>,
    /// Whose changes they are.
    pub line: Line,
    /// Called before the store has a checkpoint that counts: what it commits is in the store with that.
    pub on_checkpoint: Box<OnCheckpoint>,
    /// The log leaves without waiting for the bytes that it speaks of: who syncs waits for both. Otherwise it leaves behind them, so that none
    /// of it is left out should it be needed.
    pub is_ahead: bool,
    /// Where the volume is at work, noted in the store from the beginning up to [`Shipper::leave`].
    pub place: Place,
}

/// Takes the metadata to the store as long as it lives.
pub struct Shipper {
    parts: ShipperParts,
    bound: OnceLock<Box<Bound>>,
    /// Looks at once.
    now: Notify,
    /// Looks all the time.
    finishing: AtomicBool,
    /// Somebody waits for this record.
    wanted: AtomicU64,
    /// Questions whether this is still the process that ships.
    asked: AtomicU64,
    reached: watch::Sender<Reached>,
    state: Mutex<State>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Removes what the last checkpoint replaced.
    cleaning: Mutex<Option<JoinHandle<()>>>,
}

/// What comes back from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reached {
    seq: Seq,
    /// More of it may follow; not where a checkpoint must come first.
    is_whole: bool,
    /// The log says that the bytes of before this process are there, or lost: without them nothing behind them need be left out.
    is_settled: bool,
    /// The store's metadata is of this line, as far as it was when this process looked.
    is_ours: bool,
    /// The last question after which a blob of this process was taken: see [`Shipper::confirmed`].
    confirmed: u64,
    /// Nothing more comes.
    has_stopped: bool,
    /// Nothing more is done either.
    has_ended: bool,
}

#[derive(Default)]
struct State {
    log_bytes: u64,
    checkpoint_bytes: u64,
    known: bool,
    /// Fence and line of the note that says where the volume is at work.
    noted: Option<(u64, Line)>,
    trouble: Option<String>,
    stopped: bool,
    /// Of blobs that are not known to have arrived: the last record, and since when the first one waits.
    under_way: VecDeque<(Seq, Duration)>,
}

/// The work, which ends with this, however it does.
struct Ends(Arc<Shipper>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.reached.send_modify(|reached| (reached.has_stopped, reached.has_ended) = (true, true));
    }
}

impl Shipper {
    /// One that does nothing yet.
    pub fn new(parts: ShipperParts) -> Arc<Self> {
        Arc::new(Self {
            parts,
            bound: OnceLock::new(),
            now: Notify::new(),
            finishing: false.into(),
            wanted: 0.into(),
            asked: 0.into(),
            reached: watch::Sender::new(Reached::default()),
            state: Mutex::default(),
            task: Mutex::default(),
            cleaning: Mutex::default(),
        })
    }

    /// Begins to ship, on `runtime`, as far as `bound` says.
    pub fn begin(self: &Arc<Self>, bound: Box<Bound>, runtime: &Handle) {
        let _ = self.bound.set(bound);
        let ends = Ends(self.clone());
        *self.task.lock() = Some(runtime.spawn(async move { ends.0.work().await }));
    }

    /// Ships all that is committed now, waiting `within` at most; or why not all of it is.
    pub async fn finish(&self, within: Duration) -> Result<(), String> {
        let wanted = self.parts.tables.visible();
        self.finishing.store(true, Relaxed);
        self.now.notify_one();
        let mut reached = self.reached.subscribe();
        let is_over = |reached: &Reached| reached.has_stopped || (reached.is_whole && reached.seq >= wanted);
        let done = timeout(within, reached.wait_for(is_over)).await;
        if matches!(done, Ok(Ok(reached)) if !reached.has_stopped) {
            return Ok(());
        }
        Err(self.trouble(if self.stopped().is_some() { "shipping has ended" } else { "the store takes long" }))
    }

    /// The volume is at rest, with everything in the store: whoever recovers it from there cuts nobody off.
    pub async fn leave(&self, within: Duration) {
        let noted = self.state.lock().noted.take();
        let Some(noted) = noted else { return };
        let left = timeout(within, in_use::end(&self.parts.store, noted)).await;
        let why = match left {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store takes long".to_owned(),
        };
        tracing::warn!(why, "the store still says that the volume is in use: a recovery will want --force");
    }

    /// Resolves when the store has the metadata up to `seq`, which the journal has synced; or why it never will.
    pub async fn shipped(&self, seq: Seq) -> Result<(), String> {
        self.wanted.fetch_max(seq.0, Relaxed);
        self.now.notify_one();
        self.when(|reached| reached.is_whole && reached.is_settled && reached.seq >= seq).await
    }

    /// Resolves once this process has looked whose metadata the store has; or why it is not this one's.
    pub async fn is_ours(&self) -> Result<(), String> {
        self.when(|reached| reached.is_ours).await
    }

    /// Resolves when a blob that was made after this was called was taken: whoever takes over, or recovers the volume, looks at the store again
    /// since. Or why none is taken any more.
    pub async fn confirmed(&self) -> Result<(), String> {
        let question = self.asked.fetch_add(1, Relaxed) + 1;
        self.now.notify_one();
        self.when(|reached| reached.confirmed >= question).await
    }

    /// Why nothing more is shipped, where that is so.
    pub fn stopped(&self) -> Option<String> {
        self.reached.borrow().has_stopped.then(|| self.trouble("shipping has ended"))
    }

    async fn when(&self, is_so: impl Fn(&Reached) -> bool) -> Result<(), String> {
        let mut reached = self.reached.subscribe();
        let done = reached.wait_for(|reached| reached.has_stopped || is_so(reached)).await;
        match done {
            Ok(reached) if !reached.has_stopped => Ok(()),
            _ => Err(self.trouble("shipping has ended")),
        }
    }

    fn trouble(&self, otherwise: &str) -> String {
        self.state.lock().trouble.clone().unwrap_or_else(|| otherwise.into())
    }

    /// Ends: who waits is told that nothing more comes.
    pub fn stop(&self) {
        self.reached.send_modify(|reached| reached.has_stopped = true);
        if let Some(task) = &*self.task.lock() {
            task.abort();
        }
    }

    /// Resolves when, after [`Shipper::stop`], nothing is asked of the store any more.
    pub async fn ended(&self) {
        let is_begun = self.task.lock().is_some();
        if is_begun {
            let _ = self.reached.subscribe().wait_for(|reached| reached.has_ended).await;
        }
        let cleaning = self.cleaning.lock().take();
        if let Some(cleaning) = cleaning {
            let _ = cleaning.await;
        }
    }

    /// How it stands.
    pub fn status(&self) -> ShipStatus {
        let state = self.state.lock();
        let seq = self.reached.borrow().seq;
        let under_way = state.under_way.iter().find(|(last, _)| *last > seq).map(|(_, since)| *since);
        let since = under_way.or_else(|| self.parts.tee.waits(seq).0);
        let waited = since.map_or(Duration::ZERO, |since| self.parts.clock.monotonic().saturating_sub(since));
        ShipStatus {
            shipped_seq: state.known.then_some(seq.0),
            behind_records: self.parts.tables.visible().0.saturating_sub(seq.0),
            behind_ms: waited.as_millis() as u64,
            log_bytes: state.log_bytes,
            checkpoint_bytes: state.checkpoint_bytes,
            trouble: state.trouble.clone(),
            stopped: state.stopped,
        }
    }

    async fn work(self: &Arc<Self>) {
        let (mut position, mut wait) = (None, RETRY_FIRST);
        loop {
            let pause = match self.look(&mut position).await {
                Ok(()) => {
                    self.state.lock().trouble = None;
                    wait = RETRY_FIRST;
                    if self.is_waited_for() { RETRY_FIRST } else { INTERVAL }
                }
                Err(error) => {
                    let is_last = error.is_last();
                    let text = error.to_string();
                    if is_last {
                        tracing::error!("{text}");
                    } else {
                        tracing::warn!(%error, "shipping the metadata failed and is tried again");
                    }
                    {
                        let mut state = self.state.lock();
                        (state.trouble, state.stopped) = (Some(text), is_last);
                    }
                    if is_last {
                        self.reached.send_modify(|reached| reached.has_stopped = true);
                        return;
                    }
                    wait = (wait * 2).min(RETRY_LAST);
                    wait
                }
            };
            let _ = timeout(pause, self.now.notified()).await;
        }
    }

    /// Whether it should not take its time: also until there is anything that would come back.
    fn is_waited_for(&self) -> bool {
        let reached = *self.reached.borrow();
        let wanted = self.wanted.load(Relaxed);
        let is_wanted = wanted > 0 && (wanted > reached.seq.0 || !reached.is_settled);
        let is_asked = self.asked.load(Relaxed) > reached.confirmed;
        !reached.is_whole || is_wanted || is_asked || self.finishing.load(Relaxed)
    }

    /// Ships what there is, and begins and ends checkpoints.
    async fn look(self: &Arc<Self>, position: &mut Option<Position>) -> Result<(), ShipError> {
        let position = match position {
            Some(position) => position,
            None => position.insert(self.find().await?),
        };
        self.ship(position).await?;
        let asked = self.asked.load(Relaxed);
        if asked > self.reached.borrow().confirmed {
            self.show(position).await?;
            self.reached.send_modify(|reached| reached.confirmed = asked);
        }
        if !self.reached.borrow().is_settled && self.whole(position, position.shipped) >= position.start {
            self.show(position).await?;
        }
        let is_long = position.log_bytes > LOG_BYTES.max(position.head.as_ref().map_or(0, |head| head.bytes))
            || position.head.as_ref().is_some_and(|head| position.next - head.log > LOG_BLOBS);
        if position.making.is_none() && (position.head.is_none() || is_long) {
            self.begin_checkpoint(position);
        }
        if let Some(making) = &mut position.making {
            // What comes meanwhile is shipped meanwhile: at once, where it is of use already.
            let is_whole = position.head.is_some() && !self.finishing.load(Relaxed);
            let patience = if is_whole { Duration::ZERO } else { RETRY_FIRST };
            if making.head.is_none() {
                match timeout(patience, &mut making.made).await {
                    Err(_) => {}
                    Ok(Ok(Ok(head))) => making.head = Some(head),
                    Ok(made) => {
                        position.making = None;
                        made.map_err(|_| ShipError::Ended)??;
                    }
                }
            }
        }
        let made = position.making.as_ref().and_then(|making| making.head.clone());
        if let Some(head) = made {
            let (shipper, end) = (self.clone(), Seq(head.end));
            let synced = sluice_run::task::spawn_blocking(move || {
                let ShipperParts { tables, on_checkpoint, .. } = &shipper.parts;
                on_checkpoint()?;
                tables.ensure_synced(end.max(tables.visible())).map_err(ShipError::from)
            });
            synced.await.map_err(|_| ShipError::Ended)??;
            self.ship(position).await?;
            // It waits for the bytes of files as well.
            if self.whole(position, position.shipped).0 >= head.end && position.making.is_some() {
                self.end_checkpoint(position, head).await?;
            }
        }
        self.tell(position);
        Ok(())
    }

    fn tell(&self, position: &Position) {
        {
            let mut state = self.state.lock();
            (state.log_bytes, state.known) = (position.log_bytes, true);
            state.checkpoint_bytes = position.head.as_ref().map_or(0, |head| head.bytes);
            state.under_way.retain(|(last, _)| *last > position.shipped);
        }
        self.reached.send_modify(|reached| {
            reached.is_whole = position.head.is_some();
            reached.is_settled = position.said >= position.start;
            // What no checkpoint leads to is of no use yet.
            if reached.is_whole {
                reached.seq = position.shipped;
            }
        });
    }

    /// What the store has. From now on this process is the one that ships.
    async fn find(&self) -> Result<Position, ShipError> {
        let (store, line) = (&self.parts.store, self.parts.line);
        loop {
            let here = self.parts.tables.visible();
            let found = found::find(store).await?;
            found.line().map_or(Ok(()), |store| store.check(line))?;
            let end = found.end();
            let has = end.max(found.last.map(|last| Seq(last.last))).unwrap_or_default();
            if has > here {
                return Err(ShipError::Older { store: has.0, here: here.0 });
            }
            // Who waits to upload may do so, and what is dirty may have to leave before anything can be synced.
            self.reached.send_modify(|reached| reached.is_ours = true);
            // A line that the store knows must not be lost with the power: the directory would have another one then.
            let tables = self.parts.tables.clone();
            let synced = sluice_run::task::spawn_blocking(move || tables.ensure_synced(here)).await;
            synced.map_err(|_| ShipError::Ended)??;
            if let Some(damage) = &found.damage {
                tracing::warn!("{damage}: a new checkpoint takes its place");
            }
            // Without a checkpoint that leads to its end, the log in the store is of no use: another one begins here.
            let head = found.head.clone().filter(|_| end.is_some());
            let (shipped, since) = match (&head, end) {
                (Some(head), Some(end)) => (end, head.begin()),
                _ => (here, here),
            };
            let mut position = Position { shipped, made: shipped, head, since, start: here, ..Position::at(&found) };
            position.whole = self.whole(&position, shipped);
            let about = self.about(&position, Kind::Fence, shipped.0 + 1, shipped);
            let noted = (position.fence, line);
            in_use::begin(store, noted, &self.parts.place, self.wall_secs()).await?;
            let Some(next) = found::fence(store, about).await? else { continue };
            // With a newer checkpoint the number may have been free because it was removed.
            if found::find(store).await?.head == found.head {
                self.state.lock().noted = Some(noted);
                if let Err(error) = in_use::clean(store, noted).await {
                    tracing::debug!(%error, "notes of earlier processes stay, and mean nothing");
                }
                return Ok(Position { next, said: Seq(about.whole), ..position });
            }
        }
    }

    /// Ships what the journal has for good; what is added meanwhile as well, some blobs at a time.
    async fn ship(&self, position: &mut Position) -> Result<(), ShipError> {
        // Of an earlier look that failed.
        let mut puts: FuturesUnordered<_> =
            position.blobs.iter().filter(|blob| !blob.is_there).map(|blob| self.put(blob.number, &blob.body)).collect();
        let (mut end, mut left) = (self.end(position), BLOBS_A_LOOK);
        loop {
            while position.blobs.len() < BLOBS_MAX && left > 0 && self.make(position, end) {
                left -= 1;
                let made = position.blobs.back().expect("it was made");
                puts.push(self.put(made.number, &made.body));
            }
            let number = tokio::select! {
                biased;
                put = puts.next() => match put {
                    Some(put) => put?,
                    None => return Ok(()),
                },
                // Somebody waits for more.
                () = self.now.notified(), if position.blobs.len() < BLOBS_MAX && left > 0 => {
                    end = self.end(position);
                    continue;
                }
            };
            position.blobs.iter_mut().filter(|blob| blob.number == number).for_each(|blob| blob.is_there = true);
            while position.blobs.front().is_some_and(|blob| blob.is_there) {
                let made = position.blobs.pop_front().expect("it is the front");
                (position.shipped, position.said) = (made.last, made.whole);
                position.log_bytes += made.body.len() as u64;
                self.tell(position);
            }
        }
    }

    /// How far may be shipped now.
    fn end(&self, position: &mut Position) -> Seq {
        let tables = &self.parts.tables;
        let end = tables.synced().min(tables.visible());
        position.is_whole_to(self.whole(position, position.made));
        let ahead_bytes: usize = position.ahead.iter().map(|(_, bytes)| bytes).sum();
        if self.parts.is_ahead && ahead_bytes < AHEAD_BYTES { end } else { self.bound(position, end) }
    }

    fn bound(&self, position: &Position, end: Seq) -> Seq {
        // What is on its way may not arrive: who waits for it must find out what it needs.
        let known = position.whole.min(position.shipped);
        self.bound.get().map_or(end, |bound| bound(known, end))
    }

    /// Up to where, of what is not behind `end`, all bytes are known to be there. What is behind the start of this process, or else at most what
    /// the store's log says: an object that was given up before may be spoken of in between.
    fn whole(&self, position: &Position, end: Seq) -> Seq {
        let whole = self.bound(position, end);
        if whole >= position.start { whole.max(position.whole) } else { position.whole }
    }

    fn about(&self, position: &Position, kind: Kind, first: u64, last: Seq) -> About {
        let Position { since, whole, start, fence, base, .. } = *position;
        let (since, whole, start, there) = (since.0, whole.min(last).0, start.0, position.there());
        let (line, wall_secs) = (self.parts.line, self.wall_secs());
        About { kind, first, last: last.0, since, whole, start, fence, base, there, line, wall_secs }
    }

    /// Makes the next blob, if there is anything for it up to `end`.
    fn make(&self, position: &mut Position, end: Seq) -> bool {
        let tables = &self.parts.tables;
        let (since, _) = self.parts.tee.waits(position.made);
        let records = match self.parts.tee.after(position.made, end, BLOB_BYTES) {
            Next::Nothing => return false,
            Next::Records(records) => records,
            // What is under way first.
            Next::Gap if !position.blobs.is_empty() => return false,
            Next::Gap => {
                // Nothing leads on from what the store has: a checkpoint does.
                (position.making, position.head) = (None, None);
                position.shipped = tables.visible();
                (position.made, position.since) = (position.shipped, position.shipped);
                self.begin_checkpoint(position);
                return false;
            }
        };
        let (first, last) = (position.made.0 + 1, Seq(position.made.0 + records.len() as u64));
        self.add(position, Kind::Log, (first, last), &records);
        self.state.lock().under_way.extend(since.map(|since| (last, since)));
        true
    }

    /// The next blob, to be put.
    fn add(&self, position: &mut Position, kind: Kind, (first, last): (u64, Seq), records: &[Vec<u8>]) {
        position.is_whole_to(self.whole(position, last));
        let about = self.about(position, kind, first, last);
        let (number, body) = (position.next, blob::encode(about, records));
        if position.whole < last {
            position.ahead.push_back((last, body.len()));
        }
        position.blobs.push_back(Made { number, body, last, whole: Seq(about.whole), is_there: false });
        (position.made, position.next) = (last, number + 1);
    }

    /// Puts an empty blob: this is still the process that ships, and what it knows of bytes is said.
    async fn show(&self, position: &mut Position) -> Result<(), ShipError> {
        let last = position.made;
        self.add(position, Kind::Fence, (last.0 + 1, last), &[]);
        self.ship(position).await
    }

    /// Puts a blob; returns its number.
    fn put(&self, number: u64, body: &Bytes) -> impl Future<Output = Result<u64, ShipError>> + Send + use<> {
        let (store, key, body) = (self.parts.store.clone(), names::log(number), body.clone());
        async move {
            // Whoever makes a blob with this number first is the one that ships.
            match store.put_blob(&key, body.clone(), PutMode::Create).await {
                Err(StoreError::Exists { .. }) if store.get_blob(&key).await? != body => Err(ShipError::Fenced),
                Err(StoreError::Exists { .. }) => Ok(number),
                other => Ok(other.map(|()| number)?),
            }
        }
    }

    fn begin_checkpoint(&self, position: &mut Position) {
        let (tables, store) = (self.parts.tables.clone(), self.parts.store.clone());
        let mut run = [0; 8];
        self.parts.entropy.fill(&mut run);
        let begun = Head {
            format_version: head::FORMAT_VERSION,
            begin: position.shipped.0,
            end: position.shipped.0,
            log: position.next,
            fence: position.fence,
            line: self.parts.line,
            run: u64::from_le_bytes(run),
            parts: 0,
            bytes: 0,
        };
        let made = checkpoint::make(tables, store, begun, self.wall_secs());
        let (sender, receiver) = oneshot::channel();
        let task = sluice_run::task::spawn(async move { drop(sender.send(made.await)) });
        position.making = Some(Making { task, made: receiver, head: None, log_bytes: position.log_bytes });
    }

    /// The store has the log from the checkpoint's begin to its end.
    async fn end_checkpoint(&self, position: &mut Position, head: Head) -> Result<(), ShipError> {
        // Whether it is still this process that ships: whoever has taken over needs what this would replace.
        self.show(position).await?;
        if position.making.as_ref().is_none_or(|making| making.head.as_ref() != Some(&head)) {
            // Records went missing meanwhile, and another one has begun behind them.
            return Ok(());
        }
        let store = &self.parts.store;
        store.put_blob(&names::head(head.log, head.run), head.to_json(), PutMode::Overwrite).await?;
        if let Some(making) = position.making.take() {
            position.log_bytes -= making.log_bytes.min(position.log_bytes);
        }
        (position.base, position.head) = (head.log, Some(head.clone()));
        // Only who still ships removes anything.
        self.show(position).await?;
        let store = self.parts.store.clone();
        // What is left of it is removed with the next one.
        let cleaning = sluice_run::task::spawn(async move {
            if let Err(error) = found::clean(&store, &head).await {
                tracing::warn!(%error, "what an old checkpoint of the metadata has in the store was not removed");
            }
        });
        *self.cleaning.lock() = Some(cleaning);
        Ok(())
    }

    fn wall_secs(&self) -> u64 {
        self.parts.clock.wall().secs.try_into().unwrap_or(0)
    }
}
