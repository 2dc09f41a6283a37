//! Making a checkpoint.

use crate::{
    blob::{self, Head, Kind},
    names::{self, LogName},
};
use bytes::Bytes;
use sluice_base::Seq;
use sluice_meta::store::{Batch, MetaError, MetaStore, encode_batch};
use sluice_object::{PutMode, Store, StoreError};
use sluice_run::collections::HashSet;
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
/// store has the log from there to its end.
pub(crate) async fn make(
    tables: Arc<MetaStore>,
    store: Store,
    (begin, run): (Seq, u64),
    wall_secs: u64,
) -> Result<Head, CheckpointError> {
    let (mut from, mut parts, mut bytes) = (vec![1], 0, 0);
    loop {
        let (read, at) = (tables.clone(), from);
        let portion = sluice_run::task::spawn_blocking(move || portion(&read, &at)).await;
        let Portion { records, next } = portion.map_err(|_| CheckpointError::Ended)??;
        let body = blob::encode(Kind::Part, begin.0, parts.into(), wall_secs, &records);
        bytes += body.len() as u64;
        store.put_blob(&names::part(begin, run, parts), body, PutMode::Overwrite).await?;
        parts += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    let end = tables.visible();
    Ok(Head { format_version: blob::FORMAT_VERSION, begin: begin.0, end: end.0, run, parts, bytes })
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

/// Removes what `head` and the log behind it do not need.
pub(crate) async fn clean(store: &Store, head: &Head, runs: &[u64]) -> Result<(), StoreError> {
    let kept = names::checkpoint(head.begin(), head.run) + "/";
    for entry in store.list_blobs(names::CHECKPOINTS).await? {
        if !entry.key.starts_with(&kept) {
            store.delete_blob(&entry.key).await?;
        }
    }
    for key in log(store, head.begin(), runs).await?.others {
        store.delete_blob(&key).await?;
    }
    Ok(())
}

/// The log in the store.
pub(crate) struct ShippedLog {
    /// What leads on from a checkpoint, in its order.
    pub(crate) chain: Vec<LogName>,
    /// The last record of it.
    pub(crate) end: Seq,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Keys of what does not lead on.
    pub(crate) others: Vec<String>,
}

/// What the store has of the log, from `begin` on.
pub(crate) async fn log(store: &Store, begin: Seq, runs: &[u64]) -> Result<ShippedLog, StoreError> {
    let listed = store.list_blobs(names::LOG).await?;
    let found: Vec<_> = listed.iter().filter_map(|entry| LogName::parse(&entry.key)).collect();
    let (chain, end) = names::chain(&found, begin, runs);
    let keys: HashSet<String> = chain.iter().map(LogName::key).collect();
    let (needed, others): (Vec<_>, Vec<_>) = listed.into_iter().partition(|entry| keys.contains(&entry.key));
    let bytes = needed.iter().map(|entry| entry.bytes).sum();
    Ok(ShippedLog { chain, end, bytes, others: others.into_iter().map(|entry| entry.key).collect() })
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
