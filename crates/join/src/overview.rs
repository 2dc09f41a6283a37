//! What a server tells of its volume to those who watch it: sessions, what their mounts have not stored, nodes.

use crate::{
    MetaService,
    methods::{self, Report},
};
use sluice_base::SessionId;
use sluice_meta::rpc::message::SessionStatus;
use sluice_net::Failure;
use sluice_node::message::MemberStatus;
use sluice_run::{collections::HashMap, lock::Mutex};
use sluice_wire::{Payload, Request};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Answers [`methods::STATUS`]. Called on a thread that may wait for local disks.
type StatusAnswer = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// A session as the server knows it.
#[derive(Clone, Debug)]
pub struct SessionOverview {
    /// Name, state, lease, what it has open.
    pub status: SessionStatus,
    /// What its mount said last of what the store does not have yet, and how long ago.
    pub unstored: Option<(Report, Duration)>,
}

/// Sessions and nodes of a moment.
#[derive(Clone, Debug)]
pub struct Overview {
    /// All sessions that have not ended.
    pub sessions: Vec<SessionOverview>,
    /// Leases that ended since the start.
    pub lease_expiries: u64,
    /// Peers that are connected.
    pub connections: usize,
    /// Epoch of the list of nodes.
    pub epoch: u32,
    /// The nodes, and the bytes a second that each sends.
    pub nodes: Vec<(MemberStatus, u64)>,
}

impl Overview {
    /// Bytes that mounts have acked and not stored, as far as they have said.
    pub fn unstored_bytes(&self) -> u64 {
        let reported = self.sessions.iter().filter_map(|session| session.unstored);
        reported.fold(0, |sum, (report, _)| sum.saturating_add(report.bytes))
    }
}

/// What is kept for those who watch.
#[derive(Default)]
pub(crate) struct Watched {
    reports: Mutex<HashMap<SessionId, (Report, Duration)>>,
    expiries: AtomicU64,
    answer: OnceLock<StatusAnswer>,
}

impl Watched {
    pub fn expired(&self) {
        self.expiries.fetch_add(1, Relaxed);
    }

    pub fn ended(&self, session: SessionId) {
        self.reports.lock().remove(&session);
    }
}

impl MetaService {
    /// What [`methods::STATUS`] is answered with; the first word counts.
    pub fn answer_status_with(&self, answer: impl Fn() -> Vec<u8> + Send + Sync + 'static) {
        let _ = self.watched.answer.set(Arc::new(answer));
    }

    /// The sessions and nodes of now.
    pub fn overview(&self) -> Overview {
        let now = self.clock.monotonic();
        let reports = self.watched.reports.lock().clone();
        let of = |status: SessionStatus| {
            let told = reports.get(&status.session);
            let unstored = told.map(|(report, at)| (*report, now.saturating_sub(*at)));
            SessionOverview { status, unstored }
        };
        let sessions = self.server.sessions(now).into_iter().map(of).collect();
        let (epoch, nodes) = {
            let mut registry = self.nodes.registry.lock();
            registry.expire(now);
            (registry.epoch(), registry.group(now).into_iter().zip(registry.rates()).collect())
        };
        let connections = self.connections.lock().len();
        Overview { sessions, lease_expiries: self.watched.expiries.load(Relaxed), connections, epoch, nodes }
    }

    pub(crate) fn report(&self, request: Request) -> Result<Payload, Failure> {
        let other = |text: String| Failure::new(methods::FAILED_OTHER, text);
        let body = request.body.checked().map_err(|error| other(error.to_string()))?;
        let report = Report::decode(&body).ok_or_else(|| other("the report does not parse".into()))?;
        // Sessions bound what is kept.
        if !self.sessions.lock().contains_key(&report.session) {
            return Err(other(format!("session {} is not connected", report.session)));
        }
        self.watched.reports.lock().insert(report.session, (report, self.clock.monotonic()));
        Ok(Payload::default())
    }

    pub(crate) async fn answer_status(&self) -> Result<Payload, Failure> {
        let other = |text: String| Failure::new(methods::FAILED_OTHER, text);
        let answer = self.watched.answer.get().cloned();
        let answer = answer.ok_or_else(|| other("the server is starting: ask again".into()))?;
        let told = sluice_run::task::spawn_blocking(move || answer()).await;
        told.map(Payload::from).map_err(|error| other(error.to_string()))
    }
}
