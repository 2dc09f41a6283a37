//! A mount's process.

use super::{Host, JOURNAL, VOLUME, server_address};
use futures::future::{BoxFuture, FutureExt};
use sluice_join::{Callbacks, Kernel, NetLink, Peers, Replayed, Work, keep};
use sluice_meta::rpc::message::Invalidation;
use sluice_net::{Client, ClientOptions};
use sluice_run::{simulation, task::Handle};
use sluice_vfs::{
    Parts, Settings, Vfs,
    remote::{self, Remote},
};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{path::Path, sync::Arc, time::Duration};

/// A running mount.
pub struct Mount {
    pub vfs: Arc<Vfs>,
    _work: Work,
}

/// The mounts of a simulation have no kernel: nobody keeps copies.
struct NoKernel;

impl Kernel for NoKernel {
    fn tell<'a>(&'a self, _: &'a [Invalidation]) -> BoxFuture<'a, ()> {
        async {}.boxed()
    }
    fn settled(&self) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

/// Mounts on `host`, as `sluice mount` does.
pub fn mount(host: &Host) -> anyhow::Result<Arc<Mount>> {
    let (clock, entropy) = (host.clock.clone(), host.entropy.clone());
    let callbacks = Arc::new(Callbacks::default());
    let name = format!("mount {}", host.process);
    let hello = Hello {
        peer: PeerKind::Mount,
        lane: LaneClass::Small,
        volume: Some(VOLUME),
        session: None,
        name: name.clone(),
    };
    let options = ClientOptions::default();
    let client = Client::new(vec![server_address()], hello, callbacks.clone(), options, clock.clone(), entropy.clone());
    let client = Arc::new(client);
    while simulation::block_on(client.connected(Duration::from_secs(10))).is_err() {
        simulation::sleep(Duration::from_millis(100));
    }
    let replayed = Replayed::open(host.kept()?, Path::new(JOURNAL), |own| Ok(remote::unstored(own)?))?;
    let link = Arc::new(NetLink::new(client.clone(), Handle::current()));
    let session = remote::take_up(&*link, &replayed.store, name.as_bytes(), &*entropy)?;
    let id = session.id;
    let metadata = Remote::new(link, session, replayed.store.clone(), clock.clone(), replayed.boot_id)?;
    let metadata = Arc::new(metadata);
    let parts = Parts {
        namespace: metadata.clone(),
        journal: replayed.journal.clone(),
        committer: replayed.committer.clone(),
        cache: replayed.cache.clone(),
        store: host.store(),
        clock,
        entropy,
        session: id,
        others: Some(Arc::new(Peers(client.clone()))),
        group: None,
        runtime: Handle::current(),
    };
    let work = Work::start(parts, Settings::default(), replayed.recovered, replayed.store, replayed.cache_sync)?;
    callbacks.start(&metadata, &work.vfs, Arc::new(NoKernel), Handle::current());
    sluice_run::task::spawn(keep(metadata.clone()));
    Ok(Arc::new(Mount { vfs: work.vfs.clone(), _work: work }))
}
