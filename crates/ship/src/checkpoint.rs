//! Making a checkpoint.

use crate::{
    blob::{self, About, Kind},
    head::Head,
    names,
};
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

/// Puts everything that `tables` have below `meta/checkpoint/`, as of `begun.begin`, which they have reached, or later. The head that it makes of
/// `begun` may be used once the store has the log from there, its blob number `log`, to its end.
pub(crate) async fn make(
    tables: Arc<MetaStore>,
    store: Store,
    begun: Head,
    wall_secs: u64,
) -> Result<Head, CheckpointError> {
    let Head { begin, log, fence, line, run, .. } = begun;
    let (mut from, mut parts, mut bytes) = (vec![1], 0, 0);
    loop {
        let (read, at) = (tables.clone(), from);
        let portion = sluice_run::task::spawn_blocking(move || portion(&read, &at)).await;
        let Portion { records, next } = portion.map_err(|_| CheckpointError::Ended)??;
        let (since, whole, start) = (begin, begin, begin);
        let (kind, first, last, base, there) = (Kind::Part, begin, parts.into(), log, log);
        let about = About { kind, first, last, since, whole, start, fence, base, there, line, wall_secs };
        let body = blob::encode(about, &records);
        bytes += body.len() as u64;
        store.put_blob(&names::part(log, run, parts), body, PutMode::Overwrite).await?;
        parts += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    let end = tables.visible().0;
    Ok(Head { end, parts, bytes, ..begun })
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
