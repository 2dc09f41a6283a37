//! The nodes of a world: what an operator does with them, and what is demanded of the group at the end.

use super::{Role, World, held};
use crate::hosts;
use sluice_node::{State, message};
use sluice_object::backend::RequestKind;
use sluice_run::simulation;
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

/// How long an operator waits for a node or for the server.
const PATIENCE: Duration = Duration::from_secs(6);

impl World {
    fn node(&self, host: usize) -> Option<(usize, Arc<hosts::Node>)> {
        let Role::Node(at) = self.role(host) else { return None };
        Some((at, held(&self.lent[at]).clone()?))
    }

    /// Ends the process of a node in order, if that can be had.
    pub fn end_node(&self, host: usize) {
        if let Some((_, node)) = self.node(host) {
            self.within(host, PATIENCE, move || node.end());
        }
        self.kill(host, None);
    }

    /// Has nothing more placed with a node, or does so again.
    pub fn drain(self: &Arc<Self>, host: usize, drains: bool) {
        let Some((at, node)) = self.node(host) else { return };
        // Without an answer nobody ever knows: a request may arrive later than one that is sent after it.
        let known = held(&self.drained)[at].take();
        let world = self.clone();
        self.within(host, PATIENCE, move || {
            let (client, name) = (&node.membership.client, &node.membership.join.name);
            let body = message::encode_drain(name, drains);
            let answer = simulation::block_on(client.call(message::DRAIN, body, PATIENCE));
            world.trace(|| format!("# {name} is drained: {drains}, {:?}", answer.as_ref().err()));
            if answer.is_ok() && known.is_some() {
                held(&world.drained)[at] = Some(drains);
            }
        });
    }

    /// All nodes are members, drained or not as the server was told last, and everybody knows the same list.
    pub(super) fn unsettled_group(&self) -> Option<String> {
        let mut lists = Vec::new();
        for host in self.node_hosts() {
            let Some((_, node)) = self.node(host) else { return Some(format!("the node of host {host} does not run")) };
            if let Some(silent) = node.membership.silence() {
                return Some(format!("the server has not confirmed the node of host {host} for {silent:?}"));
            }
            lists.push((host, node.membership.group.members()));
        }
        let mounted = self.mounted.iter().enumerate();
        lists.extend(mounted.filter_map(|(at, mount)| {
            let mount = held(mount).clone()?;
            Some((at + 1, mount.group.0.members()))
        }));
        let (_, first) = lists.first()?;
        if let Some((host, other)) = lists.iter().find(|(_, other)| other != first) {
            return Some(format!(
                "host {host} knows another list of nodes: {:?}, not {:?}",
                other.list(),
                first.list()
            ));
        }
        let drained = held(&self.drained).clone();
        for (host, drained) in self.node_hosts().zip(drained) {
            let Some(member) = first.get(&hosts::name(&self.hosts[host])) else {
                return Some(format!("the node of host {host} is no member"));
            };
            if drained.is_some_and(|drained| drained != (member.state == State::Draining)) {
                return Some(format!("the node of host {host} is {:?}, not as it was told", member.state));
            }
        }
        (first.list().len() != self.lent.len()).then(|| format!("{} nodes are members", first.list().len()))
    }

    /// Segments that nodes have found damaged on their disks.
    pub(super) fn rotten(&self) -> u64 {
        let nodes = self.node_hosts().filter_map(|host| self.node(host));
        nodes.map(|(_, node)| node.node.cache().stats().corrupt_segments).sum()
    }

    /// When nothing is wrong, nodes answer every read of a mount, unless the disk of one is found damaged: more than `rotten` before.
    pub(super) fn judge_nodes(&self, mount: usize, rotten: u64) {
        let Some(mount) = held(&self.mounted[mount]).clone() else { return };
        let asked = mount.vfs.store_stats().of(RequestKind::Get).requests;
        self.trace(|| format!("# {:?}, {asked} reads from the store", mount.group.0.stats()));
        if asked == 0 || !mount.group.0.members().has_owners() {
            return;
        }
        // A slot may be given away after its bytes failed and before the disk is looked at: then nothing is found there.
        let flipped: u64 = self.node_hosts().map(|host| self.hosts[host].rotten.load(SeqCst)).sum();
        if flipped > self.rotten() {
            return;
        }
        let until = simulation::now() + PATIENCE;
        while self.rotten() <= rotten {
            if simulation::now() > until {
                simulation::fail(format!("{asked} reads went to the store, though all nodes are well"));
            }
            simulation::sleep(Duration::from_millis(100));
        }
    }
}
