//! The way back: from the store into empty tables.

use crate::{
    blob::{self, BadBlob, Blob, Head, Kind, Owner},
    checkpoint,
    names::{self, LogName},
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
    /// The store does not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tables do not take it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Reads the checkpoint and the log behind it into `tables`, which are empty; `progress` hears of bytes read and, once known, of all. `run`
/// is who ships from now on: whoever did so before finds that it is not alone.
pub async fn restore(
    store: &Store,
    tables: &dyn Tables,
    run: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<Restored, RestoreError> {
    let nothing = || RestoreError::Nothing(store.place().to_owned());
    let head = checkpoint::json::<Head>(store, names::HEAD).await?.ok_or_else(nothing)?;
    let owner = checkpoint::json::<Owner>(store, names::OWNER).await?.unwrap_or_default().with(run);
    let body = checkpoint::to_json(&owner);
    store.put_blob(names::OWNER, body, sluice_object::PutMode::Overwrite).await?;
    let log = checkpoint::log(store, head.begin(), &owner.runs).await?;
    if log.end.0 < head.end {
        let (place, end, needed) = (store.place().to_owned(), log.end.0, head.end);
        return Err(RestoreError::Short { place, end, needed });
    }
    let (all, mut bytes, mut shipped_secs) = (head.bytes + log.bytes, 0, 0);
    let parts = (0..head.parts).map(|number| names::part(head.begin(), head.run, number)).collect();
    let mut parts = std::pin::pin!(read(store, parts).enumerate());
    while let Some((number, (key, body))) = parts.next().await {
        let body = body?;
        let blob = decoded(&body, &key)?;
        if (blob.kind, blob.first, blob.last) != (Kind::Part, head.begin, number as u64) {
            return Err(RestoreError::Name(key));
        }
        shipped_secs = blob.wall_secs;
        // No key is in two parts; tables write what is new since the last number.
        let seq = Seq(head.begin.saturating_sub(u64::from(head.parts) - 1 - number as u64).max(1));
        for record in blob.records {
            apply(tables, seq, record, &key)?;
        }
        bytes += body.len() as u64;
        progress(bytes, all);
    }
    let keys = log.chain.iter().map(LogName::key).collect();
    let mut applied = head.begin();
    let mut blobs = std::pin::pin!(read(store, keys).zip(stream::iter(&log.chain)));
    while let Some(((key, body), name)) = blobs.next().await {
        let body = body?;
        let blob = decoded(&body, &key)?;
        if (blob.kind, blob.first, blob.last) != (Kind::Log, name.first.0, name.last.0) {
            return Err(RestoreError::Name(key));
        }
        shipped_secs = blob.wall_secs;
        for (record, seq) in blob.records.into_iter().zip(blob.first..).filter(|(_, seq)| *seq > applied.0) {
            apply(tables, Seq(seq), record, &key)?;
        }
        applied = name.last;
        bytes += body.len() as u64;
        progress(bytes, all);
    }
    tables.rotate();
    tables.flush(tables.applied())?;
    Ok(Restored { seq: applied, shipped_secs, bytes })
}

/// Removes everything that was shipped: the volume is a new one.
pub async fn forget(store: &Store) -> Result<(), StoreError> {
    // Without it the rest means nothing.
    store.delete_blob(names::HEAD).await?;
    for directory in [names::LOG, names::CHECKPOINTS] {
        for entry in store.list_blobs(directory).await? {
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
    if tables.memtable_bytes() > MEMTABLE_BYTES {
        tables.rotate();
        tables.flush(tables.applied())?;
    }
    Ok(())
}
