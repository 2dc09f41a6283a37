//! A mount's process.

use super::{Host, JOURNAL, VOLUME};
use sluice_join::{
    Callbacks, KEEP_INTERVAL, NetLink, NoKernel, Peers, Replayed, Work,
    group::{self, Nodes},
    keep,
};
use sluice_node::GroupOptions;
use sluice_run::task::Handle;
use sluice_vfs::{
    Parts, Settings, Vfs,
    remote::{self, Remote},
};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{path::Path, sync::Arc};

/// A running mount.
pub struct Mount {
    pub vfs: Arc<Vfs>,
    /// The nodes, as it knows them.
    pub group: Arc<Nodes>,
    _work: Work,
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
    let client = host.connect(hello.clone(), callbacks.clone());
    let replayed = Replayed::open(host.kept()?, Path::new(JOURNAL), |own| Ok(remote::unstored(own)?))?;
    let link = Arc::new(NetLink::new(client.clone(), Handle::current()));
    let session = remote::take_up(&*link, &replayed.store, name.as_bytes(), &*entropy)?;
    let id = session.id;
    let metadata = Remote::new(link, session, replayed.store.clone(), clock.clone(), replayed.boot_id)?;
    let metadata = Arc::new(metadata);
    let group = group::follow(&client, GroupOptions::new(hello), &clock, entropy.clone(), &Handle::current());
    let parts = Parts {
        namespace: metadata.clone(),
        journal: replayed.journal.clone(),
        committer: replayed.committer.clone(),
        cache: replayed.cache.clone(),
        store: host.patient_store(),
        clock,
        entropy,
        session: id,
        others: Some(Arc::new(Peers(client.clone()))),
        group: Some(group.clone()),
        runtime: Handle::current(),
    };
    let work = Work::start(parts, Settings::default(), replayed.recovered, replayed.store, replayed.cache_sync)?;
    callbacks.start(&metadata, &work.vfs, Arc::new(NoKernel), Handle::current());
    sluice_run::task::spawn(keep(metadata.clone(), KEEP_INTERVAL));
    Ok(Arc::new(Mount { vfs: work.vfs.clone(), group, _work: work }))
}
