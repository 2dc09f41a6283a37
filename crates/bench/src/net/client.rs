//! The side that reads, and measures.

mod group;
mod lanes;

use super::{
    case::{ABSENT_OBJECTS, ABSENT_ONE_IN, Ail, Case},
    control::{MEMBERS, OBJECT_BYTES, OPEN, RAW, RAW_USAGE, USAGE, Usage},
    host::{hello, object},
    raw,
    report::Line,
};
use anyhow::{Context, anyhow, bail, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sluice_base::Clock;
use sluice_net::port::{Ask, Done, PeerKey, Port, PortOptions};
use sluice_node::Members;
use sluice_object::StoredObject;
use sluice_wire::PeerKind;
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

/// For a host to answer at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Latencies that are kept.
const LATENCIES_MAX: usize = 1 << 20;
/// Bytes of the raw measurement, before and after each case of a second or longer: a third of a second each on a fast loopback.
const RAW_BYTES: u64 = 2 << 30;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The way.
    pub case: Case,
    /// Bytes of a read, at most an object.
    pub block: usize,
    /// Lanes to each host; without a number as many as the traffic takes. Of a case with one request for each connection also the reads
    /// under way.
    pub connections: Option<usize>,
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
    let before = control.raw(plan)?;
    let ports = control.open(&plan.case)?;
    let measured = match plan.case.group {
        None => measure(plan, &mut lanes::Reader::new(plan, &ports, clock)?, &mut control)?,
        Some(group) => {
            let lists = group::lists(group, &ports, plan.host_bytes)?;
            measure(plan, &mut group::Reader::new(plan, group, lists, clock)?, &mut control)?
        }
    };
    let after = control.raw(plan)?;
    let Measured { reads, seconds, client, hosts, own, latencies_us } = measured;
    let bytes = (reads * plan.block as u64) as f64;
    let (gib, both) = (bytes / f64::from(1 << 30), client.plus(hosts));
    let at = |part: f64| latencies_us.get((latencies_us.len() as f64 * part) as usize).copied().unwrap_or(0) as f64;
    let by_1000 = |count: u64| count as f64 * 1000.0 / reads.max(1) as f64;
    let named = |side: &str, usage: &Usage| {
        usage.lanes.named().map(|(name, count)| (format!("{side}_{name}"), by_1000(count))).collect::<Vec<_>>()
    };
    let mut counts: BTreeMap<_, _> = named("client", &client).into_iter().chain(named("node", &hosts)).collect();
    let of_node = [("summed", hosts.node.summed), ("moved", hosts.node.moved), ("fetched", hosts.node.fetched)];
    counts.extend(of_node.map(|(name, count)| (format!("node_{name}"), by_1000(count))));
    let of_reader = own.named().map(|(name, count)| (name.to_owned(), by_1000(count)));
    counts.extend(of_reader);
    counts.insert("lanes".into(), own.lanes as f64);
    counts.insert("held_mib".into(), hosts.node.held_bytes as f64 / f64::from(1 << 20));
    ensure!(counts.contains_key(plan.case.counter), "nobody counts {}", plan.case.counter);
    Ok(Line {
        case: plan.case.name.into(),
        block_bytes: plan.block,
        connections: own.lanes,
        in_flight: plan.in_flight,
        gbps: bytes / seconds / 1e9,
        iops: reads as f64 / seconds,
        client_cpu_s_per_gib: client.cpu_us as f64 / 1e6 / gib,
        node_cpu_s_per_gib: hosts.cpu_us as f64 / 1e6 / gib,
        wakeups_per_s: both.lanes.wakeups as f64 / seconds,
        client_wakeups_per_s: client.lanes.wakeups as f64 / seconds,
        syscalls_per_request: both.calls() as f64 / reads as f64,
        p50_us: at(0.5),
        p99_us: at(0.99),
        raw_limit_gbps: (before.0 + after.0) / 2.0 / 1e9,
        raw_sender_cpu_s_per_gib: (before.1 + after.1) / 2.0,
        counts,
    })
}

/// A way to read.
pub(super) trait Read {
    /// Reads for so long, then lets what is under way end; returns how many.
    fn read_for(&mut self, time: Duration, latencies_us: &mut Vec<u32>) -> anyhow::Result<u64>;

    /// The next list of members, if there is one.
    fn next_members(&mut self) -> Option<Members> {
        None
    }

    /// This is the list of members from now on.
    fn change(&mut self, members: Members) {
        drop(members);
    }

    /// What its lanes did.
    fn usage(&self) -> Usage;

    /// What it counted since the start.
    fn own(&self) -> Own;
}

/// What only the reader knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// Lanes to each host for large answers.
    pub(super) lanes: usize,
    /// Reads whose owner was slow or failed, so that another one was asked.
    pub(super) hedged: u64,
    /// Reads that were asked of a second owner.
    pub(super) second_owner: u64,
    /// Reads that no node answered: they took as long as the store does.
    pub(super) missed: u64,
    /// Reads that another node than the first answered.
    pub(super) others: u64,
}

