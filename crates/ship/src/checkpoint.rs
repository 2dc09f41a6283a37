//! Making a checkpoint.

use crate::{
    blob::{self, About, Head, Kind},
    names,
};
use bytes::Bytes;
use sluice_base::Seq;
use sluice_meta::store::{Batch, MetaError, MetaStore, encode_batch};
use sluice_object::{PutMode, Store, StoreError};
use std::{ops::ControlFlow, sync::Arc};

/// Bytes of a part, about.
const PART_BYTES: usize = 4 << 20;
/// Behind every key of tables: their first bytes are letters.
const END: &[u8] = &[0xff];

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error("reading the metadata ended early")]
    Ended,
}

/// Puts everything that `tables` have below `meta/checkpoint/`, as of `begin`, which they have reached, or later. It may be used once the
/// store has the log from there, its blob number `log`, to its end.
pub(crate) async fn make(
    tables: Arc<MetaStore>,
    store: Store,
    (begin, log): (Seq, u64),
    run: u64,
    wall_secs: u64,
) -> Result<Head, CheckpointError> {
    let (mut from, mut parts, mut bytes) = (vec![1], 0, 0);
    loop {
        let (read, at) = (tables.clone(), from);
        let portion = sluice_run::task::spawn_blocking(move || portion(&read, &at)).await;
        let Portion { records, next } = portion.map_err(|_| CheckpointError::Ended)??;
        let about = About { kind: Kind::Part, first: begin.0, last: parts.into(), since: begin.0, wall_secs };
        let body = blob::encode(about, &records);
        bytes += body.len() as u64;
        store.put_blob(&names::part(begin, run, parts), body, PutMode::Overwrite).await?;
        parts += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    let end = tables.visible();
    Ok(Head { format_version: blob::FORMAT_VERSION, begin: begin.0, end: end.0, log, run, parts, bytes })
}

struct Portion {
    records: Vec<Vec<u8>>,
    /// The key behind the last one; `None` at the end.
    next: Option<Vec<u8>>,
}

/// Keys and values from `from` on, of one moment.
fn portion(tables: &MetaStore, from: &[u8]) -> Result<Portion, MetaError> {
    /// A record is parsed whole.
    const RECORD_BYTES: usize = 256 << 10;
    let (mut records, mut batch, mut batch_bytes, mut bytes, mut next) = (Vec::new(), Batch::default(), 0, 0, None);
    tables.snapshot().scan(from, END, &mut |key, value| {
        if bytes >= PART_BYTES {
            next = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        let len = key.len() + value.len() + 6;
        (bytes, batch_bytes) = (bytes + len, batch_bytes + len);
        batch.put(key, value);
        if batch_bytes >= RECORD_BYTES {
            records.push(encode_batch(&std::mem::take(&mut batch)));
            batch_bytes = 0;
        }
        ControlFlow::Continue(())
    })?;
    if !batch.is_empty() {
        records.push(encode_batch(&batch));
    }
    Ok(Portion { records, next })
}

/// What the store has.
pub(crate) struct Found {
    /// The newest checkpoint.
    pub(crate) head: Option<Head>,
    /// The blob of the log behind the last one.
    pub(crate) next: u64,
    /// The header of that last one; none without a log.
    pub(crate) last: Option<About>,
    /// Of the last blobs one does not begin where the one before ended: it was on its way when another process went on.
    pub(crate) is_broken: bool,
    /// Bytes of the log from the checkpoint on.
    pub(crate) log_bytes: u64,
}

impl Found {
    /// The last record that comes back; none without a checkpoint that leads to the end of the log.
    pub(crate) fn end(&self) -> Option<Seq> {
        let head = self.head.as_ref().filter(|_| !self.is_broken)?;
        match self.last {
            None => Some(head.begin()),
            Some(last) => (last.since <= head.begin).then_some(Seq(last.last.max(head.begin))),
        }
    }
}

/// Looks what the store has.
pub(crate) async fn find(store: &Store) -> Result<Found, StoreError> {
    let keys: Vec<String> = store.list_blobs(names::CHECKPOINTS).await?.into_iter().map(|entry| entry.key).collect();
    let head = match names::newest_head(keys.iter()) {
        Some(key) => json::<Head>(store, key).await?,
        None => None,
    };
    let log = store.list_blobs(names::LOG).await?;
    let numbers: Vec<u64> = log.iter().filter_map(|entry| names::log_number(&entry.key)).collect();
    let next = match &head {
        Some(head) => names::chain(&numbers, head.log),
        None => numbers.iter().max().map_or(0, |last| last + 1),
    };
    let first = head.as_ref().map_or(next, |head| head.log);
    let counts = |key: &str| names::log_number(key).is_some_and(|number| (first..next).contains(&number));
    let log_bytes = log.iter().filter(|entry| counts(&entry.key)).map(|entry| entry.bytes).sum();
    let (mut last, mut is_broken): (Option<About>, _) = (None, false);
    for number in first.max(next.saturating_sub(2 * BLOBS_MAX as u64))..next {
        let about = about(store, &names::log(number)).await?;
        is_broken |= last.is_some_and(|last| about.first > last.last + 1);
        last = Some(about);
    }
    Ok(Found { head, next, last, is_broken, log_bytes })
}

async fn about(store: &Store, key: &str) -> Result<About, StoreError> {
    let corrupt = |error: blob::BadBlob| StoreError::Corrupt { key: key.into(), detail: error.to_string() };
    match blob::decode(&store.get_blob(key).await?) {
        Ok(blob) => Ok(blob.about),
        Err(_) => blob::decode(&store.get_blob(key).await?).map(|blob| blob.about).map_err(corrupt),
    }
}

/// Blobs of the log that are under way at once: a sync that comes while one is need not wait for that before its own.
pub(crate) const BLOBS_MAX: usize = 4;

/// Ends the log of whoever has shipped so far, from `number` on; returns the number that comes next. `None` when that has just made one more.
///
/// The blob with that number is created: whoever is first has it. What comes behind it may be under way as well and even be there. It counts for
/// nothing without the one before, so it is replaced.
pub(crate) async fn fence(
    store: &Store,
    number: u64,
    last: Seq,
    since: Seq,
    wall_secs: u64,
) -> Result<Option<u64>, StoreError> {
    let about = About { kind: Kind::Fence, first: last.0 + 1, last: last.0, since: since.0, wall_secs };
    let body = blob::encode::<&[u8]>(about, &[]);
    match store.put_blob(&names::log(number), body.clone(), PutMode::Create).await {
        Err(StoreError::Exists { .. }) => return Ok(None),
        other => other?,
    }
    let next = number + BLOBS_MAX as u64;
    for number in number + 1..next {
        store.put_blob(&names::log(number), body.clone(), PutMode::Overwrite).await?;
    }
    Ok(Some(next))
}

/// Removes what `head` and the log behind it do not need.
pub(crate) async fn clean(store: &Store, head: &Head) -> Result<(), StoreError> {
    let kept = names::checkpoint(head.begin(), head.run);
    let parts = store.list_blobs(names::CHECKPOINTS).await?;
    let log = store.list_blobs(names::LOG).await?;
    let is_old = |key: &str| names::log_number(key).is_some_and(|number| number < head.log);
    // Heads go first: without its parts one is worse than none.
    let (heads, others): (Vec<_>, Vec<_>) = parts
        .iter()
        .filter(|entry| entry.key < kept)
        .chain(log.iter().filter(|entry| is_old(&entry.key)))
        .partition(|entry| entry.key.ends_with("/head"));
    for entry in heads.into_iter().chain(others) {
        store.delete_blob(&entry.key).await?;
    }
    Ok(())
}

/// A small JSON blob; `None` where there is none. What does not parse is an error of the store's.
pub(crate) async fn json<T: serde::de::DeserializeOwned>(store: &Store, key: &str) -> Result<Option<T>, StoreError> {
    let bytes = match store.get_blob(key).await {
        Err(StoreError::NotFound { .. }) => return Ok(None),
        other => other?,
    };
    let corrupt = |detail: String| StoreError::Corrupt { key: key.into(), detail };
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    match value["format_version"].as_u64() {
        Some(version) if version <= u64::from(blob::FORMAT_VERSION) => {}
        other => return Err(corrupt(format!("it has format version {other:?}: use a newer sluice"))),
    }
    serde_json::from_value(value).map(Some).map_err(|error| corrupt(error.to_string()))
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> Bytes {
    (serde_json::to_string_pretty(value).expect("plain data") + "\n").into_bytes().into()
}
