//! The server's process.

use super::{Host, JOURNAL, ROOT, VOLUME, server_address};
use sluice_join::{MetaService, Replayed, Work};
use sluice_meta::{Namespace, rpc};
use sluice_net::ServerOptions;
use sluice_run::{simulation, task::Handle};
use sluice_vfs::{
    Parts, Settings, Vfs,
    gc::{GcParts, GcSettings},
    unstored,
};
use std::{path::Path, sync::Arc, time::Duration};

/// What a running server is asked from outside.
pub struct Server {
    pub namespace: Arc<Namespace>,
    pub vfs: Arc<Vfs>,
    _work: Work,
}

/// Serves the volume of `host`, as `sluice serve` does.
pub fn serve(host: &Host) -> anyhow::Result<Arc<Server>> {
    let clock = host.clock.clone();
    let replayed = Replayed::open(host.kept()?, Path::new(JOURNAL), |view| {
        let names = Namespace::new(view.clone(), clock.clone());
        Ok(unstored(&names)?)
    })?;
    let namespace = Arc::new(Namespace::new(replayed.store.clone(), clock.clone()));
    namespace.format(ROOT)?;
    let session = namespace.begin_session()?;
    let committer = replayed.committer.clone();
    let parts = Parts {
        namespace: namespace.clone(),
        journal: replayed.journal.clone(),
        committer: committer.clone(),
        cache: replayed.cache.clone(),
        store: host.patient_store(),
        clock: clock.clone(),
        entropy: host.entropy.clone(),
        session,
        others: None,
        group: None,
        runtime: Handle::current(),
    };
    let settings = Settings { reclaim_orphans: false, ..Settings::default() };
    let work = Work::start(parts, settings, replayed.recovered, replayed.store, replayed.cache_sync)?;
    let sessions = rpc::Server::open(namespace.clone(), rpc::Settings::default(), clock.monotonic())?;
    let service = MetaService::new(sessions, work.vfs.clone(), committer, clock.clone(), VOLUME, b"{}".to_vec());
    let files = Arc::downgrade(&service);
    let relocate = move |ino, moved: &[_]| files.upgrade().map_or(Ok(0), |service| service.relocate(ino, moved));
    let parts =
        GcParts { vfs: work.vfs.clone(), namespace: namespace.clone(), ship: None, relocate: Box::new(relocate) };
    // As short as `sluice serve` takes.
    let min_age = 2 * rpc::Settings::default().lease;
    work.vfs.collect_garbage(parts, GcSettings { interval: Duration::from_secs(1), min_age, ..GcSettings::default() });
    let listening = sluice_net::Server::bind(server_address(), service.clone(), ServerOptions::default(), clock);
    let listening = simulation::block_on(listening)?;
    sluice_run::task::spawn(service.run());
    // Until the process is killed.
    std::mem::forget(listening);
    Ok(Arc::new(Server { namespace, vfs: work.vfs.clone(), _work: work }))
}
