//! The way to the server, and a mount's own part of the volume at work: with a mount on top, or to recover what one has left.

use super::{hostname, printable};
use crate::{
    config::VolumeConfig,
    lock::VolumeLock,
    output::note,
    reach::{START_TIME, addresses, reach, told_config},
    running::Running,
    tier::Tier,
    volume::{self, OpenOptions},
};
use anyhow::bail;
use futures::FutureExt;
use sluice_base::{Clock, OsEntropy, SessionId, SystemClock};
use sluice_join::{Callbacks, NetLink, NodesByThread, Peers, Replayed, Work};
use sluice_meta::store::MetaStore;
use sluice_net::{Client, ClientOptions};
use sluice_node::GroupOptions;
use sluice_run::task;
use sluice_vfs::{
    OpenState, Parts, Settings, Ship,
    remote::{self, Left, Remote, SessionState},
};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

/// Threads that wait for the server at once.
const WAITING_MAX: usize = 128;

/// What a mount of a served volume runs on.
pub struct Runtimes {
    pub io: Runtime,
    /// What comes from the server is handed on by one thread: where there are several, each frame wakes another one in vain.
    pub lanes: Runtime,
}

impl Runtimes {
    pub fn start() -> anyhow::Result<Self> {
        let builder = tokio::runtime::Builder::new_multi_thread;
        let io = builder()
            .worker_threads(2)
            .max_blocking_threads(WAITING_MAX)
            .thread_name("sluice-io")
            .enable_all()
            .build()?;
        let lanes = builder().worker_threads(1).thread_name("sluice-lane").enable_all().build()?;
        Ok(Self { io, lanes })
    }

    /// Waits for what is under way, not for long.
    pub fn shut_down(self) {
        self.io.shutdown_timeout(Duration::from_secs(1));
        self.lanes.shutdown_timeout(Duration::from_secs(1));
    }
}

/// The volume's server, which has let this process in.
pub struct Reached {
    pub client: Arc<Client>,
    pub callbacks: Arc<Callbacks>,
    pub config: VolumeConfig,
    pub clock: Arc<dyn Clock>,
}

impl Reached {
    /// Connects to the server at `meta` under `name`, and asks for its volume.
    pub fn connect(meta: &str, name: &str, runtimes: &Runtimes) -> anyhow::Result<Self> {
        let (clock, callbacks): (Arc<dyn Clock>, _) =
            (Arc::new(SystemClock::default()), Arc::new(Callbacks::default()));
        let client = Arc::new(runtimes.lanes.block_on(connect(meta, name, &callbacks, &clock))?);
        let config = runtimes.io.block_on(told_config(&client, meta))?;
        Ok(Self { client, callbacks, config, clock })
    }
}

async fn connect(meta: &str, name: &str, callbacks: &Arc<Callbacks>, clock: &Arc<dyn Clock>) -> anyhow::Result<Client> {
    let hello = Hello {
        peer: PeerKind::Mount,
        lane: LaneClass::Small,
        volume: None,
        session: None,
        name: printable(&format!("{}:{name}", hostname())),
    };
    let (found, entropy) = (addresses(meta).await?, Arc::new(OsEntropy));
    let client = Client::new(found, hello, callbacks.clone(), ClientOptions::default(), clock.clone(), entropy);
    reach(&client, meta, START_TIME).await?;
    Ok(client)
}

/// What programs have open, and the session of the process that has served the mount.
pub type Inherited = (OpenState, SessionState);

/// How the parts are opened.
pub struct Opening<'a> {
    /// The mount's own directory.
    pub dir: &'a Path,
    pub options: OpenOptions,
    pub upload_delay: Duration,
    pub tier: Tier,
    /// For people: what a new session is called.
    pub name: &'a str,
    /// Go on also when bytes are damaged that only the journal and the cache had: reads of them fail from then on.
    pub takes_damaged: bool,
    /// Of another process that has handed its mount over.
    pub inherited: Option<Inherited>,
}

/// A mount's own part of the volume, at work.
pub struct AtWork {
    pub running: Running,
    pub metadata: Arc<Remote>,
    pub session: SessionId,
    /// What is not published and not stored.
    pub own: Arc<MetaStore>,
}

impl AtWork {
    /// Replays the journal, goes on with its session or begins one, publishes what waits, and starts to store what is not stored.
    pub fn begin(opening: Opening<'_>, reached: &Reached, runtime: &Runtime, lock: VolumeLock) -> anyhow::Result<Self> {
        let Opening { dir, options, upload_delay, tier, name, takes_damaged, inherited } = opening;
        let Reached { client, config, clock, .. } = reached;
        let replayed =
            volume::replay(dir, config.id()?, &options, clock.clone(), None, |own| Ok(remote::unstored(own)?))?;
        let damaged = replayed.recovered.damaged_segments;
        if damaged > 0 && !takes_damaged {
            bail!(
                "{damaged} pieces of 32 KiB of what is not stored match neither the journal in {} nor the cache: if the cache \
                 was elsewhere, say --cache; else --accept-loss stores the rest",
                dir.display()
            );
        }
        let link = Arc::new(NetLink::new(client.clone(), task::handle(runtime.handle())));
        let (own, boot) = (replayed.store.clone(), replayed.boot_id);
        let (inherited, session, metadata) = match inherited {
            Some((open, state)) => {
                (open, state.session, Remote::inherit(link, state, own.clone(), clock.clone(), boot)?)
            }
            None => {
                let name = format!("{}:{name}", hostname());
                let session = remote::take_up(&*link, &own, name.as_bytes(), &OsEntropy)?;
                (Default::default(), session.id, Remote::new(link, session, own.clone(), clock.clone(), boot)?)
            }
        };
        let metadata = Arc::new(metadata);
        let name = printable(&format!("{}:{}", hostname(), std::process::id()));
        let hello =
            Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(config.id()?), session: None, name };
        let (entropy, handle) = (Arc::new(OsEntropy), task::handle(runtime.handle()));
        let store = volume::open_store_of_mount(config, dir, options.memory_bytes)?;
        let group = GroupOptions { pages: store.pages().clone(), ..GroupOptions::new(hello.clone()) };
        let group = sluice_join::group::follow(client, group, clock, entropy, &handle);
        let parts = Parts {
            namespace: metadata.clone(),
            journal: replayed.journal.clone(),
            committer: replayed.committer.clone(),
            cache: replayed.cache.clone(),
            store: Arc::new(store),
            clock: clock.clone(),
            entropy: Arc::new(OsEntropy),
            session,
            others: Some(Arc::new(Peers(client.clone()))),
            group: Some(Arc::new(NodesByThread::new(group, hello, clock.clone()))),
            runtime: task::handle(runtime.handle()),
        };
        let mut settings =
            Settings { upload_delay, memory_bytes: options.memory_bytes, inherited, ..Settings::default() };
        let known = metadata.clone();
        let shipped: Arc<Ship> = Arc::new(move |_| known.clone().shipped().boxed());
        tier.put_into(&mut settings, &shipped);
        let Replayed { store: tables, cache_sync, recovered, .. } = replayed;
        let running = Running::new(Work::start(parts, settings, recovered, tables, cache_sync)?, shipped, lock);
        Ok(Self { running, metadata, session, own })
    }

    /// Ends the session, unless something is left, and what is the mount's own. What is left then is in the journal.
    pub fn end(self) -> anyhow::Result<Left> {
        let Self { running, metadata, own, .. } = self;
        if let Err(error) = sluice_vfs::waiting(|| metadata.end()) {
            note!("the session was not ended: {error}");
        }
        let left = Left::of(&own)?;
        running.end()?;
        Ok(left)
    }
}
