//! The side that reads, and measures.

use super::{
    case::Case,
    control::{OBJECT_BYTES, OPEN, RAW, RAW_USAGE, READ, Read, USAGE, Usage},
    host::{VOLUME, connection},
    raw,
    report::Line,
};
use anyhow::{Context, anyhow, bail};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sluice_base::{Clock, Page, Pages, crc::crc32c};
use sluice_net::port::{Ask, Done, LaneLimits, PeerKey, Port, PortOptions};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// For a host to answer at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the raw measurement, before and after each case: a third of a second each on a fast loopback.
const RAW_BYTES: u64 = 2 << 30;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The way.
    pub case: Case,
    /// Bytes of a read, at most an object.
    pub block: usize,
    /// Lanes to each host. Of a case with one request for each connection also the reads under way.
    pub connections: usize,
    /// Reads under way at once.
    pub in_flight: usize,
    /// How long.
    pub time: Duration,
    /// Bytes that each host has.
    pub host_bytes: u64,
}

/// Measures one case against hosts.
pub fn run(plan: &Plan, hosts: &[SocketAddr], clock: &Arc<dyn Clock>) -> anyhow::Result<Line> {
    let mut control = Control::connect(hosts, clock)?;
    let before = control.raw(plan.block)?;
    let ports = control.open(&plan.case)?;
    let measured = Reader::new(plan, &ports, clock)?.measure(&mut control)?;
    let after = control.raw(plan.block)?;
    let gib = measured.bytes as f64 / f64::from(1 << 30);
    let seconds = measured.seconds;
    let both = |client: u64, hosts: u64| (client + hosts) as f64;
    let mut latencies = measured.latencies_us;
    latencies.sort_unstable();
    let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or(0) as f64;
    Ok(Line {
        case: plan.case.name.into(),
        block_bytes: plan.block,
        connections: plan.connections,
        in_flight: plan.in_flight,
        gbps: measured.bytes as f64 / seconds / 1e9,
        iops: measured.reads as f64 / seconds,
        client_cpu_s_per_gib: measured.client.cpu_us as f64 / 1e6 / gib,
        node_cpu_s_per_gib: measured.hosts.cpu_us as f64 / 1e6 / gib,
        wakeups_per_s: both(measured.client.wakeups, measured.hosts.wakeups) / seconds,
        client_wakeups_per_s: measured.client.wakeups as f64 / seconds,
        syscalls_per_request: both(measured.client.calls, measured.hosts.calls) / measured.reads as f64,
        p50_us: at(0.5),
        p99_us: at(0.99),
        raw_limit_gbps: (before.0 + after.0) / 2.0 / 1e9,
        raw_sender_cpu_s_per_gib: (before.1 + after.1) / 2.0,
    })
}

fn hello() -> Hello {
    Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(VOLUME), session: None, name: "bench".into() }
}

/// The hosts' control ports.
struct Control {
    port: Port<Vec<u8>>,
    hosts: Vec<(SocketAddr, PeerKey)>,
    clock: Arc<dyn Clock>,
}

impl Control {
    fn connect(hosts: &[SocketAddr], clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let mut port = Port::new(PortOptions::default(), clock.clone())?;
        let hosts: Vec<_> = hosts.iter().map(|address| (*address, port.peer(*address, hello()))).collect();
        let mut control = Self { port, hosts, clock: clock.clone() };
        let until = clock.monotonic() + PATIENCE;
        for (address, peer) in control.hosts.clone() {
            while !control.port.is_connected(peer) {
                if clock.monotonic() >= until {
                    bail!("no host answers at {address}: run `sluice bench net --serve {address}` there");
                }
                control.port.turn(Some(Duration::from_millis(20)), |_| {})?;
            }
        }
        Ok(control)
    }

    fn ask(&mut self, host: usize, method: u16, body: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (address, peer) = self.hosts[host];
        let deadline = self.clock.monotonic() + PATIENCE;
        let ask = Ask { method, body, answer_bytes: 64, deadline, token: 0, into: Vec::new() };
        self.port.ask(peer, ask).map_err(|error| anyhow!("{address}: {}", error.why))?;
        let mut end = None;
        while end.is_none() {
            self.port.turn(None, |done| end = Some(done))?;
        }
        let Done { sink, outcome, .. } = end.expect("it was awaited");
        outcome.with_context(|| format!("asking {address}"))?;
        Ok(sink)
    }

    /// Data ports for a case.
    fn open(&mut self, case: &Case) -> anyhow::Result<Vec<SocketAddr>> {
        (0..self.hosts.len()).map(|host| self.port_of(host, OPEN, &case.encode())).collect()
    }

    fn port_of(&mut self, host: usize, method: u16, body: &[u8]) -> anyhow::Result<SocketAddr> {
        let answer = self.ask(host, method, body)?;
        let port = u16::from_le_bytes(answer[..].try_into().context("the host's answer is no port")?);
        Ok(SocketAddr::new(self.hosts[host].0.ip(), port))
    }

