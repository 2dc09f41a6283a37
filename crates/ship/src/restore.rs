//! The way back: from the store into empty tables.

use crate::{
    blob::{self, About, BadBlob, Blob, Kind, Line},
    found::{self, Found},
    head::Head,
    held::Held,
    in_use::{InUse, in_use},
    names,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use sluice_base::Seq;
use sluice_meta::store::{EngineError, Record, RecordError, Tables};
use sluice_object::{Store, StoreError};
use std::ops::Range;

/// A process that is always quicker is alive.
const ROUNDS_MAX: usize = 20;
/// Blobs that are read ahead.
const READ_AHEAD: usize = 8;
/// The tables are written when they hold so much in memory.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last change of it.
    pub seq: Seq,
    /// Changes behind it that the store has as well, but not the bytes that they speak of. No sync had returned for any of them.
    pub left_out: u64,
    /// When that was shipped: seconds since 1970.
    pub shipped_secs: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Who goes on with what comes back.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    /// Whose it is from then on.
    pub line: Line,
    /// Now: seconds since 1970.
    pub wall_secs: u64,
    /// Also from whoever has the volume, or comes meanwhile.
    pub is_forced: bool,
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Nobody has shipped anything.
    #[error("{0} holds no metadata: the volume was never mounted by a sluice that ships it, or not for long enough")]
    Nothing(String),
    /// A blob is damaged.
    #[error("{key}: {source}")]
    Bad {
        /// Which.
        key: String,
        /// How.
        source: BadBlob,
    },
    /// A record in it is.
    #[error("{key}: {source}")]
    Record {
        /// Where.
        key: String,
        /// How.
        source: RecordError,
    },
    /// It is not the blob that its name says.
    #[error("{0} is not what its name says")]
    Name(String),
    /// The checkpoint needs more of the log than there is.
    #[error(
        "the log in {place} ends at change {end}, and the checkpoint needs it up to {needed}: something was deleted there"
    )]
    Short {
        /// The store.
        place: String,
        /// Where the log ends.
        end: u64,
        /// Where it must not.
        needed: u64,
    },
    /// Somebody else has gone on with it meanwhile, or something of it was deleted.
    #[error(
        "the metadata in {0} was changed while it was read, or parts of it are deleted: end the process that has the volume, and try again"
    )]
    Moved(String),
    /// Somebody has the volume, and it was not to be taken by force.
    #[error("the volume may be in use in {} on {}", .0.place.dir, .0.place.host)]
    InUse(InUse),
    /// The store does not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tables do not take it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What was listed and is gone was removed by whoever has made a newer checkpoint.
fn gone(error: StoreError, store: &Store) -> RestoreError {
    match error {
        StoreError::NotFound { .. } => RestoreError::Moved(store.place().to_owned()),
        other => other.into(),
    }
}

/// Reads the checkpoint and the log behind it into `tables`, which are empty; `progress` hears of bytes read and, once known, of all.
/// Whoever has shipped so far finds that it does not any more: what comes now is of the line of `taking`.
pub async fn restore(
    store: &Store,
    tables: &dyn Tables,
    taking: Taking,
    mut progress: impl FnMut(u64, u64),
) -> Result<Restored, RestoreError> {
    let Taking { line, wall_secs, is_forced } = taking;
    let (mut log, head, mut next) = begin(store, tables, &mut progress).await?;
    // Who begins from here on has a number that this one's fence then finds taken.
    if !is_forced && let Some(found) = in_use(store).await.map_err(|error| gone(error, store))? {
        return Err(RestoreError::InUse(found));
    }
    for _ in 0..ROUNDS_MAX {
        log.read(store, tables, next.clone(), &mut progress).await?;
        // A disk that does not take the tables refuses before anything is changed in the store; what is held is not much beside that.
        tables.rotate();
        tables.flush(tables.applied())?;
        let whole = log.held.whole(log.held.needed(tables)?, &log.together, store).await?;
        if whole.0 < head.end {
            return Err(RestoreError::Short { place: store.place().to_owned(), end: whole.0, needed: head.end });
        }
        // Only now that there is somebody to go on with it.
        let (kind, first, last, since) = (Kind::Fence, whole.0 + 1, whole.0, log.since);
        let (whole_there, start, fence, base, there) = (last, last, next.end, head.log, next.end);
        let about = About { kind, first, last, since, whole: whole_there, start, fence, base, there, line, wall_secs };
        let fenced = found::fence(store, about).await?;
        let found = looked(store).await?;
        // With a newer checkpoint the number may have been free because it was removed.
        if found.head.as_ref() != Some(&head) {
            return Err(RestoreError::Moved(store.place().to_owned()));
        }
        if fenced.is_some() {
            let left_out = log.held.end().0 - whole.0;
            log.use_up_to(whole, tables)?;
            tables.rotate();
            tables.flush(tables.applied())?;
            return Ok(Restored { seq: whole, left_out, shipped_secs: log.shipped_secs, bytes: log.bytes });
        }
        if !is_forced {
            break;
        }
        next = next.end..found.next;
    }
    Err(RestoreError::Moved(store.place().to_owned()))
}

