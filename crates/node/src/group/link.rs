//! The way to one node: its lanes, and how it has fared lately.

use super::{GroupOptions, bytes_of};
use crate::message::{self, BadAnswer, CHECK_SEGMENTS, CheckSegments, READ_SEGMENTS, ReadSegments, Segment, Set};
use bytes::Bytes;
use sluice_base::{Clock, Entropy};
use sluice_net::{CallError, Client, ClientOptions, LaneState, NoCallbacks};
use sluice_run::{lock::Mutex, time::timeout};
use sluice_wire::LaneClass;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A node that failed is not asked for this long, doubled with each failure in a row...
const AVOID_BASE: Duration = Duration::from_secs(1);
/// ... up to this. The server drops one that is gone within 6 s.
const AVOID_MAX: Duration = Duration::from_secs(16);
/// A node that others overtook so often in a row, without an answer of its own, counts as failed.
const OVERTAKEN_MAX: u32 = 3;
/// Time for a node to check what it sent.
const CHECK_TIME: Duration = Duration::from_secs(5);
/// Time to connect, for a question that nobody else can answer.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Why a node did not give segments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LinkError {
    #[error("it failed lately")]
    Avoided,
    #[error("not connected: {0}")]
    NotConnected(String),
    #[error("the store does not have the object")]
    Gone,
    #[error(transparent)]
    Call(CallError),
    #[error(transparent)]
    BadAnswer(BadAnswer),
}

impl LinkError {
    /// Whether the node itself is at fault, so that it is better left alone for a while. To find that it is not connected costs
    /// nothing, and bytes that fail their check are looked into first.
    fn is_trouble(&self) -> bool {
        match self {
            Self::Avoided | Self::NotConnected(_) | Self::Gone | Self::Call(CallError::Failed { .. }) => false,
            Self::BadAnswer(bad) => !matches!(bad, BadAnswer::Corrupt(_)),
            Self::Call(_) => true,
        }
    }
}

pub(super) struct Link {
    pub(super) client: Client,
    pub(super) address: SocketAddr,
    pub(super) hits: AtomicU64,
    pub(super) hit_bytes: AtomicU64,
    clock: Arc<dyn Clock>,
    health: Mutex<Health>,
    /// It has been asked to check its disk.
    checks: AtomicBool,
}

/// Failures in a row, and until when they keep us away.
#[derive(Default)]
struct Health {
    failures: u32,
    overtaken: u32,
    avoided_until: Duration,
}

impl Health {
    fn note(&mut self, now: Duration, fared_well: bool) {
        if fared_well {
            *self = Self::default();
        } else {
            self.failures += 1;
            self.overtaken = 0;
            self.avoided_until = now + AVOID_BASE.saturating_mul(1 << self.failures.min(10)).min(AVOID_MAX);
        }
    }

    fn note_overtaken(&mut self, now: Duration) {
        self.overtaken += 1;
        if self.overtaken >= OVERTAKEN_MAX {
            self.note(now, false);
        }
    }
}

