//! Mounts' metadata joined to a real server by calls, over logs in memory.

use futures::future::BoxFuture;
use parking_lot::Mutex;
use sluice_base::{Clock, Ino, ManualClock, SeededEntropy, Seq};
use sluice_meta::{
    Caller, DataChange, Namespace, NewNode, SizeChange,
    extent::FileExtents,
    records::mode,
    rpc::{
        Event, LockKind, LockMode, LockRange, Outcome, Peer, Reply, Server, Settings, Token,
        message::{Method, Push},
    },
    store::{Log, MemoryLog, MemoryTables, MetaStore, Options, replay},
};
use sluice_vfs::{
    HandleId, Metadata,
    remote::{Link, LinkError, LockCall, Remote, take_up},
    waiting,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// The server, its log, and who is connected to it.
pub struct Rig {
    server: Mutex<Arc<Server>>,
    log: Arc<MemoryLog>,
    pub clock: Arc<ManualClock>,
    entropy: SeededEntropy,
    replies: Mutex<HashMap<Token, Reply>>,
    mounts: Mutex<Vec<(u64, Weak<Remote>)>>,
    asked: AtomicU64,
    /// Counts starts of the server: connections of an earlier one are gone.
    start: AtomicU64,
}

/// The tables of a log, brought up to its end.
fn replayed(log: &Arc<MemoryLog>) -> MetaStore {
    let tables = MemoryTables::default();
    for (seq, _, record) in log.records() {
        replay(&tables, seq, &record, &mut |_, _, _| {}).unwrap();
    }
    MetaStore::new(Arc::new(tables), log.clone(), log.last(), Options::default())
}

fn serve(log: &Arc<MemoryLog>, clock: &Arc<ManualClock>) -> Arc<Server> {
    let names = Namespace::new(Arc::new(replayed(log)), clock.clone());
    names.format(CALLER).unwrap();
    Arc::new(Server::open(Arc::new(names), Settings::default(), clock.monotonic()).unwrap())
}

impl Rig {
    pub fn new() -> Arc<Self> {
        let (log, clock) = (Arc::new(MemoryLog::default()), Arc::new(ManualClock::default()));
        let server = Mutex::new(serve(&log, &clock));
        let (replies, mounts, asked, start) = Default::default();
        let entropy = SeededEntropy::new(1);
        Arc::new(Self { server, log, clock, entropy, replies, mounts, asked, start })
    }

    /// The server is killed and started again.
    pub fn restart(&self) {
        self.start.fetch_add(1, SeqCst);
        *self.server.lock() = serve(&self.log, &self.clock);
    }

    /// Its host loses the power, and what was not synced.
    pub fn lose_power(&self) {
        self.log.lose_power();
        self.restart();
    }

    /// A copy of its log as it is now.
    pub fn server_copy(&self) -> Arc<MemoryLog> {
        copy(&self.log)
    }

    /// The server is gone with all that it has, and the volume is recovered as it was then, as a line of its own.
    pub fn recover(&self, log: &Arc<MemoryLog>, line: u64) {
        Namespace::new(Arc::new(replayed(log)), self.clock.clone()).begin_line(line).unwrap();
        self.start.fetch_add(1, SeqCst);
        *self.server.lock() = serve(log, &self.clock);
    }

    pub fn synced(&self) -> Seq {
        Log::synced(&*self.log)
    }

    pub fn written(&self) -> Seq {
        self.log.last()
    }

    /// Requests so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }

    pub fn check(&self) {
        let server = self.server.lock().clone();
        let mut problems = Vec::new();
        let checked =
            sluice_meta::fsck::check(server.namespace().store(), &mut |found| problems.push(format!("{found:?}")));
        assert!(checked.unwrap().is_clean(), "{problems:?}");
    }

    pub fn mount(self: &Arc<Self>, name: &str) -> Mount {
        self.mount_over(name, Arc::default(), 1, None).unwrap()
    }

    /// A mount's process is killed, and it mounts again over its log.
    pub fn mount_killed(self: &Arc<Self>, mount: Mount) -> Mount {
        self.mount_over("again", mount.log, mount.boot, None).unwrap()
    }

    /// As [`Rig::mount_killed`], but the process is killed once more before it has the answer to its first request.
    pub fn mount_killed_twice(self: &Arc<Self>, mount: &Mount) {
        let fault: Fault = Box::new(|_| {});
        assert!(self.mount_over("killed", mount.log.clone(), mount.boot, Some(fault)).is_err());
    }

    /// A mount's host loses its power, and it mounts again over what is left of its log.
    pub fn mount_lost_power(self: &Arc<Self>, mount: Mount) -> Mount {
        mount.log.lose_power();
        self.mount_over("again", mount.log, mount.boot + 1, None).unwrap()
    }

    /// Mounts over a copy of a mount's log.
    pub fn mount_of_copy(self: &Arc<Self>, copy: &Arc<MemoryLog>) -> sluice_meta::Result<Mount> {
        self.mount_over("copy", copy.clone(), 1, None)
    }

    fn link(self: &Arc<Self>, fault: Option<Fault>) -> Arc<Loopback> {
        Arc::new(Loopback {
            rig: self.clone(),
            bound: Mutex::default(),
            fault: Mutex::new(fault),
            lost: Mutex::default(),
            before: Mutex::default(),
            held: Mutex::default(),
            late: Mutex::default(),
        })
    }

    /// Mounts over a log; `fault` happens instead of the first answer.
    fn mount_over(
        self: &Arc<Self>,
        name: &str,
        log: Arc<MemoryLog>,
        boot: u8,
        fault: Option<Fault>,
    ) -> sluice_meta::Result<Mount> {
        let link = self.link(fault);
        let own = Arc::new(replayed(&log));
        let session = take_up(&*link, &own, name.as_bytes(), &self.entropy)?;
        let id = session.id.0;
        let remote = Arc::new(Remote::new(link.clone(), session, own, self.clock.clone(), [boot; 16])?);
        Ok(self.is_mounted(id, Mount { remote, link, log, boot }))
    }

    /// Another process goes on with a mount.
    pub fn mount_handed_over(self: &Arc<Self>, mount: Mount) -> Mount {
        mount.run(Remote::settle_all).unwrap();
        let state = mount.remote.fall_silent(Duration::ZERO).expect("it is settled").state().clone();
        let (id, Mount { log, boot, .. }) = (state.session.0, mount);
        let link = self.link(None);
        let own = Arc::new(replayed(&log));
        let remote = Arc::new(Remote::inherit(link.clone(), state, own, self.clock.clone(), [boot; 16]).unwrap());
        self.is_mounted(id, Mount { remote, link, log, boot })
    }

    fn is_mounted(&self, id: u64, mount: Mount) -> Mount {
        let mut mounts = self.mounts.lock();
        mounts.retain(|(of, _)| *of != id);
        mounts.push((id, Arc::downgrade(&mount.remote)));
        mount
    }

    /// Pushes go and are acked, answers that may go are kept for whoever asked.
    fn poll(&self, server: &Server) {
        loop {
            let events = server.poll(self.clock.monotonic());
            if events.is_empty() {
                return;
            }
            events.into_iter().for_each(|event| self.event(server, event));
        }
    }

    fn event(&self, server: &Server, event: Event) {
        match event {
            Event::Reply { token, reply, .. } => drop(self.replies.lock().insert(token, reply)),
            Event::Push { peer, body } => {
                let to =
                    self.mounts.lock().iter().find(|(id, _)| *id == peer.session.0).and_then(|(_, to)| to.upgrade());
                if let (Some(to), Ok(push)) = (to, Push::decode(&body)) {
                    to.take_push(push.number, &push.items);
                    server.acked(self.clock.monotonic(), peer, push.number);
                }
            }
            Event::Expired(_) | Event::Ended(_) | Event::Fenced(_) => {}
        }
    }
}

type Fault = Box<dyn FnOnce(&Rig) + Send>;

/// A mount's way to the server.
pub struct Loopback {
    rig: Arc<Rig>,
    /// Whose the connection is, and of which start of the server.
    bound: Mutex<(u64, Option<Peer>)>,
    fault: Mutex<Option<Fault>>,
    /// The next answer to a request of this method is lost.
    lost: Mutex<Option<u16>>,
    /// Happens instead of the next request of a method.
    before: Mutex<Option<(u16, Fault)>>,
    /// Happens before the next request of a method goes.
    held: Mutex<Option<(u16, Fault)>>,
    late: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Loopback {
    /// The next answer is lost, and then something happens.
    pub fn lose_answer_and(&self, fault: impl FnOnce(&Rig) + Send + 'static) {
        *self.fault.lock() = Some(Box::new(fault));
    }

    /// The next answer to a request of a method is lost.
    pub fn lose_answer_of(&self, method: Method) {
        *self.lost.lock() = Some(method.number());
    }

    /// The next request of a method is lost on its way, and something happens.
    pub fn lose_request_and(&self, method: Method, fault: impl FnOnce(&Rig) + Send + 'static) {
        *self.before.lock() = Some((method.number(), Box::new(fault)));
    }

    /// The next request of a method is slow: something happens before it goes.
    pub fn hold_request_and(&self, method: Method, work: impl FnOnce(&Rig) + Send + 'static) {
        *self.held.lock() = Some((method.number(), Box::new(work)));
    }

    /// The next answer is late: something happens after it was made and before it is here.
    pub fn before_the_answer(&self, work: impl FnOnce() + Send + 'static) {
        *self.late.lock() = Some(Box::new(work));
    }
}

impl Link for Loopback {
    fn call(&self, method: u16, body: Vec<u8>) -> Result<Vec<u8>, LinkError> {
        let rig = &self.rig;
        rig.asked.fetch_add(1, SeqCst);
        let before = self.before.lock().take_if(|(of, _)| *of == method);
        if let Some((_, fault)) = before {
            fault(rig);
            return Err(LinkError::Lost("as told".into()));
        }
        let held = self.held.lock().take_if(|(of, _)| *of == method);
        held.into_iter().for_each(|(_, work)| work(rig));
        let server = rig.server.lock().clone();
        let start = rig.start.load(SeqCst);
        let peer = Some(*self.bound.lock()).filter(|(of, _)| *of == start).and_then(|(_, peer)| peer);
        let outcome = server.handle(rig.clock.monotonic(), peer, method, &body);
        rig.poll(&server);
        let reply = match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Wait(token) => rig.replies.lock().remove(&token).expect("nobody waits for ever here"),
        };
        if let Some(peer) = reply.bind {
            *self.bound.lock() = (start, reply.bind);
            server.connected(peer);
            rig.poll(&server);
        }
        rig.log.ensure_synced(reply.durable).unwrap();
        // It may ask too.
        let late = self.late.lock().take();
        late.into_iter().for_each(|work| work());
        if let Some(fault) = self.fault.lock().take() {
            fault(rig);
            return Err(LinkError::Lost("as told".into()));
        }
        if self.lost.lock().take_if(|of| *of == method).is_some() {
            return Err(LinkError::Lost("as told".into()));
        }
        Ok(reply.body)
    }

    fn call_later(&self, method: u16, body: Vec<u8>, _: Duration) -> BoxFuture<'static, Result<Vec<u8>, LinkError>> {
        let answer = self.call(method, body);
        Box::pin(async move { answer })
    }

    fn pause(&self) {}
}