    /// What all hosts have used.
    fn usage(&mut self) -> anyhow::Result<Usage> {
        let mut sum = Usage::default();
        for host in 0..self.hosts.len() {
            let told = Usage::decode(&self.ask(host, USAGE, &[])?).context("the host's answer is no usage")?;
            sum.cpu_us += told.cpu_us;
            sum.wakeups += told.wakeups;
            sum.calls += told.calls;
        }
        Ok(sum)
    }

    /// The raw limit of the first host: bytes per second, and the sender's seconds by GiB.
    fn raw(&mut self, block: usize) -> anyhow::Result<(f64, f64)> {
        // Below this it would be a measurement of system calls.
        let step = block.max(128 << 10);
        let body = [RAW_BYTES, step as u64].iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let address = self.port_of(0, RAW, &body)?;
        let rate = raw::read(address, RAW_BYTES, step).with_context(|| format!("the raw limit of {address}"))?;
        let until = self.clock.monotonic() + PATIENCE;
        loop {
            let told = self.ask(0, RAW_USAGE, &[])?;
            let used = u64::from_le_bytes(told[..].try_into().context("the host's answer is no time")?);
            if used > 0 || self.clock.monotonic() >= until {
                return Ok((rate, used as f64 / 1e6 / (RAW_BYTES as f64 / f64::from(1 << 30))));
            }
        }
    }
}

/// Reads as fast as it may.
struct Reader<'a> {
    plan: &'a Plan,
    port: Port<Page>,
    peers: Vec<PeerKey>,
    pages: Arc<Pages>,
    random: SmallRng,
    clock: Arc<dyn Clock>,
    /// When each read was begun.
    begun: Vec<Duration>,
    free: Vec<usize>,
}

struct Measured {
    bytes: u64,
    reads: u64,
    seconds: f64,
    client: Usage,
    hosts: Usage,
    latencies_us: Vec<u32>,
}

impl<'a> Reader<'a> {
    fn new(plan: &'a Plan, ports: &[SocketAddr], clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let techniques = plan.case.techniques;
        let options = PortOptions {
            techniques,
            bulk: LaneLimits { min: plan.connections, max: plan.connections },
            small: plan.connections,
            connection: connection(),
            ..PortOptions::default()
        };
        let mut port = Port::new(options, clock.clone())?;
        let peers: Vec<_> = ports.iter().map(|address| port.peer(*address, hello())).collect();
        let until = clock.monotonic() + PATIENCE;
        let lanes = |port: &Port<Page>, peer| port.is_connected(peer) && port.open_lanes(peer).1 >= plan.connections;
        while !peers.iter().all(|peer| lanes(&port, *peer)) {
            if clock.monotonic() >= until {
                bail!("the data ports {ports:?} cannot be reached");
            }
            port.turn(Some(Duration::from_millis(20)), |_| {})?;
        }
        Ok(Self {
            plan,
            port,
            peers,
            pages: Pages::new(2 * plan.in_flight * plan.block.next_multiple_of(64 << 10)),
            random: SmallRng::seed_from_u64(7),
            clock: clock.clone(),
            begun: vec![Duration::ZERO; plan.in_flight],
            free: (0..plan.in_flight).collect(),
        })
    }

    fn measure(mut self, control: &mut Control) -> anyhow::Result<Measured> {
        // Windows grow, buffers are made.
        self.read_for(self.plan.time / 10, &mut Vec::new())?;
        let (stats, hosts) = (self.port.stats(), control.usage()?);
        let client = Usage::now(&stats);
        let mut latencies_us = Vec::with_capacity(1 << 20);
        let began = raw::now();
        let reads = self.read_for(self.plan.time, &mut latencies_us)?;
        let seconds = began.elapsed().as_secs_f64();
        let client = Usage::now(&self.port.stats()).since(client);
        let hosts = control.usage()?.since(hosts);
        Ok(Measured { bytes: reads * self.plan.block as u64, reads, seconds, client, hosts, latencies_us })
    }

    /// Reads for so long, then lets what is under way end; returns how many.
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
            let (begun, free, clock) = (&self.begun, &mut self.free, &self.clock);
            self.port.turn(None, |done| {
                let at = done.token as usize;
                free.push(at);
                match &done.outcome {
                    Ok(arrived) if crc32c(done.sink.as_ref()) == arrived.crc => reads += 1,
                    Ok(_) => failed = Some(anyhow!("bytes came that are not those that were sent")),
                    Err(error) => failed = Some(anyhow!("a read failed: {error}")),
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

    fn ask_all(&mut self, now: Duration) -> anyhow::Result<()> {
        let objects = (self.plan.host_bytes / OBJECT_BYTES as u64).max(1) as u32;
        let blocks = (OBJECT_BYTES / self.plan.block) as u32;
        while let Some(at) = self.free.pop() {
            let offset = self.random.random_range(0..blocks) * self.plan.block as u32;
            let read = Read { object: self.random.random_range(0..objects), offset, len: self.plan.block as u32 };
            let peer = self.peers[self.random.random_range(0..self.peers.len())];
            let ask = Ask {
                method: READ,
                body: &read.encode(),
                answer_bytes: self.plan.block,
                deadline: now + PATIENCE,
                token: at as u64,
                into: self.pages.take(self.plan.block),
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
