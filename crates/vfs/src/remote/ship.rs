//! The server's metadata in the store, for syncs of tier `object`.

use super::Remote;
use futures::future::{Either, select};
use sluice_meta::{Result, rpc::message::Ship};
use sluice_run::lock::Mutex;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::sync::{Semaphore, oneshot};

/// Questions under way at once: an answer lasts as long as a request to the store, and a peer may have 64 under way. Who comes meanwhile
/// shares the next one.
const QUESTIONS_MAX: usize = 8;
/// Time for an answer. Then it is asked again, however long the store is away: nothing less was asked for.
const ANSWER_TIME: Duration = Duration::from_secs(15);

/// Who waits, and those who ask.
pub(super) struct Shipped {
    waiting: Mutex<Vec<oneshot::Sender<std::result::Result<(), String>>>>,
    asking: Semaphore,
}

impl Default for Shipped {
    fn default() -> Self {
        Self { waiting: Mutex::default(), asking: Semaphore::new(QUESTIONS_MAX) }
    }
}

impl Remote {
    /// Resolves when the store has all that the server had answered when this was called, or with the reason why it will not.
    pub async fn shipped(self: Arc<Self>) -> std::result::Result<(), String> {
        loop {
            let (tell, mut told) = oneshot::channel();
            self.shipped.waiting.lock().push(tell);
            let outcome = match select(&mut told, pin!(self.shipped.asking.acquire())).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right((turn, _)) => {
                    let _turn = turn.map_err(|error| error.to_string())?;
                    // This one is among them, unless somebody took it along meanwhile.
                    let all = std::mem::take(&mut *self.shipped.waiting.lock());
                    if !all.is_empty() {
                        let outcome = self.ask_shipped().await.map_err(|error| error.to_string());
                        all.into_iter().for_each(|waiting| drop(waiting.send(outcome.clone())));
                    }
                    told.await
                }
            };
            // An error where whoever asked for this one as well has given up.
            if let Ok(outcome) = outcome {
                return outcome;
            }
        }
    }

    async fn ask_shipped(self: &Arc<Self>) -> Result<()> {
        while self.ask_later(&Ship {}, ANSWER_TIME).await?.is_none() {}
        Ok(())
    }
}
