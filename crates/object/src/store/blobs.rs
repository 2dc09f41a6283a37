//! Blobs: named, small, read and written whole. The volume marker and the shipped metadata are blobs.
//!
//! A blob has no checksum here: what is in it checks itself.

use super::{Inner, OBJECTS, Store, retry::Call};
use crate::{
    PutMode, StoreError,
    backend::{ListEntry, RequestKind, check_key},
};
use bytes::Bytes;
use futures::StreamExt;
use sluice_run::time::timeout;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The blob that marks a prefix as a volume's.
pub const VOLUME_MARKER: &str = "sluice-volume.json";

impl Store {
    /// Stores a blob. With [`PutMode::Create`], `Exists` when the name was taken before this call, whatever by.
    pub async fn put_blob(&self, name: &str, body: Bytes, mode: PutMode) -> Result<(), StoreError> {
        check_name(name)?;
        let tries = AtomicU32::new(0);
        let call = Call { kind: RequestKind::Put, key: name, bytes: body.len() as u64 };
        let put = |before| {
            tries.store(before, Relaxed);
            self.0.put(name, vec![body.clone()], mode, before)
        };
        match self.0.request(call, put).await {
            // An earlier try may have been done with its answer lost. Then the bytes are ours.
            Err(StoreError::Exists { .. }) if tries.load(Relaxed) > 0 && self.is_stored(name, &body).await? => {}
            done => done?,
        }
        self.0.counters.sent_bytes.fetch_add(body.len() as u64, Relaxed);
        Ok(())
    }

    /// Looks twice: a blob has no checksum by which to tell damage on the way from other bytes.
    async fn is_stored(&self, name: &str, body: &Bytes) -> Result<bool, StoreError> {
        Ok(self.get_blob(name).await? == *body || self.get_blob(name).await? == *body)
    }

    /// Reads a blob.
    pub async fn get_blob(&self, name: &str) -> Result<Bytes, StoreError> {
        check_name(name)?;
        // Its length is not known; a try gets the time of this many bytes.
        let call = Call { kind: RequestKind::Get, key: name, bytes: 16 << 20 };
        let found = self.0.request(call, |_| self.0.backend.get(name)).await?;
        self.0.counters.received_bytes.fetch_add(found.len() as u64, Relaxed);
        Ok(found)
    }

    /// Removes a blob; what is not there counts as removed.
    pub async fn delete_blob(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        self.0.delete(name).await
    }

    /// Every blob below the directory `directory`, in the order of names.
    pub async fn list_blobs(&self, directory: &str) -> Result<Vec<ListEntry>, StoreError> {
        check_name(directory)?;
        let mut found = self.0.list(directory).await?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }
}

fn check_name(name: &str) -> Result<(), StoreError> {
    check_key(name)?;
    if name == OBJECTS || name.starts_with("objects/") {
        return Err(StoreError::invalid(format!("{name}: objects/ is for objects")));
    }
    Ok(())
}

impl Inner {
    pub(super) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let call = Call { kind: RequestKind::Delete, key, bytes: 0 };
        self.request(call, |_| self.backend.delete(key)).await
    }

    /// A whole directory in memory: an error in the middle begins it anew, so nothing is listed twice.
    pub(super) async fn list(&self, directory: &str) -> Result<Vec<ListEntry>, StoreError> {
        // A listing has many answers: each may take an attempt's time, all together that of this many bytes.
        let call = Call { kind: RequestKind::List, key: directory, bytes: 1 << 30 };
        let idle = self.options.attempt_timeout;
        let page = |_| async move {
            let (mut entries, mut found) = (self.backend.list(directory), Vec::new());
            loop {
                match timeout(idle, entries.next()).await {
                    Ok(Some(entry)) => found.push(entry?),
                    Ok(None) => return Ok(found),
                    Err(_) => return Err(StoreError::unavailable(format!("{directory}: the listing stopped"))),
                }
            }
        };
        self.request(call, page).await
    }
}
