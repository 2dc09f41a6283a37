//! Reads over lanes, on one thread, as a mount's reactors do.

use super::{
    super::{
        control::{NodeCounts, Usage},
        host,
    },
    Own, PATIENCE, Places, Plan, Read,
};
use anyhow::{anyhow, bail};
use rustix::fd::OwnedFd;
use sluice_base::{Clock, Page, Pages, Pipe, crc::crc32c, pipe::SLOT_BYTES};
use sluice_net::port::{Ask, LaneLimits, PeerKey, Place, Port, PortOptions, Sink};
use sluice_node::message::{READ_RANGE, ReadRange};
use sluice_wire::PeerKind;
use std::{fs::File, net::SocketAddr, os::fd::AsFd, sync::Arc, time::Duration};

/// Smaller answers come in one read with others, and lie in memory then.
const SPLICE_MIN: usize = 64 << 10;

/// Where an answer goes: a pipe, or memory where there is none or it is too small.
struct Target {
    pipe: Option<Pipe>,
    page: Page,
}

impl Sink for Target {
    fn place(&mut self, len: usize) -> Option<Place<'_>> {
        match &self.pipe {
            Some(pipe) => Some(Place::Pipe(pipe.writer())),
            None => self.page.place(len),
        }
    }

    fn pipe_is_full(&mut self, filled: usize) -> bool {
        let Some(mut pipe) = self.pipe.take() else { return false };
        pipe.filled(filled);
        let mut rest = &mut self.page.as_mut()[..filled];
        while !rest.is_empty() {
            match pipe.take(rest) {
                Ok(taken @ 1..) => rest = &mut rest[taken..],
                _ => return false,
            }
        }
        true
    }
}

/// Takes no answer.
struct Nowhere;

impl Sink for Nowhere {
    fn place(&mut self, _: usize) -> Option<Place<'_>> {
        None
    }
}

