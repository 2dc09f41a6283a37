//! Reads by way of a group of nodes, as tasks of a mount do.

use super::{
    super::{case::GroupCase, control::Usage, host},
    Own, Places, Plan, Read,
};
use anyhow::Context;
use futures::{StreamExt, stream::FuturesUnordered};
use sluice_base::{Clock, OsEntropy, Pages, limits::SEGMENT_BYTES};
use sluice_net::port::PortStats;
use sluice_node::{Group, GroupOptions, Member, Members, NodeName, State};
use sluice_wire::PeerKind;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

pub(super) struct Reader<'a> {
    plan: &'a Plan,
    group: Group,
    places: Places,
    clock: Arc<dyn Clock>,
    runtime: Runtime,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        case: GroupCase,
        nodes: &[SocketAddr],
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let options = GroupOptions {
            pages: Pages::new(2 * plan.in_flight * plan.block.next_multiple_of(64 << 10)),
            hedge: case.hedge,
            second_owner: case.second_owner,
            ..GroupOptions::new(host::hello(PeerKind::Mount))
        };
        let group = Group::new(options, clock.clone(), Arc::new(OsEntropy));
        let member = |(number, address): (usize, &SocketAddr)| {
            let name = NodeName::new(&format!("node-{number}"))?;
            Some(Member { name, address: *address, weight: 1, capacity_bytes: plan.host_bytes, state: State::Active })
        };
        let list = nodes.iter().enumerate().filter_map(member).collect();
        group.update(Members::new(1, list).context("too many nodes")?);
        Ok(Self { plan, group, places: Places::new(plan), clock: clock.clone(), runtime })
    }
}

impl Read for Reader<'_> {
    fn read_for(&mut self, time: Duration, latencies_us: &mut Vec<u32>) -> anyhow::Result<u64> {
        let Self { plan, group, places, clock, runtime } = self;
        let until = clock.monotonic() + time;
        runtime.block_on(async {
            let (mut under_way, mut reads) = (FuturesUnordered::new(), 0);
            loop {
                while under_way.len() < plan.in_flight && clock.monotonic() < until {
                    let ((object, offset), began) = (places.next(), clock.monotonic());
                    let first = offset / SEGMENT_BYTES as u32;
                    let range = first..first + (plan.block / SEGMENT_BYTES) as u32;
                    let read = group.read(object, range);
                    under_way.push(async move { (read.await, began) });
                }
                let Some((outcome, began)) = under_way.next().await else { return Ok(reads) };
                outcome.context("a read failed")?;
                reads += 1;
                if latencies_us.len() < latencies_us.capacity() {
                    latencies_us.push((clock.monotonic() - began).as_micros() as u32);
                }
            }
        })
    }

    fn usage(&self) -> Usage {
        Usage::now(PortStats::default(), 0)
    }

    fn own(&self) -> Own {
        let stats = self.group.stats();
        // One lane for large answers to each node.
        Own { lanes: 1, hedged: stats.fallbacks, second_owner: stats.seconds }
    }
}
