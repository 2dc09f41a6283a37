//! Whether the store answers: asked only when somebody wants to know, and not more often than it can change.

use crate::{config::VolumeConfig, volume};
use sluice_base::Clock;
use sluice_object::{Store, VOLUME_MARKER};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::timeout};

/// Time for the store to answer.
const PROBE_TIME: Duration = Duration::from_secs(3);
/// An answer counts for so long.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Asks the store for the volume's marker.
pub struct Probe {
    store: Store,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<(Duration, Option<String>)>>,
}

impl Probe {
    /// With a connection of its own, so that it waits behind no upload.
    pub fn new(config: &VolumeConfig, dir: &Path, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        Ok(Self { store: volume::open_store(config, dir, true)?, clock, last: Mutex::default() })
    }

    /// Why the store is of no use, if it is not. All who ask at once wait for one request.
    pub async fn trouble(&self) -> Option<String> {
        let mut last = self.last.lock().await;
        if let Some((at, trouble)) = &*last
            && self.clock.monotonic().saturating_sub(*at) < ANSWER_TIME
        {
            return trouble.clone();
        }
        let trouble = match timeout(PROBE_TIME, self.store.get_blob(VOLUME_MARKER)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("the store {} fails: {error}", self.store.place())),
            Err(_) => Some(format!("the store {} does not answer within {PROBE_TIME:?}", self.store.place())),
        };
        let trouble = trouble.map(|text| text.replace(char::is_control, " "));
        *last = Some((self.clock.monotonic(), trouble.clone()));
        trouble
    }
}
