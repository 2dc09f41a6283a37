//! The way back: from the store into empty tables.

use crate::{
    blob::{self, BadBlob, Blob, Kind},
    checkpoint, names,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use sluice_base::Seq;
use sluice_meta::store::{EngineError, Record, RecordError, Tables};
use sluice_object::{Store, StoreError};

/// Blobs that are read ahead.
const READ_AHEAD: usize = 8;
/// The tables are written when they hold so much in memory.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last change of it.
    pub seq: Seq,
    /// When that was shipped: seconds since 1970.
    pub shipped_secs: u64,
    /// Bytes that were read.
    pub bytes: u64,
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
/// Whoever has shipped so far finds that it does not any more. `wall_secs` is now.
pub async fn restore(
    store: &Store,
    tables: &dyn Tables,
    wall_secs: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<Restored, RestoreError> {
    let mut found = checkpoint::find(store).await?;
    let Some(head) = found.head.clone() else { return Err(RestoreError::Nothing(store.place().to_owned())) };
    let (all, mut bytes, mut shipped_secs) = (head.bytes + found.log_bytes, 0, 0);
    let parts = (0..head.parts).map(|number| names::part(head.begin(), head.run, number)).collect();
    let mut parts = std::pin::pin!(read(store, parts).enumerate());
    while let Some((number, (key, body))) = parts.next().await {
        let body = body.map_err(|error| gone(error, store))?;
        let blob = decoded(&body, &key)?;
        if (blob.about.kind, blob.about.first, blob.about.last) != (Kind::Part, head.begin, number as u64) {
            return Err(RestoreError::Name(key));
        }
        shipped_secs = blob.about.wall_secs;
        // No key is in two parts; tables write what is new since the last number.
        let seq = Seq(head.begin.saturating_sub(u64::from(head.parts) - 1 - number as u64).max(1));
        for record in blob.records {
            apply(tables, seq, record, &key)?;
        }
        flush_if_large(tables)?;
        bytes += body.len() as u64;
        progress(bytes, all);
    }
    let (mut applied, mut since, mut next) = (head.begin, head.begin, head.log);
    loop {
        let mut blobs = std::pin::pin!(read(store, (next..found.next).map(names::log).collect()));
        while let Some((key, body)) = blobs.next().await {
            let body = body.map_err(|error| gone(error, store))?;
            let Blob { about, records } = decoded(&body, &key)?;
            if about.kind == Kind::Part {
                return Err(RestoreError::Name(key));
            }
            since = about.since;
            if about.first > applied + 1 {
                // Behind a gap, which the next checkpoint would have bridged.
                break;
            }
            for (record, seq) in records.into_iter().zip(about.first..).filter(|(_, seq)| *seq > applied) {
                apply(tables, Seq(seq), record, &key)?;
            }
            flush_if_large(tables)?;
            if about.kind == Kind::Log {
                shipped_secs = about.wall_secs;
            }
            applied = applied.max(about.last);
            bytes += body.len() as u64;
            progress(bytes, all.max(bytes));
        }
        if applied < head.end {
            return Err(RestoreError::Short { place: store.place().to_owned(), end: applied, needed: head.end });
        }
        // Only now that there is somebody to go on with it.
        next = found.next;
        let is_fenced = checkpoint::fence(store, next, Seq(applied), Seq(since), wall_secs).await?.is_some();
        found = checkpoint::find(store).await?;
        // With a newer checkpoint the number may have been free because it was removed.
        if found.head.as_ref() != Some(&head) {
            return Err(RestoreError::Moved(store.place().to_owned()));
        }
        if is_fenced {
            break;
        }
    }
    tables.rotate();
    tables.flush(tables.applied())?;
    Ok(Restored { seq: Seq(applied), shipped_secs, bytes })
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

/// Removes everything that was shipped: the volume is a new one.
pub async fn forget(store: &Store) -> Result<(), StoreError> {
    for directory in [names::CHECKPOINTS, names::LOG] {
        let (heads, others): (Vec<_>, Vec<_>) =
            store.list_blobs(directory).await?.into_iter().partition(|entry| entry.key.ends_with("/head"));
        for entry in heads.into_iter().chain(others) {
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
