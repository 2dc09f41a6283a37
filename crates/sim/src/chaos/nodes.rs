//! What goes wrong with nodes, beside what goes wrong elsewhere.

use super::{crash, disk_full, while_it_lasts};
use crate::seed::World;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sluice_run::simulation;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Makes trouble for nodes while programs work, if there are any; what it returns tells that it is over.
pub fn start(world: &Arc<World>, seed: u64) -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(world.node_hosts().is_empty()));
    if !over.load(Ordering::SeqCst) {
        let (world, over) = (world.clone(), over.clone());
        simulation::start(0, "trouble of nodes", move || {
            run(&world, &mut SmallRng::seed_from_u64(seed));
            over.store(true, Ordering::SeqCst);
        });
    }
    over
}

fn run(world: &Arc<World>, rng: &mut SmallRng) {
    while world.has_work() {
        simulation::sleep(Duration::from_millis(rng.random_range(200..5000)));
        let node = rng.random_range(world.node_hosts());
        let host = &world.hosts[node];
        match rng.random_range(0..13) {
            0 | 1 => crash(world, node, rng, false),
            2 => crash(world, node, rng, true),
            3 => {
                world.trace(|| format!("# host {node} is told to end"));
                world.end_node(node);
                simulation::sleep(while_it_lasts(rng));
                world.trace(|| format!("# host {node} starts again"));
                world.start(node);
            }
            4 | 5 => part(world, node, 0, rng),
            6 => part(world, node, rng.random_range(1..=world.mounts()), rng),
            7 | 8 => {
                let segments = host.rot(rng);
                world.trace(|| format!("# the disk of host {node} rots in {segments} places"));
            }
            9 => disk_full(world, node, rng),
            10 => {
                world.trace(|| format!("# the cache disk of host {node} cannot be read"));
                host.break_cache(true);
                simulation::sleep(while_it_lasts(rng));
                host.break_cache(false);
            }
            _ => world.drain(node, rng.random_ratio(1, 2)),
        }
        world.restart_failed(world.node_hosts());
    }
    // What has rotted stays so.
    if rng.random_ratio(1, 2) {
        let node = rng.random_range(world.node_hosts());
        let segments = world.hosts[node].rot(rng);
        world.trace(|| format!("# the disk of host {node} rots in {segments} places"));
    }
}

/// Parts a node from another host.
fn part(world: &World, node: usize, other: usize, rng: &mut SmallRng) {
    let processes = (world.hosts[node].process, world.hosts[other].process);
    world.trace(|| format!("# host {node} and host {other} are parted"));
    simulation::part(processes.0, processes.1);
    simulation::sleep(while_it_lasts(rng));
    world.trace(|| format!("# host {node} and host {other} are no longer parted"));
    simulation::heal(processes.0, processes.1);
}
