//! The one loop around every request.

use super::Inner;
use crate::{PutMode, StoreError, backend::RequestKind};
use bytes::Bytes;
use sluice_run::time::{sleep, timeout_at};
use std::time::Duration;
use tokio::sync::SemaphorePermit;

/// So many tries of one request without an answer are worth a word.
const WARN_TRIES: u32 = 3;

/// One call: what it asks and how long it may take.
pub(super) struct Call<'a> {
    pub kind: RequestKind,
    pub key: &'a str,
    /// Payload either way, in bytes; sets the time-outs.
    pub bytes: u64,
}

impl Inner {
    /// Runs `attempt`, which gets the number of tries before it, until it succeeds, fails for good, or attempts or time run
    /// out. Slots are held while a request is on its way, not between tries.
    pub(super) async fn request<T, F>(&self, call: Call<'_>, attempt: impl Fn(u32) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let options = &self.options;
        let transfer = options.transfer_time(call.bytes);
        let mut permit = self.slot(call.kind).await;
        // From here: waiting for a first slot says nothing about the store.
        let deadline = sluice_run::time::now() + options.deadline + transfer;
        let mut tries = 0;
        loop {
            let until = deadline.min(sluice_run::time::now() + options.attempt_timeout + transfer);
            let done = {
                let in_flight = self.counters.begin(call.kind, tries > 0);
                let done = match timeout_at(until, attempt(tries)).await {
                    Ok(done) => done,
                    Err(_) => Err(StoreError::unavailable(format!("{}: no answer in time", call.key))),
                };
                in_flight.note(&done);
                done
            };
            drop(permit.take());
            let Err(StoreError::Unavailable { detail, cause }) = done else { return done };
            tries += 1;
            if tries == WARN_TRIES {
                tracing::warn!(key = call.key, %detail, "the store does not answer; the request is repeated");
            }
            let wait = self.jitter(options.backoff(tries));
            let give_up = if tries >= options.attempts_max {
                Some("the last one")
            } else if sluice_run::time::now() + wait >= deadline {
                Some("out of time")
            } else {
                None
            };
            if let Some(why) = give_up {
                let detail = if tries > 1 { format!("{detail} (try {tries}, {why})") } else { detail };
                return Err(StoreError::Unavailable { detail, cause });
            }
            tracing::debug!(kind = ?call.kind, key = call.key, tries, ?wait, %detail, "trying again");
            sleep(wait).await;
            permit = self.slot(call.kind).await;
        }
    }

    /// One try of a put. A repeated creation looks first: the answer of an earlier try may be lost, and a server that refuses a
    /// creation before it has read the body may reset the connection, so that its refusal is never seen.
    pub(super) async fn put(&self, key: &str, body: Vec<Bytes>, mode: PutMode, tries: u32) -> Result<(), StoreError> {
        if mode == PutMode::Create && tries > 0 {
            let in_flight = self.counters.begin(RequestKind::Head, false);
            let found = self.backend.head(key).await;
            in_flight.note(&found);
            match found {
                Ok(_) => return Err(StoreError::Exists { key: key.into() }),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.backend.put(key, body, mode).await
    }

    async fn slot(&self, kind: RequestKind) -> Option<SemaphorePermit<'_>> {
        let slots = match kind {
            RequestKind::Get | RequestKind::Head => &self.gets,
            RequestKind::Put | RequestKind::Delete => &self.puts,
            RequestKind::List => return None,
        };
        Some(slots.acquire().await.expect("the semaphore is never closed"))
    }

    /// Full jitter: <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>
    fn jitter(&self, max: Duration) -> Duration {
        let mut bytes = [0; 4];
        self.entropy.fill(&mut bytes);
        max.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
    }
}