impl Own {
    fn since(self, before: Self) -> Self {
        Self {
            hedged: self.hedged - before.hedged,
            second_owner: self.second_owner - before.second_owner,
            missed: self.missed - before.missed,
            others: self.others - before.others,
            ..self
        }
    }

    fn named(&self) -> [(&'static str, u64); 4] {
        let Self { hedged, second_owner, missed, others, lanes: _ } = *self;
        [("hedged", hedged), ("second_owner", second_owner), ("missed", missed), ("others", others)]
    }
}

struct Measured {
    reads: u64,
    seconds: f64,
    client: Usage,
    hosts: Usage,
    own: Own,
    /// In their order.
    latencies_us: Vec<u32>,
}

fn measure(plan: &Plan, reader: &mut impl Read, control: &mut Control) -> anyhow::Result<Measured> {
    tell_change(reader, control)?;
    // Windows grow, buffers are made; lanes too.
    reader.read_for(plan.time / 4, &mut Vec::new())?;
    tell_change(reader, control)?;
    let (hosts, client, own) = (control.usage()?, reader.usage(), reader.own());
    let mut latencies_us = Vec::with_capacity(LATENCIES_MAX);
    let began = raw::now();
    let reads = reader.read_for(plan.time, &mut latencies_us)?;
    let seconds = began.elapsed().as_secs_f64();
    let (client, own) = (reader.usage().since(client), reader.own().since(own));
    let hosts = control.usage()?.since(hosts);
    latencies_us.sort_unstable();
    Ok(Measured { reads, seconds, client, hosts, own, latencies_us })
}

/// Nodes learn of a change before their reader does.
fn tell_change(reader: &mut impl Read, control: &mut Control) -> anyhow::Result<()> {
    let Some(members) = reader.next_members() else { return Ok(()) };
    control.members(&members)?;
    reader.change(members);
    Ok(())
}

/// Blocks at random places of the objects of a host.
pub(super) struct Places {
    random: SmallRng,
    objects: Vec<StoredObject>,
    /// Objects that no host has.
    absent: Vec<StoredObject>,
    blocks: u32,
    block: usize,
}

impl Places {
    pub(super) fn new(plan: &Plan) -> Self {
        // Whoever reads one object reads the first.
        let is_hot = plan.case.group.is_some_and(|group| group.hot);
        let objects = if is_hot { 1 } else { (plan.host_bytes / OBJECT_BYTES as u64).max(1) as u32 };
        let blocks = (OBJECT_BYTES / plan.block) as u32;
        let absent = if plan.case.ail() == Ail::StoreHangs { ABSENT_OBJECTS } else { 0 };
        let absent = (objects..objects + absent).map(object).collect();
        let objects = (0..objects).map(object).collect();
        Self { random: SmallRng::seed_from_u64(7), objects, absent, blocks, block: plan.block }
    }

    /// An object, and an offset in it.
    pub(super) fn next(&mut self) -> (StoredObject, u32) {
        let offset = self.random.random_range(0..self.blocks) * self.block as u32;
        if !self.absent.is_empty() && self.one_of(ABSENT_ONE_IN) == 0 {
            let at = self.one_of(self.absent.len());
            return (self.absent[at], offset);
        }
        let at = self.one_of(self.objects.len());
        (self.objects[at], offset)
    }

    /// One of so many.
    pub(super) fn one_of(&mut self, count: usize) -> usize {
        self.random.random_range(0..count)
    }
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
        let hosts: Vec<_> =
            hosts.iter().map(|address| (*address, port.peer(*address, hello(PeerKind::Mount)))).collect();
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
        let ask = Ask { method, body, answer_bytes: 256, deadline, token: 0, into: Vec::new() };
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
        let body = |host: usize| [&[host as u8], case.name.as_bytes()].concat();
        (0..self.hosts.len()).map(|host| self.port_of(host, OPEN, &body(host))).collect()
    }

    /// Tells all hosts the list of members.
    fn members(&mut self, members: &Members) -> anyhow::Result<()> {
        (0..self.hosts.len()).try_for_each(|host| self.ask(host, MEMBERS, &members.encode()).map(drop))
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
            sum = sum.plus(told);
        }
        Ok(sum)
    }

    /// The raw limit of the first host: bytes per second, and the sender's seconds by GiB.
    fn raw(&mut self, plan: &Plan) -> anyhow::Result<(f64, f64)> {
        // Below this it would be a measurement of system calls.
        let step = plan.block.max(128 << 10);
        let total = (RAW_BYTES as f64 * plan.time.as_secs_f64().min(1.0)) as u64;
        let body = [total, step as u64].iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let address = self.port_of(0, RAW, &body)?;
        let rate = raw::read(address, total, step).with_context(|| format!("the raw limit of {address}"))?;
        let until = self.clock.monotonic() + PATIENCE;
        loop {
            let told = self.ask(0, RAW_USAGE, &[])?;
            let used = u64::from_le_bytes(told[..].try_into().context("the host's answer is no time")?);
            if used > 0 || self.clock.monotonic() >= until {
                return Ok((rate, used as f64 / 1e6 / (total as f64 / f64::from(1 << 30))));
            }
        }
    }
}