/// Writes a small file as a whole, which stays open.
pub fn write_only(remote: &Remote, ino: Ino, bytes: &[u8]) {
    try_write(remote, ino, bytes).unwrap();
}

fn try_write(remote: &Remote, ino: Ino, bytes: &[u8]) -> sluice_meta::Result<()> {
    let size = SizeChange::Exactly(bytes.len() as u64);
    let change = DataChange { body: Some(Some(bytes)), size, ..DataChange::default() };
    waiting(|| remote.change_data(ino, &mut FileExtents::default(), &change))
}

/// A copy of a log as it is now.
pub fn copy(log: &MemoryLog) -> Arc<MemoryLog> {
    let copy = MemoryLog::default();
    for (_, class, record) in log.records() {
        copy.append(class, &[&record]).unwrap();
    }
    Arc::new(copy)
}

/// A mount's metadata.
pub struct Mount {
    pub remote: Arc<Remote>,
    pub link: Arc<Loopback>,
    /// Its own.
    pub log: Arc<MemoryLog>,
    /// Of its host.
    boot: u8,
}

impl Mount {
    /// Runs an operation that may ask the server.
    pub fn run<T>(&self, operation: impl FnOnce(&Remote) -> T) -> T {
        waiting(|| operation(&self.remote))
    }

