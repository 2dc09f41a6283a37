//! What goes wrong, and when.

mod nodes;

use crate::{
    hosts::{Failing, SERVER},
    seed::World,
};
use rand::{Rng, rngs::SmallRng};
use sluice_base::disk::Operation;
use sluice_object::backend::Faults;
use sluice_run::simulation;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How long a trouble lasts.
fn while_it_lasts(rng: &mut SmallRng) -> Duration {
    // Most are short; a few outlast a lease.
    let share = rng.random_range(0.0..1.0f64).powi(3);
    Duration::from_millis(50) + Duration::from_secs(35).mul_f64(share)
}

/// Makes trouble while programs work.
pub fn run(world: &Arc<World>, rng: &mut SmallRng) {
    let nodes = nodes::start(world, rng.random());
    while world.has_work() {
        simulation::sleep(Duration::from_millis(rng.random_range(50..2500)));
        let mount = rng.random_range(0..world.mounts());
        let process = world.hosts[mount + 1].process;
        match rng.random_range(0..16) {
            0 | 1 => {
                // What is slow is more likely to be on its way.
                simulation::set_latency(Duration::from_millis(rng.random_range(1..1000)));
                simulation::sleep(Duration::from_millis(rng.random_range(100..1500)));
                world.trace(|| format!("# the connection of mount {mount} is cut"));
                simulation::cut(SERVER, process);
                simulation::set_latency(Duration::from_millis(2));
            }
            2 | 3 => {
                world.trace(|| format!("# mount {mount} is parted from the server"));
                simulation::part(SERVER, process);
                simulation::sleep(while_it_lasts(rng));
                world.trace(|| format!("# mount {mount} is no longer parted"));
                simulation::heal(SERVER, process);
            }
            4 => simulation::set_latency(Duration::from_millis(rng.random_range(1..1500))),
            5 | 6 => crash(world, mount + 1, rng, false),
            7 | 12 => crash(world, mount + 1, rng, true),
            8 | 9 => crash(world, 0, rng, false),
            10 => store_away(world, rng),
            11 => disk_full(world, mount + 1, rng),
            _ => {
                let host = if rng.random_ratio(1, 3) { 0 } else { mount + 1 };
                disk_fails(world, host, rng);
            }
        }
        world.restart_failed(0..=world.mounts());
    }
    while !nodes.load(Ordering::SeqCst) {
        simulation::sleep(Duration::from_millis(100));
    }
    simulation::set_latency(Duration::from_millis(2));
    world.backend.set_down(false);
    world.backend.set_faults(Faults::default());
    world.hosts.iter().for_each(|host| host.limit_disk(u64::MAX));
}

fn crash(world: &Arc<World>, host: usize, rng: &mut SmallRng, power: bool) {
    world.trace(|| format!("# host {host} {}", if power { "loses its power" } else { "has its process killed" }));
    world.kill(host, power.then(|| rng.random()));
    simulation::sleep(while_it_lasts(rng));
    world.trace(|| format!("# host {host} starts again"));
    world.start(host);
}

fn store_away(world: &World, rng: &mut SmallRng) {
    if rng.random_bool(0.5) {
        world.trace(|| "# the store is down".into());
        world.backend.set_down(true);
        simulation::sleep(while_it_lasts(rng));
        world.backend.set_down(false);
    } else {
        world.trace(|| "# the store fails now and then".into());
        let (unavailable, lost_answer, truncated, flipped_bit, delay) = (80, 60, 60, 150, 200);
        let delay_max = Duration::from_secs(2);
        world.backend.set_faults(Faults { unavailable, lost_answer, truncated, flipped_bit, delay, delay_max });
        simulation::sleep(while_it_lasts(rng));
        world.backend.set_faults(Faults::default());
    }
    world.trace(|| "# the store is well".into());
}

fn disk_full(world: &World, host: usize, rng: &mut SmallRng) {
    world.trace(|| format!("# the disk of host {host} is full"));
    let host = &world.hosts[host];
    host.limit_disk(host.disk_used() + rng.random_range(0..4 << 20));
    simulation::sleep(while_it_lasts(rng));
    host.limit_disk(u64::MAX);
    world.trace(|| "# it has room again".into());
}

/// A disk gives errors, once or for a while. A journal whose disk has failed stops for good: its process is started again.
fn disk_fails(world: &Arc<World>, host: usize, rng: &mut SmallRng) {
    let failing = if rng.random_ratio(1, 2) { Failing::Journal } else { Failing::Cache };
    let operations = [Operation::Read, Operation::Write, Operation::Sync];
    let operation = operations[rng.random_range(0..operations.len())];
    let nth = rng.random_ratio(1, 2).then(|| rng.random_range(1..30));
    world.trace(|| {
        format!("# host {host}: {operation:?} of its {failing:?} fails{}", if nth.is_some() { " once" } else { "" })
    });
    world.hosts[host].fail_disk(failing, operation, nth);
    simulation::sleep(while_it_lasts(rng));
    world.hosts[host].plan.heal();
    world.trace(|| format!("# the disk of host {host} is well"));
    if failing == Failing::Journal {
        crash(world, host, rng, false);
    }
}
