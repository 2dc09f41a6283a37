//! One lane of a client: connects, drives, waits, connects again.

use super::{Callbacks, LaneState, Shared};
use crate::{
    Failure,
    driver::{Handler, drive},
    intake::Intake,
    lane::Lane,
};
use sluice_run::lock::Mutex;
use sluice_run::{time::sleep, watch};
use sluice_wire::{Clear, Connection, ConnectionError, Hello, LaneClass, Payload, Push, RefusalCode, Request, Welcome};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// One lane and its place.
pub(super) struct Outbound<C> {
    pub(super) shared: Arc<Shared>,
    pub(super) callbacks: Arc<C>,
    pub(super) index: usize,
    /// While there is a connection, open or not.
    pub(super) lane: Mutex<Option<Arc<Lane>>>,
}

impl<C: Callbacks> Outbound<C> {
    /// Connects again and again until `closing`.
    pub(super) async fn keep(self, mut closing: watch::Receiver<bool>) {
        let mut tries = 0;
        let watching = closing.clone();
        if self.index > 0 {
            let mut states = self.shared.states.subscribe();
            tokio::select! {
                biased;
                _ = states.wait_for(|states| matches!(states[0], LaneState::Connected(_))) => {}
                _ = closing.wait_for(|closing| *closing) => return,
            }
        }
        loop {
            let wait = tokio::select! {
                biased;
                why = self.once(&watching) => self.ended(why, &mut tries),
                // The connection, if there is one, sees it too and takes leave.
                _ = self.given_up(&mut closing) => return,
            };
            tokio::select! {
                biased;
                () = sleep(wait) => {}
                _ = closing.wait_for(|closing| *closing) => return,
            }
        }
    }

    /// Returns when `closing` is set and there is no connection that must end by itself.
    async fn given_up(&self, closing: &mut watch::Receiver<bool>) {
        let _ = closing.wait_for(|closing| *closing).await;
        if self.lane.lock().is_some() {
            std::future::pending::<()>().await;
        }
    }

    /// Connects once, and drives the connection to its end.
    async fn once(&self, closing: &watch::Receiver<bool>) -> ConnectionError {
        let stream = match self.shared.connect().await {
            Ok(stream) => stream,
            Err(error) => return ConnectionError::Lost(error.to_string()),
        };
        let _ = stream.set_nodelay(true);
        let mut hello = self.shared.hello.lock().clone();
        let small = self.index < self.shared.options.lanes_small.max(1);
        hello.lane = if small { LaneClass::Small } else { LaneClass::Bulk };
        let clock = self.shared.clock.clone();
        let options = self.shared.options.connection.clone();
        let mut connection = Connection::initiator(clock.monotonic(), hello, options, Box::new(Clear));
        connection.set_epoch(self.shared.epoch.load(Ordering::Relaxed));
        let lane = Lane::new(clock, stream, connection);
        *self.lane.lock() = Some(lane.clone());
        let pages = self.shared.options.pages.clone().filter(|_| !small);
        let why = drive(lane, self, closing.clone(), pages.map(Intake::new)).await;
        self.shared.lanes.lock()[self.index] = None;
        *self.lane.lock() = None;
        why
    }

    /// Notes the end of a connection, or of a try; returns how long to wait before the next.
    fn ended(&self, why: ConnectionError, tries: &mut u32) -> Duration {
        tracing::debug!(lane = self.index, %why, "not connected");
        let was_open = matches!(self.shared.states.borrow()[self.index], LaneState::Connected(_));
        *tries = if was_open { 0 } else { *tries + 1 };
        let options = &self.shared.options;
        match why {
            ConnectionError::Refused(refused) => {
                self.shared.set_state(self.index, LaneState::Refused(refused));
                options.backoff_max.mul_f64(0.5 + self.shared.random() / 2.0)
            }
            why => {
                self.shared.set_state(self.index, LaneState::Disconnected(why.to_string()));
                self.shared.backoff(*tries)
            }
        }
    }
}

impl<C: Callbacks> Handler for Outbound<C> {
    async fn hello(&self, _: Hello) -> Result<Welcome, (RefusalCode, String)> {
        Err((RefusalCode::Other, "this side is the initiator".into()))
    }

    async fn call(&self, request: Request) -> Result<Payload, Failure> {
        self.callbacks.call(request).await
    }

    async fn push(&self, push: Push) {
        self.callbacks.push(push).await;
    }

    fn open(&self, welcome: Welcome) {
        if welcome.session.is_some() {
            self.shared.hello.lock().session = welcome.session;
        }
        self.shared.lanes.lock()[self.index] = self.lane.lock().clone();
        self.shared.set_state(self.index, LaneState::Connected(welcome));
    }
}