    /// A copy of its log as it is now.
    pub fn copy(&self) -> Arc<MemoryLog> {
        copy(&self.log)
    }

    /// What is done once a second.
    pub fn keep(&self) {
        self.run(Remote::keep).unwrap();
    }

    fn make(&self, dir: Ino, name: &str, mode: u32) -> Ino {
        let node = NewNode { mode, rdev: 0, target: b"" };
        self.run(|remote| remote.create(dir, name.as_bytes(), node, CALLER)).unwrap().ino
    }

    pub fn create(&self, dir: Ino, name: &str) -> Ino {
        self.make(dir, name, mode::REGULAR | 0o644)
    }

    pub fn mkdir(&self, dir: Ino, name: &str) -> Ino {
        self.make(dir, name, mode::DIRECTORY | 0o755)
    }

    /// What a name stands for, or why not.
    pub fn find(&self, dir: Ino, name: &str) -> Result<Ino, String> {
        let found = self.run(|remote| remote.lookup(dir, name.as_bytes()));
        found.map(|attr| attr.ino).map_err(|error| error.to_string())
    }

    /// Writes a small file as a whole, and closes it.
    pub fn write(&self, ino: Ino, bytes: &[u8]) {
        self.write_only(ino, bytes);
        self.run(|remote| remote.publish(ino)).unwrap();
    }

    /// As [`Mount::write_only`], which may fail.
    pub fn try_write(&self, ino: Ino, bytes: &[u8]) -> sluice_meta::Result<()> {
        try_write(&self.remote, ino, bytes)
    }

    /// As [`Mount::write`], and it stays open.
    pub fn write_only(&self, ino: Ino, bytes: &[u8]) {
        write_only(&self.remote, ino, bytes);
    }

    /// A program locks a whole file, through a handle that is its alone; whether it gets the lock at once.
    pub fn lock(&self, ino: Ino) -> bool {
        let handle = HandleId(ino.0);
        let (kind, mode, range) = (LockKind::Record, LockMode::Exclusive, LockRange::WHOLE);
        let call = LockCall { ino, handle, kind, owner: 1, range, mode, pid: 1, call: ino.0 };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.remote.clone().lock(call, false, Box::pin(std::future::pending()))).is_ok()
    }

    pub fn bytes(&self, ino: Ino) -> Vec<u8> {
        self.run(|remote| remote.body(ino)).unwrap().expect("it has a body").to_vec()
    }
}