impl Link {
    /// Begins to connect.
    pub(super) fn new(
        address: SocketAddr,
        group: &GroupOptions,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let (pages, connection) = (Some(group.pages.clone()), group.connection.clone());
        let options = ClientOptions { lanes_bulk: 1, pages, connection, ..ClientOptions::default() };
        let client =
            Client::new(vec![address], group.hello.clone(), Arc::new(NoCallbacks), options, clock.clone(), entropy);
        let (hits, hit_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { client, address, hits, hit_bytes, clock, health: Mutex::default(), checks: AtomicBool::new(false) }
    }

    /// Segments, each one checked, and the epoch that the node knows. `begun` is set when the first of a large answer comes.
    pub(super) async fn read(
        self: &Arc<Self>,
        ask: &ReadSegments,
        within: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Result<(Vec<Segment>, u32), LinkError> {
        if self.clock.monotonic() < self.health.lock().avoided_until {
            return Err(LinkError::Avoided);
        }
        let outcome = self.try_read(ask, within, begun).await;
        let fared_well = !outcome.as_ref().is_err_and(LinkError::is_trouble);
        self.health.lock().note(self.clock.monotonic(), fared_well);
        if let Err(error @ LinkError::BadAnswer(_)) = &outcome {
            tracing::warn!(node = %self.address, object = %ask.object.id(), %error, "a node sent bad bytes");
        }
        if let Err(LinkError::BadAnswer(BadAnswer::Corrupt(segments))) = outcome {
            self.look_into(CheckSegments { object: ask.object.id(), segments });
        }
        if let Ok((segments, _)) = &outcome {
            self.hits.fetch_add(1, Relaxed);
            self.hit_bytes.fetch_add(bytes_of(segments), Relaxed);
        }
        outcome
    }

    /// Another one answered while this one did not.
    pub(super) fn note_overtaken(&self) {
        self.health.lock().note_overtaken(self.clock.monotonic());
    }

    /// Tells the node in the background that segments which it sent are damaged. If its disk is not rotten, it is the node, or the
    /// way to it.
    fn look_into(self: &Arc<Self>, check: CheckSegments) {
        if self.checks.swap(true, Relaxed) {
            return;
        }
        let link = self.clone();
        sluice_run::task::spawn(async move {
            let found = link.check(check).await;
            link.checks.store(false, Relaxed);
            if found & check.segments == 0 {
                tracing::warn!(node = %link.address, object = %check.object, "its disk is sound: it is left alone");
                link.health.lock().note(link.clock.monotonic(), false);
            }
        });
    }

    /// Those of the segments that the node found damaged.
    async fn check(&self, check: CheckSegments) -> Set {
        let told = self.client.call(CHECK_SEGMENTS, check.encode(), CHECK_TIME).await;
        let body = told.ok().and_then(|reply| reply.body.checked().ok());
        body.and_then(|body| message::decode_set(&body)).unwrap_or(0)
    }

    /// The answer to a small question.
    pub(super) async fn ask(&self, method: u16, body: Vec<u8>, within: Duration) -> Result<Bytes, LinkError> {
        self.connected(CONNECT_TIME.min(within)).await?;
        let reply = self.client.call(method, body, within).await.map_err(LinkError::Call)?;
        reply.body.checked().map_err(|_| LinkError::BadAnswer(BadAnswer::Checksum))
    }

    async fn connected(&self, within: Duration) -> Result<(), LinkError> {
        // A call would wait for a connection as long as it may; somebody else can answer meanwhile.
        let mut states = self.client.states();
        let first = timeout(within, states.wait_for(|states| states[0] != LaneState::Connecting)).await;
        match first.map_err(|_| LinkError::Call(CallError::TimedOut))?.as_deref().ok().and_then(|states| states.first())
        {
            Some(LaneState::Disconnected(why)) => Err(LinkError::NotConnected(why.clone())),
            Some(LaneState::Refused(refused)) => Err(LinkError::NotConnected(refused.to_string())),
            _ => Ok(()),
        }
    }

    async fn try_read(
        &self,
        ask: &ReadSegments,
        within: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Result<(Vec<Segment>, u32), LinkError> {
        self.connected(within).await?;
        // Reads of 64 KiB and more.
        let class = if ask.range.len() < 2 { LaneClass::Small } else { LaneClass::Bulk };
        let reply =
            self.client.call_watched(class, READ_SEGMENTS, ask.encode(), within, begun).await.map_err(|error| {
                match error {
                    CallError::Failed { code: message::FAILED_GONE, .. } => LinkError::Gone,
                    other => LinkError::Call(other),
                }
            })?;
        let segments = message::segments(reply.body, ask.object.id(), ask.range.clone());
        segments.map(|segments| (segments, reply.epoch)).map_err(LinkError::BadAnswer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_keep_away_for_longer() {
        let (mut health, now) = (Health::default(), Duration::from_secs(100));
        for secs in [2, 4, 8, 16, 16] {
            health.note(now, false);
            assert_eq!(health.avoided_until, now + Duration::from_secs(secs));
        }
        health.note(now, true);
        assert_eq!((health.failures, health.avoided_until), (0, Duration::ZERO));
    }

    #[test]
    fn one_that_is_overtaken_again_and_again_has_failed() {
        let (mut health, now) = (Health::default(), Duration::from_secs(100));
        for _ in 0..10 {
            health.note_overtaken(now);
            health.note_overtaken(now);
            health.note(now, true);
        }
        (0..3).for_each(|_| health.note_overtaken(now));
        assert_eq!((health.failures, health.avoided_until), (1, now + Duration::from_secs(2)));
    }
}