/// A port that asks each peer for as much as it may, and never looks for answers.
fn stalled(
    plan: &Plan,
    options: PortOptions,
    ports: &[SocketAddr],
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Port<Nowhere>> {
    let (mut port, peers) = connected(options, ports, clock)?;
    let (now, mut places) = (clock.monotonic(), Places::new(plan));
    for peer in peers {
        loop {
            let ((object, offset), len) = (places.next(), plan.block as u32);
            let body = ReadRange { object, offset, len, cached_only: true }.encode();
            let deadline = now + Duration::from_secs(3600);
            let ask =
                Ask { method: READ_RANGE, body: &body, answer_bytes: plan.block, deadline, token: 0, into: Nowhere };
            if port.ask(peer, ask).is_err() {
                break;
            }
        }
    }
    port.flush();
    Ok(port)
}

/// A port with its lanes to these peers.
fn connected<S: Sink>(
    options: PortOptions,
    ports: &[SocketAddr],
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(Port<S>, Vec<PeerKey>)> {
    let bulk = options.bulk.min;
    let mut port = Port::new(options, clock.clone())?;
    let peers: Vec<_> = ports.iter().map(|address| port.peer(*address, host::hello(PeerKind::Mount))).collect();
    let until = clock.monotonic() + PATIENCE;
    let lanes = |port: &Port<S>, peer| port.is_connected(peer) && port.open_lanes(peer).1 >= bulk;
    while !peers.iter().all(|peer| lanes(&port, *peer)) {
        if clock.monotonic() >= until {
            bail!("the data ports {ports:?} cannot be reached");
        }
        port.turn(Some(Duration::from_millis(20)), |_| {})?;
    }
    Ok((port, peers))
}

pub(super) struct Reader<'a> {
    plan: &'a Plan,
    /// Somebody else, who takes nothing.
    _stalled: Option<Port<Nowhere>>,
    port: Port<Target>,
    peers: Vec<PeerKey>,
    pages: Arc<Pages>,
    pipes: Vec<Pipe>,
    /// Takes what is in pipes.
    nowhere: OwnedFd,
    places: Places,
    clock: Arc<dyn Clock>,
    /// When each read was begun.
    begun: Vec<Duration>,
    free: Vec<usize>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(plan: &'a Plan, ports: &[SocketAddr], clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let bulk = match plan.connections {
            Some(lanes) => LaneLimits { min: lanes, max: lanes },
            None if plan.case.more_lanes => LaneLimits::default(),
            None => LaneLimits { min: 1, max: 1 },
        };
        let small = plan.connections.unwrap_or(1);
        let options = PortOptions {
            techniques: plan.case.techniques,
            bulk,
            small,
            connection: host::connection(),
            ..PortOptions::default()
        };
        let stalled = plan.case.stalled.then(|| stalled(plan, options.clone(), ports, clock)).transpose()?;
        let (port, peers) = connected(options, ports, clock)?;
        Ok(Self {
            plan,
            _stalled: stalled,
            port,
            peers,
            pages: Pages::new(2 * plan.in_flight * plan.block.next_multiple_of(64 << 10)),
            pipes: Vec::new(),
            nowhere: File::options().write(true).open("/dev/null")?.into(),
            places: Places::new(plan),
            clock: clock.clone(),
            begun: vec![Duration::ZERO; plan.in_flight],
            free: (0..plan.in_flight).collect(),
        })
    }

    fn target(&mut self) -> anyhow::Result<Target> {
        let (case, block) = (&self.plan.case, self.plan.block);
        let page = self.pages.take(block);
        if case.check || !case.splice || block < SPLICE_MIN {
            return Ok(Target { pipe: None, page });
        }
        // Fragments of the network take a slot each, whatever their length.
        let pipe = self.pipes.pop().map_or_else(|| Pipe::new(2 * block / SLOT_BYTES), Ok)?;
        Ok(Target { pipe: Some(pipe), page })
    }

    fn ask_all(&mut self, now: Duration) -> anyhow::Result<()> {
        while let Some(at) = self.free.pop() {
            let ((object, offset), len) = (self.places.next(), self.plan.block as u32);
            let read = ReadRange { object, offset, len, cached_only: true };
            let peer = self.peers[self.places.one_of(self.peers.len())];
            let ask = Ask {
                method: READ_RANGE,
                body: &read.encode(),
                answer_bytes: self.plan.block,
                deadline: now + PATIENCE,
                token: at as u64,
                into: self.target()?,
            };
            self.begun[at] = now;
            if self.port.ask(peer, ask).is_err() {
                self.free.push(at);
                if self.port.under_way() == 0 {
                    bail!("no lane is open any more");
                }
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Read for Reader<'_> {
    fn read_for(&mut self, time: Duration, latencies_us: &mut Vec<u32>) -> anyhow::Result<u64> {
        let until = self.clock.monotonic() + time;
        let (mut reads, mut failed) = (0, None);
        loop {
            let now = self.clock.monotonic();
            if now < until {
                self.ask_all(now)?;
            }
            if self.port.under_way() == 0 {
                return Ok(reads);
            }
            let Self { plan, port, pipes, nowhere, begun, free, clock, .. } = self;
            port.turn(None, |done| {
                let at = done.token as usize;
                free.push(at);
                let sound = match (&done.outcome, done.sink) {
                    (Err(error), _) => Err(anyhow!("a read failed: {error}")),
                    (Ok(_), Target { pipe: Some(mut pipe), .. }) => {
                        pipe.filled(plan.block);
                        let poured = pipe.pour(nowhere.as_fd());
                        pipes.push(pipe);
                        if poured == Ok(plan.block) { Ok(()) } else { Err(anyhow!("a pipe gave {poured:?}")) }
                    }
                    (Ok(arrived), Target { page, .. }) => {
                        let is_sound = !plan.case.check || crc32c(page.as_ref()) == arrived.crc;
                        is_sound.then_some(()).ok_or_else(|| anyhow!("bytes came that are not those that were sent"))
                    }
                };
                match sound {
                    Ok(()) => reads += 1,
                    Err(error) => failed = Some(error),
                }
                if latencies_us.len() < latencies_us.capacity() {
                    latencies_us.push((clock.monotonic() - begun[at]).as_micros() as u32);
                }
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    fn usage(&self) -> Usage {
        Usage::now(self.port.stats(), NodeCounts::default())
    }

    fn own(&self) -> Own {
        let lanes = self.peers.iter().map(|peer| self.port.open_lanes(*peer).1).max();
        Own { lanes: lanes.unwrap_or(0), ..Own::default() }
    }
}
