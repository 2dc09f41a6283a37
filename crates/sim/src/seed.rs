//! One seed: the world that it makes, from its beginning to the last look.

mod group;

use crate::{
    chaos,
    hosts::{self, Host, Mount, Node, SERVER, Server},
    oracle::{Oracle, Tick},
    program::Program,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sluice_base::{Errno, Ino};
use sluice_meta::fsck::Problem;
use sluice_object::{FaultyBackend, MemoryBackend};
use sluice_run::simulation::{self, Outcome};
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// What all programs of one mount do together.
const WORK: usize = 30;
/// A seed that takes more is stuck.
const STEPS_MAX: u64 = 200_000;
/// How long after the last trouble everything has to be quiet again: leases, retries and their longest pauses.
const SETTLED: Duration = Duration::from_secs(400);

/// What a seed came to.
pub struct Told {
    /// `Err`: what went wrong.
    pub result: Result<(), String>,
    /// The number of steps, and what tells two runs apart.
    pub steps: u64,
    /// Differs when anything differed.
    pub trace: u64,
    /// Virtual time.
    pub time: Duration,
}

/// What the process of a host is, with its number among those.
enum Role {
    Server,
    Mount(usize),
    Node(usize),
}

/// What the threads of a simulation share. Its locks are never held while another thread runs.
pub struct World {
    /// The server's host, then the mounts', with one more for the end, then the nodes'.
    pub hosts: Vec<Arc<Host>>,
    pub backend: Arc<FaultyBackend<MemoryBackend>>,
    oracle: Mutex<Oracle>,
    mounted: Vec<Mutex<Option<Arc<Mount>>>>,
    serving: Mutex<Option<Arc<Server>>>,
    lent: Vec<Mutex<Option<Arc<Node>>>>,
    /// Whether nothing is placed with a node, if that is certain.
    drained: Mutex<Vec<Option<bool>>>,
    work: Vec<AtomicUsize>,
    busy: Vec<AtomicUsize>,
    starts: AtomicUsize,
    calm: AtomicBool,
    traced: bool,
    seed: u64,
}

/// Runs `seed`; with `traced` every step of programs and of chaos is told on standard error.
pub fn run(seed: u64, traced: bool) -> Told {
    let Outcome { result, steps, trace, time } = simulation::run(seed, STEPS_MAX, move || whole(seed, traced));
    Told { result, steps, trace, time }
}

fn whole(seed: u64, traced: bool) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mounts, nodes) = (rng.random_range(2..=3), [0, 1, 1, 2, 2, 3][rng.random_range(0..6)]);
    let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), seed));
    // So few slots that they are used again; some mounts have no cache.
    let mut slots = vec![12];
    slots.extend((0..mounts + 1).map(|_| if rng.random_ratio(1, 3) { 0 } else { 12 }));
    slots.extend((0..nodes).map(|_| 3));
    let host = |(process, slots)| Arc::new(Host::new(process, seed, slots, backend.clone()));
    let hosts: Vec<_> = (SERVER..).zip(slots).map(host).collect();
    let world = Arc::new(World {
        backend: backend.clone(),
        oracle: Mutex::default(),
        mounted: (0..mounts + 1).map(|_| Mutex::default()).collect(),
        serving: Mutex::default(),
        drained: Mutex::new(vec![Some(false); nodes]),
        lent: (0..nodes).map(|_| Mutex::default()).collect(),
        work: (0..mounts).map(|_| AtomicUsize::new(WORK)).chain([AtomicUsize::new(0)]).collect(),
        busy: (0..mounts + 1).map(|_| AtomicUsize::new(0)).collect(),
        starts: AtomicUsize::new(0),
        calm: AtomicBool::new(false),
        hosts,
        traced,
        seed,
    });
    for host in &world.hosts[..mounts + 2] {
        host.begin().unwrap_or_else(|error| simulation::fail(format!("a new journal: {error:#}")));
    }
    (0..=mounts).chain(world.node_hosts()).for_each(|host| world.start(host));
    chaos::run(&world, &mut rng);
    world.settle();
    world.look();
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl World {
    /// Mounts that programs work on.
    pub fn mounts(&self) -> usize {
        self.mounted.len() - 1
    }

    /// The hosts of nodes.
    pub fn node_hosts(&self) -> Range<usize> {
        self.mounted.len() + 1..self.hosts.len()
    }

    fn role(&self, host: usize) -> Role {
        match host.checked_sub(1) {
            None => Role::Server,
            Some(at) if at < self.mounted.len() => Role::Mount(at),
            Some(at) => Role::Node(at - self.mounted.len()),
        }
    }

    pub fn oracle<R>(&self, work: impl FnOnce(&mut Oracle) -> R) -> R {
        work(&mut held(&self.oracle))
    }

    pub fn trace(&self, line: impl FnOnce() -> String) {
        if self.traced {
            eprintln!("{:12.6} {}", simulation::now().as_secs_f64(), line());
        }
    }

    /// Ends the simulation at a wrong answer.
    pub fn judged(&self, judged: Result<(), String>) {
        if let Err(why) = judged {
            simulation::fail(why);
        }
    }

    /// An error is an answer only while something is wrong with the world.
    pub fn excused(&self, what: &str, errno: Errno) {
        if self.calm.load(SeqCst) {
            simulation::fail(format!("{what} failed, though nothing was wrong any more: {errno}"));
        }
    }

    /// A tick that lies before everything.
    pub fn before(&self) -> Tick {
        0
    }

    /// Takes one piece of the work of a mount.
    pub fn take_work(&self, mount: usize) -> bool {
        self.work[mount].fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    /// Whether anybody works.
    pub fn has_work(&self) -> bool {
        self.work.iter().any(|left| left.load(SeqCst) > 0)
    }

    /// The only one who writes a file.
    pub fn take_file(&self, ino: Ino, mount: usize) -> bool {
        self.oracle(|oracle| {
            let file = oracle.files.entry(ino).or_default();
            let free = file.writer.is_none();
            if free {
                file.writer = Some(mount);
            }
            free
        })
    }

    pub fn leave_file(&self, ino: Ino) {
        self.oracle(|oracle| oracle.files.entry(ino).or_default().writer = None);
    }

    /// The files that programs of a mount have taken.
    pub fn files_of(&self, mount: usize) -> Vec<Ino> {
        self.oracle(|oracle| {
            let taken = oracle.files.iter().filter(|(_, file)| file.writer == Some(mount));
            taken.map(|(ino, _)| *ino).collect()
        })
    }

    pub fn kill(&self, host: usize, power: Option<u64>) {
        self.hosts[host].kill(power);
        // Never dropped: nothing of a killed process runs, no destructor either.
        match self.role(host) {
            Role::Server => std::mem::forget(held(&self.serving).take()),
            Role::Mount(mount) => {
                std::mem::forget(held(&self.mounted[mount]).take());
                self.busy[mount].store(0, SeqCst);
                if power.is_some() {
                    self.oracle(|oracle| oracle.power_lost(mount));
                }
            }
            Role::Node(node) => std::mem::forget(held(&self.lent[node]).take()),
        }
    }

    /// Starts the process of a host, unless it runs.
    pub fn start(self: &Arc<Self>, host: usize) {
        if self.hosts[host].alive.swap(true, SeqCst) {
            return;
        }
        let world = self.clone();
        let nth = self.starts.fetch_add(1, SeqCst);
        simulation::start(self.hosts[host].process, &format!("host {host}"), move || world.process(host, nth));
    }

    /// Processes that ended because something was wrong are started again.
    pub fn restart_failed(self: &Arc<Self>, hosts: impl IntoIterator<Item = usize>) {
        for host in hosts {
            if !self.hosts[host].alive.load(SeqCst) {
                self.kill(host, None);
                self.start(host);
            }
        }
    }

    fn process(self: Arc<Self>, host: usize, nth: usize) {
        let of = &self.hosts[host];
        let started = match self.role(host) {
            Role::Server => hosts::serve(of).map(|server| *held(&self.serving) = Some(server)),
            Role::Mount(at) => hosts::mount(of).map(|mount| self.mounted(at, nth, mount)),
            Role::Node(at) => hosts::lend(of).map(|node| *held(&self.lent[at]) = Some(node)),
        };
        if let Err(error) = started {
            self.trace(|| format!("host {host} does not start: {error:#}"));
            if self.calm.load(SeqCst) {
                simulation::fail(format!("host {host} does not start, though nothing is wrong: {error:#}"));
            }
            self.hosts[host].alive.store(false, SeqCst);
        }
    }

    fn mounted(self: &Arc<Self>, at: usize, nth: usize, mount: Arc<Mount>) {
        self.trace(|| format!("mount {at} is there"));
        let programs = if at < self.mounts() { 3 } else { 0 };
        let program = |number: usize| Program {
            world: self.clone(),
            at,
            mount: mount.clone(),
            rng: SmallRng::seed_from_u64(self.seed ^ (nth as u64 + 1) << 20 ^ (number as u64) << 50),
            tag: format!("t{at}-{nth}-{number}"),
        };
        program(9).take_over();
        *held(&self.mounted[at]) = Some(mount.clone());
        self.busy[at].store(programs, SeqCst);
        for number in 0..programs {
            let (program, world) = (program(number), self.clone());
            let name = program.tag.clone();
            simulation::start(self.hosts[at + 1].process, &name, move || {
                if number == 2 {
                    program.watch()
                } else {
                    program.run()
                }
                world.busy[at].fetch_sub(1, SeqCst);
            });
        }
    }

    fn on(self: &Arc<Self>, at: usize) -> Option<Program> {
        let mount = held(&self.mounted[at]).clone()?;
        let (world, rng) = (self.clone(), SmallRng::seed_from_u64(self.seed));
        Some(Program { world, at, mount, rng, tag: format!("end{at}") })
    }

    /// Without trouble everything comes to rest: all processes run, all that was written is published and stored.
    fn settle(self: &Arc<Self>) {
        self.trace(|| "# from here on nothing is wrong".into());
        let until = simulation::now() + SETTLED;
        loop {
            self.restart_failed((0..=self.mounts()).chain(self.node_hosts()));
            let waits = self.unsettled();
            if waits.is_none() && self.calm.load(SeqCst) {
                return;
            }
            if waits.is_none() {
                self.calm.store(true, SeqCst);
                self.publish_rest();
            }
            if simulation::now() > until {
                simulation::fail(format!("not settled: {}", waits.unwrap_or_default()));
            }
            simulation::sleep(Duration::from_millis(500));
        }
    }

    fn unsettled(self: &Arc<Self>) -> Option<String> {
        let server = held(&self.serving).clone();
        let Some(server) = server else { return Some("the server does not run".into()) };
        if server.vfs.dirty_totals().0 > 0 {
            return Some("the server has bytes that are not stored".into());
        }
        for at in 0..self.mounts() {
            let Some(mount) = held(&self.mounted[at]).clone() else { return Some(format!("mount {at} does not run")) };
            if self.busy[at].load(SeqCst) > 0 {
                return Some(format!("programs of mount {at} are not done"));
            }
            if mount.vfs.dirty_totals().0 > 0 {
                return Some(format!("mount {at} has bytes that are not stored"));
            }
        }
        self.unsettled_group()
    }

    fn publish_rest(self: &Arc<Self>) {
        for at in 0..self.mounts() {
            // As the mount's process: what waits there belongs to it.
            self.as_process(at, |program| program.take_over());
        }
    }

    /// Runs `work` in the process of a mount, and waits for it.
    fn as_process(self: &Arc<Self>, at: usize, work: impl FnOnce(&Program) + Send + 'static) {
        let Some(program) = self.on(at) else { return };
        if !self.within(at + 1, SETTLED, move || work(&program)) {
            simulation::fail(format!("mount {at} does not answer, though nothing is wrong"));
        }
    }

    /// Runs `work` in the process of a host; whether it ended in `time`.
    fn within(&self, host: usize, time: Duration, work: impl FnOnce() + Send + 'static) -> bool {
        let done = Arc::new(AtomicBool::new(false));
        let tell = done.clone();
        simulation::start(self.hosts[host].process, "end", move || {
            work();
            tell.store(true, SeqCst);
        });
        let until = simulation::now() + time;
        while !done.load(SeqCst) && simulation::now() <= until {
            simulation::sleep(Duration::from_millis(10));
        }
        done.load(SeqCst)
    }

    /// The last look: every mount sees the same, the metadata is sound, and a new mount reads all from the store.
    fn look(self: &Arc<Self>) {
        let seen: Vec<_> = (0..self.mounts()).map(|at| self.tree(at)).collect();
        let server = held(&self.serving).clone().expect("it runs");
        let report = sluice_meta::fsck::check(server.namespace.store(), &mut |_| {});
        match report {
            Ok(report) => {
                // Bytes that were never synced may have gone with the power, and their extents not.
                let lost = |ino: Ino| self.oracle(|oracle| oracle.may_be_damaged(ino));
                let wrong = report.findings.iter().map(|finding| &finding.problem);
                let wrong: Vec<_> =
                    wrong.filter(|problem| !matches!(problem, Problem::LostData { ino, .. } if lost(*ino))).collect();
                if !wrong.is_empty() {
                    simulation::fail(format!("the metadata is not sound: {wrong:?}"));
                }
            }
            Err(error) => simulation::fail(format!("the metadata cannot be checked: {error}")),
        }
        let new = self.mounts();
        (1..=new).for_each(|host| self.kill(host, None));
        let rotten = self.rotten();
        self.start(new + 1);
        let until = simulation::now() + SETTLED;
        while held(&self.mounted[new]).is_none() {
            simulation::sleep(Duration::from_millis(50));
            if simulation::now() > until {
                simulation::fail("a new mount does not start, though nothing is wrong".into());
            }
        }
        let last = self.tree(new);
        // What was lost with the power is looked for everywhere.
        if last.iter().all(|entry| entry.bytes.is_some()) {
            self.judge_nodes(new, rotten);
        }
        for (at, tree) in seen.iter().enumerate() {
            for (one, other) in tree.iter().zip(&last) {
                if one != other {
                    simulation::fail(format!(
                        "mount {at} sees {} otherwise than a new one, which has {}",
                        show(one),
                        show(other)
                    ));
                }
            }
            if tree.len() != last.len() {
                simulation::fail(format!("mount {at} sees {} names, a new one {}", tree.len(), last.len()));
            }
        }
    }

    fn tree(self: &Arc<Self>, at: usize) -> Vec<Entry> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let out = found.clone();
        self.as_process(at, move |program| {
            program.list();
            let mut names = program.mount.list().unwrap_or_default();
            names.sort();
            for (name, ino) in names {
                let bytes = program.whole(ino);
                if let Err(errno) = &bytes
                    && !program.world.oracle(|oracle| oracle.may_be_damaged(ino))
                {
                    simulation::fail(format!("mount {at}: {name} ({ino}) cannot be read at the end: {errno}"));
                }
                held(&out).push(Entry { name, ino, bytes: bytes.ok() });
            }
        });
        std::mem::take(&mut *held(&found))
    }
}

/// One name at the end; without bytes if they were lost with the power.
#[derive(PartialEq)]
struct Entry {
    name: String,
    ino: Ino,
    bytes: Option<Vec<u8>>,
}

fn show(entry: &Entry) -> String {
    format!("{} ({}, {:?} bytes)", entry.name, entry.ino, entry.bytes.as_ref().map(Vec::len))
}
