//! Reads by way of a group of nodes, as tasks of a mount do.

use super::{
    super::{
        case::{Ail, Change, GroupCase, STORE_TAKES},
        control::{NodeCounts, Usage},
        host,
    },
    Own, Places, Plan, Read,
};
use anyhow::{Context, bail};
use futures::{StreamExt, stream::FuturesUnordered};
use sluice_base::{Clock, OsEntropy, Pages, limits::SEGMENT_BYTES};
use sluice_net::port::PortStats;
use sluice_node::{Group, GroupError, GroupOptions, Member, Members, State};
use sluice_wire::{Options, PeerKind};
use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

/// What all nodes together have for a read where the store may hang.
const TRY_TIME: Duration = Duration::from_millis(500);
/// Of a node that is not slow, beside one that is.
const WEIGHT: u32 = 8;

/// The lists of members of a case, in their order.
pub(super) fn lists(case: GroupCase, nodes: &[SocketAddr], host_bytes: u64) -> anyhow::Result<VecDeque<Members>> {
    let weight = |number: usize| if case.ail == Ail::Slow && case.weights && number == 0 { WEIGHT } else { 1 };
    let member = |number: usize, state: State| {
        let (name, address) = (host::node_name(number), nodes[number]);
        Member { name, address, weight: weight(number), capacity_bytes: host_bytes, state }
    };
    let others = || (1..nodes.len()).map(|number| member(number, State::Active));
    let first = |state: State| std::iter::once(member(0, state));
    let all = || first(State::Active).chain(others()).collect::<Vec<_>>();
    let lists = match case.change {
        Change::None => vec![all()],
        Change::Join => vec![first(State::Active).collect(), all()],
        Change::Drain => vec![first(State::Active).collect(), first(State::Draining).chain(others()).collect()],
        Change::Replace => vec![first(State::Active).collect(), others().collect()],
    };
    let numbered = lists.into_iter().zip(1..);
    numbered.map(|(list, epoch)| Members::new(epoch, list).context("too many nodes")).collect()
}

pub(super) struct Reader<'a> {
    plan: &'a Plan,
    case: GroupCase,
    group: Group,
    lists: VecDeque<Members>,
    missed: u64,
    places: Places,
    clock: Arc<dyn Clock>,
    runtime: Runtime,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        case: GroupCase,
        lists: VecDeque<Members>,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let options = GroupOptions {
            pages: Pages::new(2 * plan.in_flight * plan.block.next_multiple_of(64 << 10)),
            hedge: case.hedge,
            second_owner: case.second_owner,
            connection: Options { cancel: case.cancel, deadlines: case.deadlines, ..host::connection() },
            ..GroupOptions::new(host::hello(PeerKind::Mount))
        };
        let try_time = if case.ail == Ail::StoreHangs { TRY_TIME } else { options.try_time };
        let options = GroupOptions { try_time, ..options };
        let group = Group::new(options, clock.clone(), Arc::new(OsEntropy));
        Ok(Self { plan, case, group, lists, missed: 0, places: Places::new(plan), clock: clock.clone(), runtime })
    }
}

impl Read for Reader<'_> {
    fn read_for(&mut self, time: Duration, latencies_us: &mut Vec<u32>) -> anyhow::Result<u64> {
        let Self { plan, case, group, places, clock, runtime, missed, .. } = self;
        let until = clock.monotonic() + time;
        runtime.block_on(async {
            let (mut under_way, mut reads) = (FuturesUnordered::new(), 0);
            loop {
                while under_way.len() < plan.in_flight && clock.monotonic() < until {
                    let ((object, offset), began) = (places.next(), clock.monotonic());
                    let first = offset / SEGMENT_BYTES as u32;
                    let range = first..first + (plan.block / SEGMENT_BYTES) as u32;
                    let read = group.read(object, range);
                    under_way.push(async move {
                        let read = read.await;
                        if read.is_err() {
                            // Whoever reads goes to the store.
                            tokio::time::sleep(STORE_TAKES).await;
                        }
                        (read, began)
                    });
                }
                let Some((outcome, began)) = under_way.next().await else { return Ok(reads) };
                match outcome {
                    Ok(_) => {}
                    Err(GroupError::NoOwner) if case.ail == Ail::StoreHangs => *missed += 1,
                    Err(error) => bail!("a read failed: {error}"),
                }
                reads += 1;
                if latencies_us.len() < latencies_us.capacity() {
                    latencies_us.push((clock.monotonic() - began).as_micros() as u32);
                }
            }
        })
    }

    fn next_members(&mut self) -> Option<Members> {
        self.lists.pop_front()
    }

    fn change(&mut self, members: Members) {
        self.group.update(members);
    }

    fn usage(&self) -> Usage {
        Usage::now(PortStats::default(), NodeCounts::default())
    }

    fn own(&self) -> Own {
        let stats = self.group.stats();
        let first = host::node_name(0);
        let others = stats.by_member.iter().filter(|(name, ..)| *name != first).map(|(_, reads, _)| reads).sum();
        // One lane for large answers to each node.
        Own { lanes: 1, hedged: stats.fallbacks, second_owner: stats.seconds, missed: self.missed, others }
    }
}
