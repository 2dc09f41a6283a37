//! A node's dealings with the volume's server, and everybody's way to the list.

use crate::{
    EXPIRY, Group, HEARTBEAT_INTERVAL, Members,
    message::{self, Heartbeat, Join, Numbers},
};
use sluice_base::Clock;
use sluice_net::{CallError, Client};
use sluice_run::{
    Bug,
    lock::Mutex,
    time::{sleep, timeout},
};
use std::{sync::Arc, time::Duration};

/// Time for one call: the next would be due then.
const CALL_TIME: Duration = HEARTBEAT_INTERVAL;
/// Between tries to join.
const JOIN_PAUSE: Duration = Duration::from_millis(500);

/// Why a node is not a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The server says no.
    #[error("{text}")]
    Refused {
        /// `message::FAILED_*`.
        code: u32,
        /// The reason.
        text: String,
    },
    /// The server does not answer.
    #[error("the volume's server does not answer: {0}")]
    Away(String),
}

/// A node as the server is to know it.
pub struct Membership {
    /// The connection to the server.
    pub client: Arc<Client>,
    /// Who the node is.
    pub join: Join,
    /// What it knows of the others.
    pub group: Arc<Group>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// When the server last said yes.
    heard: Mutex<Option<Duration>>,
}

impl Membership {
    /// Of a node that has not joined yet.
    pub fn new(client: Arc<Client>, join: Join, group: Arc<Group>, clock: Arc<dyn Clock>) -> Self {
        Self { client, join, group, clock, heard: Mutex::default() }
    }

    /// How long the server has not confirmed that this node is a member, once that is longer than it takes to be put out.
    pub fn silence(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let silent = self.heard.lock().map_or(now, |heard| now.saturating_sub(heard));
        (silent >= EXPIRY).then_some(silent)
    }

    /// Joins for the first time. Somebody who has the name may have died a moment ago: the server is asked for as long as it
    /// takes to know.
    pub async fn join_first(&self) -> Result<(), JoinError> {
        let until = self.clock.monotonic() + EXPIRY + HEARTBEAT_INTERVAL;
        loop {
            match self.join().await {
                Err(error) if self.clock.monotonic() >= until => return Err(error),
                Err(JoinError::Refused { code, text }) if code != message::FAILED_NAME => {
                    return Err(JoinError::Refused { code, text });
                }
                Err(error) => {
                    tracing::info!(%error, "not in the group yet");
                    sleep(JOIN_PAUSE).await;
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Says every two seconds that the node is there, for as long as it is polled; joins again where the server has forgotten
    /// it. `numbers` must not wait for a disk.
    pub async fn keep(&self, numbers: impl Fn() -> Numbers) {
        loop {
            sleep(HEARTBEAT_INTERVAL).await;
            let beat = Heartbeat { name: self.join.name.clone(), instance: self.join.instance, numbers: numbers() };
            match call(&self.client, message::HEARTBEAT, beat.encode()).await {
                Ok(epoch) => self.saw(&epoch),
                Err(CallError::Failed { .. }) if Bug::NodeDoesNotJoinAgain.is_planted() => {}
                Err(CallError::Failed { code: message::FAILED_UNKNOWN, .. }) => {
                    if let Err(error) = self.join().await {
                        tracing::warn!(%error, "not in the group");
                    }
                }
                Err(error) => tracing::warn!(%error, "the volume's server was not told that this node is there"),
            }
        }
    }

    /// Is a member no longer.
    pub async fn leave(&self) {
        let body = message::encode_leave(&self.join.name, self.join.instance);
        if let Err(error) = call(&self.client, message::LEAVE, body).await {
            tracing::debug!(%error, "the server was not told that this node goes");
        }
    }

    async fn join(&self) -> Result<(), JoinError> {
        match call(&self.client, message::JOIN, self.join.encode()).await {
            Ok(epoch) => {
                self.saw(&epoch);
                Ok(())
            }
            Err(CallError::Failed { code, text }) => Err(JoinError::Refused { code, text }),
            Err(error) => Err(JoinError::Away(error.to_string())),
        }
    }

    fn saw(&self, epoch: &[u8]) {
        *self.heard.lock() = Some(self.clock.monotonic());
        if let Some(epoch) = message::decode_epoch(epoch) {
            self.group.saw_epoch(epoch);
        }
    }
}

/// Keeps the group's list, for as long as it is polled: asks the server every two seconds, and when somebody knows another.
pub async fn follow(client: &Client, group: &Group) {
    loop {
        refresh(client, group).await;
        let _ = timeout(HEARTBEAT_INTERVAL, group.stale()).await;
    }
}

/// Asks the server for the list once.
pub async fn refresh(client: &Client, group: &Group) {
    match fetch_members(client, group.members().epoch()).await {
        Ok(Some(_)) if Bug::MembersNotFollowed.is_planted() && group.members().epoch() != 0 => {}
        Ok(Some(members)) => group.update(members),
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "the list of members was not read"),
    }
}

/// The list, unless it is the known one.
async fn fetch_members(client: &Client, known: u32) -> Result<Option<Members>, String> {
    let answer =
        call(client, message::MEMBERS, message::encode_epoch(known)).await.map_err(|error| error.to_string())?;
    if answer.is_empty() {
        return Ok(None);
    }
    Members::decode(&answer).map(Some).map_err(|error| error.to_string())
}

async fn call(client: &Client, method: u16, body: Vec<u8>) -> Result<Vec<u8>, CallError> {
    let reply = client.call(method, body, CALL_TIME).await?;
    reply.body.checked().map(|bytes| bytes.to_vec()).map_err(|error| CallError::NotSent(error.to_string()))
}