/// Reads everything, and leaves the store as it is; returns the last record of the log, and the bytes.
pub(crate) async fn read_all(
    store: &Store,
    tables: &dyn Tables,
    mut progress: impl FnMut(u64, u64),
) -> Result<(Seq, u64), RestoreError> {
    let (mut log, head, next) = begin(store, tables, &mut progress).await?;
    log.read(store, tables, next, &mut progress).await?;
    let end = log.held.end();
    if end.0 < head.end {
        return Err(RestoreError::Short { place: store.place().to_owned(), end: end.0, needed: head.end });
    }
    Ok((end, log.bytes))
}

/// Reads the newest checkpoint; its head, what goes on from there, and the numbers of the blobs that it is to read.
async fn begin(
    store: &Store,
    tables: &dyn Tables,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(LogReader, Head, Range<u64>), RestoreError> {
    let found = looked(store).await?;
    let Some(head) = found.head else { return Err(RestoreError::Nothing(store.place().to_owned())) };
    let mut log = LogReader::new(&head, head.bytes + found.log_bytes);
    (log.bytes, log.shipped_secs) =
        read_parts(store, tables, &head, &mut |bytes| progress(bytes, log.all_bytes)).await?;
    let next = head.log..found.next;
    Ok((log, head, next))
}

/// What the store has, all of which that was looked at can be used.
async fn looked(store: &Store) -> Result<Found, RestoreError> {
    let found = found::find(store).await.map_err(|error| gone(error, store))?;
    match found.damage {
        Some(damage) => Err(RestoreError::Bad { key: damage.key, source: damage.source }),
        None => Ok(found),
    }
}

/// Reads the checkpoint; returns its bytes, and when it was made.
async fn read_parts(
    store: &Store,
    tables: &dyn Tables,
    head: &Head,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, u64), RestoreError> {
    let keys = (0..head.parts).map(|number| names::part(head.log, head.run, number)).collect();
    let (mut bytes, mut wall_secs) = (0, 0);
    let mut parts = std::pin::pin!(read(store, keys).enumerate());
    while let Some((number, (key, body))) = parts.next().await {
        let body = body.map_err(|error| gone(error, store))?;
        let blob = decoded(&body, &key)?;
        if (blob.about.kind, blob.about.first, blob.about.last) != (Kind::Part, head.begin, number as u64) {
            return Err(RestoreError::Name(key));
        }
        wall_secs = blob.about.wall_secs;
        // No key is in two parts; tables write what is new since the last number.
        let seq = Seq(head.begin.saturating_sub(u64::from(head.parts) - 1 - number as u64).max(1));
        for record in blob.records() {
            apply(tables, seq, record, &key)?;
        }
        flush_if_large(tables)?;
        bytes += body.len() as u64;
        progress(bytes);
    }
    Ok((bytes, wall_secs))
}

/// Reads the log: what is known whole goes to the tables.
struct LogReader {
    held: Held,
    /// All bytes up to this record were there.
    whole: Seq,
    since: u64,
    /// What processes found when they began, and the store had not: records behind the first one of use up to the last one only together.
    together: Vec<(Seq, Seq)>,
    /// Whose blobs count.
    fence: u64,
    shipped_secs: u64,
    /// Read so far, with the checkpoint.
    bytes: u64,
    /// To be read, as far as known.
    all_bytes: u64,
}

impl LogReader {
    fn new(head: &Head, all_bytes: u64) -> Self {
        let (held, whole) = (Held::new(head.begin()), head.begin());
        Self {
            held,
            whole,
            since: head.begin,
            together: Vec::new(),
            fence: head.fence,
            shipped_secs: 0,
            bytes: 0,
            all_bytes,
        }
    }

    async fn read(
        &mut self,
        store: &Store,
        tables: &dyn Tables,
        numbers: Range<u64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), RestoreError> {
        let mut blobs = std::pin::pin!(read(store, numbers.map(names::log).collect()));
        while let Some((key, body)) = blobs.next().await {
            let body = body.map_err(|error| gone(error, store))?;
            let blob = decoded(&body, &key)?;
            self.bytes += body.len() as u64;
            self.take(&blob, &key)?;
            self.use_up_to(self.whole, tables)?;
            flush_if_large(tables)?;
            progress(self.bytes, self.all_bytes.max(self.bytes));
        }
        Ok(())
    }

    fn take(&mut self, blob: &Blob<'_>, key: &str) -> Result<(), RestoreError> {
        let about = blob.about;
        let name = || RestoreError::Name(key.to_owned());
        match about.kind {
            // On its way when somebody else took over.
            _ if about.fence < self.fence => return Ok(()),
            Kind::Part => return Err(name()),
            Kind::Log if about.fence != self.fence => return Err(name()),
            Kind::Fence => {}
            Kind::Log => self.shipped_secs = about.wall_secs,
        }
        let is_another = about.fence > self.fence;
        self.fence = about.fence;
        if about.first > self.held.end().0 + 1 {
            // Behind a gap, which the next checkpoint would have bridged.
            return Ok(());
        }
        self.since = about.since;
        let used = self.held.used();
        self.together.retain(|(_, start)| *start > used);
        if is_another {
            // What is behind it is void.
            self.together.retain(|(last, _)| last.0 < about.last);
            self.together.push((Seq(about.last), Seq(about.start)));
        }
        if about.kind == Kind::Fence {
            if about.last < self.held.used().0 {
                return Err(name());
            }
            self.held.cut(Seq(about.last));
        }
        let end = self.held.end();
        for (record, _) in blob.records().zip(about.first..).filter(|(_, seq)| *seq > end.0) {
            self.held.push(record).map_err(|source| RestoreError::Record { key: key.to_owned(), source })?;
        }
        self.whole = self.whole.max(Seq(about.whole).min(self.held.end()));
        Ok(())
    }

    fn use_up_to(&mut self, end: Seq, tables: &dyn Tables) -> Result<(), RestoreError> {
        while let Some((seq, record)) = self.held.take(end) {
            apply(tables, seq, &record, "the log")?;
        }
        Ok(())
    }
}

/// Whether anything was shipped.
pub async fn has_any(store: &Store) -> Result<bool, StoreError> {
    for directory in [names::CHECKPOINTS, names::LOG] {
        if !store.list_blobs(directory).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes everything that was shipped, but for a fence of `line`, which goes on from `seq`: whoever has shipped so far finds that it is not this
/// process's any more.
pub async fn begin_anew(store: &Store, (line, seq): (Line, Seq), wall_secs: u64) -> Result<(), StoreError> {
    let mut fenced = None;
    while fenced.is_none() {
        let number = found::find(store).await?.next;
        let (kind, first, last, base) = (Kind::Fence, seq.0 + 1, seq.0, 0);
        let (since, whole, start, fence, there) = (last, last, last, number, number);
        let about = About { kind, first, last, since, whole, start, fence, base, there, line, wall_secs };
        fenced = found::fence(store, about).await?.map(|next| number..next);
    }
    remove_but(store, &fenced.unwrap_or_default().map(names::log).collect::<Vec<_>>()).await
}

/// Removes everything that was shipped: the volume is a new one.
pub async fn forget(store: &Store) -> Result<(), StoreError> {
    remove_but(store, &[]).await
}

/// Heads first: without its parts one is worse than none.
async fn remove_but(store: &Store, kept: &[String]) -> Result<(), StoreError> {
    for directory in [names::CHECKPOINTS, names::LOG, names::IN_USE] {
        let (heads, others): (Vec<_>, Vec<_>) =
            store.list_blobs(directory).await?.into_iter().partition(|entry| entry.key.ends_with("/head"));
        for entry in heads.into_iter().chain(others).filter(|entry| !kept.contains(&entry.key)) {
            store.delete_blob(&entry.key).await?;
        }
    }
    Ok(())
}

/// The blobs of these keys, in their order, some of them read ahead. One that is damaged is read once more: it may be so on its way only.
fn read(store: &Store, keys: Vec<String>) -> impl Stream<Item = (String, Result<Bytes, StoreError>)> {
    let store = store.clone();
    let get = move |key: String| {
        let store = store.clone();
        async move {
            let mut body = store.get_blob(&key).await;
            if body.as_ref().is_ok_and(|body| blob::decode(body).is_err()) {
                body = store.get_blob(&key).await;
            }
            (key, body)
        }
    };
    stream::iter(keys).map(get).buffered(READ_AHEAD)
}

fn decoded<'b>(body: &'b [u8], key: &str) -> Result<Blob<'b>, RestoreError> {
    blob::decode(body).map_err(|source| RestoreError::Bad { key: key.to_owned(), source })
}

fn apply(tables: &dyn Tables, seq: Seq, record: &[u8], key: &str) -> Result<(), RestoreError> {
    let record = Record::parse(record).map_err(|source| RestoreError::Record { key: key.to_owned(), source })?;
    tables.apply(seq, &record.batch());
    Ok(())
}

/// Not within a part: tables seal what is new since a number, and all of a part has one.
fn flush_if_large(tables: &dyn Tables) -> Result<(), RestoreError> {
    if tables.memtable_bytes() > MEMTABLE_BYTES {
        tables.rotate();
        tables.flush(tables.applied())?;
    }
    Ok(())
}
