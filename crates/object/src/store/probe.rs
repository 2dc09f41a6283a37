//! Asking a store for everything that a volume needs, before one is made there.

use super::Store;
use crate::{PutMode, StoreError};
use bytes::Bytes;
use sluice_base::ObjectId;

/// The store cannot hold a volume as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("{place}: cannot {step}: {source}")]
pub struct ProbeError {
    place: String,
    step: &'static str,
    /// The store's answer.
    pub source: StoreError,
}

const PROBES: &str = "sluice-probe";

impl Store {
    /// Writes, reads, lists and deletes a small blob, and sees that a second writer of it is refused. The error names the step
    /// and, where the store says so, which of endpoint, bucket, keys, region and permission is wrong.
    pub async fn probe(&self) -> Result<(), ProbeError> {
        let at = |step| move |source| ProbeError { place: self.0.place.clone(), step, source };
        let id = ObjectId::random(&*self.0.entropy);
        let (name, body) = (format!("{PROBES}/{id}"), Bytes::from(id.to_string()));
        self.put_blob(&name, body.clone(), PutMode::Create).await.map_err(at("write"))?;
        let used = self.probe_stored(&name, &body).await;
        let deleted = self.delete_blob(&name).await.map_err(at("delete"));
        used.and(deleted)?;
        match self.get_blob(&name).await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(at("see that a blob was deleted")(error)),
            Ok(_) => {
                Err(at("delete")(StoreError::invalid("a deleted blob can still be read: the store is not consistent")))
            }
        }
    }

    async fn probe_stored(&self, name: &str, body: &Bytes) -> Result<(), ProbeError> {
        let at = |step| move |source| ProbeError { place: self.0.place.clone(), step, source };
        if self.get_blob(name).await.map_err(at("read"))? != body {
            let detail = "other bytes came back than were written".into();
            return Err(at("read")(StoreError::Corrupt { key: name.into(), detail }));
        }
        let listed = self.list_blobs(PROBES).await.map_err(at("list"))?;
        if !listed.iter().any(|entry| entry.key == name && entry.bytes == body.len() as u64) {
            return Err(at("list")(StoreError::invalid(
                "a blob just written is not listed: the store is not consistent",
            )));
        }
        match self.put_blob(name, Bytes::from_static(b"second"), PutMode::Create).await {
            Err(StoreError::Exists { .. }) => Ok(()),
            Err(error) => Err(at("write only if absent")(error)),
            Ok(()) => {
                let hint = "the store ignores If-None-Match; add conditional_put=false, and never let two hosts write one volume";
                Err(at("write only if absent")(StoreError::invalid(hint)))
            }
        }
    }
}
