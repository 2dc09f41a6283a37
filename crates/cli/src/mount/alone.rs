//! The end of a mount whose server does not answer.

use crate::{control::Ending, output::note};
use sluice_base::Clock;
use sluice_fuse::Session;
use sluice_vfs::remote::Remote;
use std::{process::exit, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// How long a mount that is to end waits for its server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for one answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Between two questions.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// Time for the mount point to be taken away, and for who asked for the end to be told.
const LAST_TIME: Duration = Duration::from_secs(1);

/// What ends without its server.
pub struct Alone {
    pub metadata: Arc<Remote>,
    pub mount: Arc<Session>,
    pub ending: Arc<Ending>,
    pub clock: Arc<dyn Clock>,
    /// The server's address.
    pub server: String,
    /// Where the journal is, for people.
    pub journal: String,
}

impl Alone {
    /// Ends the process, with the reason, when its end is wanted and nothing more can come of waiting. That loses nothing acked: it is
    /// as if the process were killed.
    pub async fn watch(self) {
        let mut wanted = self.ending.wanted.subscribe();
        let mut heard = self.clock.monotonic();
        loop {
            if !*wanted.borrow_and_update() {
                if wanted.changed().await.is_err() {
                    return;
                }
                heard = self.clock.monotonic();
                continue;
            }
            if self.metadata.is_answered(ANSWER_TIME).await {
                heard = self.clock.monotonic();
            }
            let why = if self.metadata.is_over() {
                format!("{} has ended the session of this mount", self.server)
            } else if self.clock.monotonic() - heard >= PATIENCE {
                format!("{} has not answered for {} s", self.server, PATIENCE.as_secs())
            } else {
                sleep(ASK_INTERVAL).await;
                continue;
            };
            self.end(&why).await;
        }
    }

    async fn end(&self, why: &str) {
        let text = format!(
            "{why}: the mount ends without it. What was acked is in {}; mount again with the same --journal to publish it, or say \
             `{}`",
            self.journal,
            crate::recover::command(&self.server, std::path::Path::new(&self.journal))
        );
        note!("{text}");
        self.ending.given_up.send_replace(Some(text));
        let mount = self.mount.clone();
        let _ = timeout(LAST_TIME, tokio::task::spawn_blocking(move || drop(mount.unmount(true)))).await;
        sleep(LAST_TIME).await;
        exit(1);
    }
}
