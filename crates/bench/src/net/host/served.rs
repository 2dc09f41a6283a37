//! The node, with what a case has otherwise.

use super::{
    super::case::{Ail, Case, LATE_BY, LATE_ONE_IN, SLOW_BY},
    Counters,
};
use bytes::Bytes;
use sluice_base::{Pages, crc::crc32c};
use sluice_net::{
    Failure, Refusal,
    port::{Answer, DataPeer, DataService},
};
use sluice_node::NodeService;
use sluice_wire::{ConnectionError, Hello, Payload, Piece, RequestRef, Welcome};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

pub(super) struct Served {
    node: NodeService,
    case: Case,
    /// Of the host among all.
    number: u8,
    /// For bytes that are read to be sent or summed.
    pages: Arc<Pages>,
    calls: AtomicU32,
    counters: Arc<Counters>,
}

impl Served {
    pub(super) fn new(node: NodeService, case: Case, number: u8, counters: Arc<Counters>) -> Self {
        Self { node, case, number, pages: Pages::new(64 << 20), calls: AtomicU32::new(0), counters }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.node.held_bytes() as u64
    }

    /// How long this answer is held back.
    fn late_by(&self) -> Option<Duration> {
        let is_late = || self.calls.fetch_add(1, Relaxed) % LATE_ONE_IN == LATE_ONE_IN - 1;
        match self.case.ail() {
            Ail::Late if is_late() => Some(LATE_BY),
            Ail::Slow if self.number > 0 => Some(SLOW_BY),
            _ => None,
        }
    }

    /// The answer with a CRC that is computed from its bytes now. Where they are not sent from the file, they are read only once.
    fn summed(&self, payload: Payload) -> io::Result<Payload> {
        self.counters.summed.fetch_add(1, Relaxed);
        let mut page = self.pages.take(payload.len());
        let mut rest = page.as_mut();
        for piece in payload.pieces() {
            let part = rest.split_off_mut(..piece.len()).expect("all pieces are as long as the payload");
            match piece {
                Piece::Bytes(bytes) => part.copy_from_slice(bytes),
                Piece::Region(region) => region.read_at(0, part)?,
            }
        }
        let crc = crc32c(page.as_ref());
        if self.case.techniques.sendfile {
            return Ok(payload.with_crc(crc));
        }
        Ok(Payload::from(Bytes::from_owner(page)).with_crc(crc).unchecked())
    }
}

impl DataService for Served {
    fn hello(&self, hello: &Hello, address: SocketAddr) -> Result<Welcome, Refusal> {
        DataService::hello(&self.node, hello, address)
    }

    fn opened(&self, peer: &DataPeer) {
        DataService::opened(&self.node, peer);
    }

    fn call(&self, peer: &DataPeer, request: RequestRef<'_>) -> Answer {
        let answer = match DataService::call(&self.node, peer, request) {
            Answer::Now(payload) if !self.case.combine => match self.summed(payload) {
                Ok(payload) => Answer::Now(payload),
                Err(error) => Answer::Failed(Failure::new(2, error.to_string())),
            },
            answer => answer,
        };
        let Some(late_by) = self.late_by() else { return answer };
        Answer::Later(Box::pin(async move {
            tokio::time::sleep(late_by).await;
            match answer {
                Answer::Now(payload) => Ok(payload),
                Answer::Failed(failure) => Err(failure),
                Answer::Later(later) => later.await,
            }
        }))
    }

    fn gone(&self, peer: &DataPeer, why: &ConnectionError) {
        DataService::gone(&self.node, peer, why);
    }

    fn epoch(&self) -> u32 {
        DataService::epoch(&self.node)
    }
}
