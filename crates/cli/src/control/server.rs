//! The mount's end of the socket: answers `status` and `umount`.

mod drain_watch;
mod overview;

pub use drain_watch::{DrainWatch, TELL_INTERVAL};

use super::{
    Ask, Told, dump, hand_over,
    listen::{ANSWERS_MAX, Asker, Socket},
    scrub, warm,
};
use crate::{config::VolumeConfig, mounts, output, units::quoted};
use anyhow::bail;
use serde_json::json;
use sluice_fuse::{MountError, Session};
use sluice_join::MetaService;
use sluice_meta::Namespace;
use sluice_ship::Shipper;
use sluice_vfs::{Ship, Vfs, Warmup};
use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Weak},
};
use tokio::sync::{mpsc, watch};

/// That the process is to end, and that it ends without what it should have done before.
#[derive(Default)]
pub struct Ending {
    /// Somebody asked for it.
    pub wanted: watch::Sender<bool>,
    /// Why not all is done.
    pub given_up: watch::Sender<Option<String>>,
    /// Those who asked, as long as their connections are not where the last word is told.
    asking: watch::Sender<usize>,
}

/// One of them.
struct Asking(Arc<Ending>);

impl Asking {
    fn new(ending: &Arc<Ending>) -> Self {
        ending.asking.send_modify(|count| *count += 1);
        Self(ending.clone())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.send_modify(|count| *count -= 1);
    }
}

impl Ending {
    /// Resolves when the connections of all who asked are where the last word is told; they have heard that the drain is over.
    pub async fn nobody_asks(&self) {
        let _ = self.asking.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Resolves with the reason.
    async fn gave_up(&self) -> String {
        let mut given_up = self.given_up.subscribe();
        loop {
            if let Some(why) = &*given_up.borrow_and_update() {
                return why.clone();
            }
            if given_up.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// What the answers come from.
#[derive(Clone)]
pub struct Server {
    pub vfs: Arc<Vfs>,
    /// The mount and where it is; `None` where the volume is served to others.
    pub mount: Option<(Arc<Session>, PathBuf)>,
    /// Where the volume is served: by this process, or for this mount.
    pub server: Option<String>,
    /// Of the one that serves the volume: who knows its sessions and nodes.
    pub service: Option<Weak<MetaService>>,
    pub dir: PathBuf,
    /// Where the cache is, if there is one.
    pub cache_dir: PathBuf,
    /// What a mount of a served volume has to settle before another process goes on with it.
    pub served: Option<Arc<hand_over::Served>>,
    /// The metadata, where this process has it.
    pub namespace: Option<Arc<Namespace>>,
    /// What takes the metadata to the store, where this process has it.
    pub ship: Option<Arc<Shipper>>,
    /// Resolves when the store has the metadata too.
    pub shipped: Arc<Ship>,
    pub config: VolumeConfig,
    pub ending: Arc<Ending>,
}

impl Server {
    /// Answers on the runtime. The first value, dropped, says that the drain is over; the second keeps the connections of those
    /// who wait for the end of the process.
    pub fn listen(self, socket: &Socket) -> anyhow::Result<(watch::Sender<()>, mpsc::Receiver<Asker>)> {
        let (drained, is_drained) = watch::channel(());
        let (keep, kept) = mpsc::channel(ANSWERS_MAX);
        socket.listen(move |asker, ask| {
            let (server, is_drained, keep) = (self.clone(), is_drained.clone(), keep.clone());
            async move { server.answer(asker, ask, is_drained, keep).await }
        })?;
        Ok((drained, kept))
    }

    async fn answer(
        &self,
        mut asker: Asker,
        ask: Ask,
        drained: watch::Receiver<()>,
        keep: mpsc::Sender<Asker>,
    ) -> anyhow::Result<()> {
        match ask {
            Ask::Status => asker.tell(&Told::Status { status: self.status() }).await,
            Ask::Flush => self.flush(asker).await,
            Ask::Dump => dump::answer(self, asker).await,
            Ask::Scrub { rate } => scrub::answer(&mut asker, self.vfs.cache(), rate).await,
            Ask::Warmup { to, wait } => warm::warm(asker, &self.vfs, to, wait).await,
            Ask::Held => warm::held(asker, &self.vfs).await,
            Ask::Evict => warm::evict(asker, &self.vfs, self.mount.as_ref().map(|(mount, _)| &**mount)).await,
            Ask::Learn => warm::learn(asker, &self.vfs).await,
            Ask::TakeOver { format, mountpoint, has_cache, cache_dir } => {
                let cache = hand_over::HeirCache { has_one: has_cache, dir: cache_dir };
                hand_over::give(self, asker, hand_over::Heir { format, mountpoint, cache }).await
            }
            Ask::Umount { lazy } => {
                let _asking = Asking::new(&self.ending);
                tokio::select! {
                    ended = self.end(&mut asker, lazy, drained) => if !ended? { return Ok(()) },
                    error = self.ending.gave_up() => return asker.tell(&Told::Failed { error }).await,
                }
                let _ = keep.send(asker).await;
                Ok(())
            }
        }
    }

    /// Unmounts, and tells of the drain until it is over; false when it could not.
    async fn end(&self, asker: &mut Asker, lazy: bool, drained: watch::Receiver<()>) -> anyhow::Result<bool> {
        if self.mount.is_some() {
            self.ending.wanted.send_replace(true);
        }
        // The system call waits for whatever the kernel has to say to us first.
        let server = self.clone();
        let unmounted = tokio::task::spawn_blocking(move || server.unmount(lazy)).await?;
        if let Err(error) = unmounted {
            self.ending.wanted.send_replace(false);
            asker.tell(&Told::Failed { error: error.to_string() }).await?;
            return Ok(false);
        }
        self.tell_of_the_drain(asker, drained).await?;
        Ok(true)
    }

    /// Stores what was written before, and tells of it. Who goes away is not waited for: nothing has changed for the mount.
    async fn flush(&self, mut asker: Asker) -> anyhow::Result<()> {
        let seq = self.vfs.written();
        let mut flushed = pin!(self.vfs.clone().flush(self.shipped.clone(), seq));
        let mut watch = DrainWatch::default();
        loop {
            let (objects, bytes) = self.vfs.unstored_up_to(seq);
            watch.note(bytes);
            let shipping = || self.ship.as_ref().and_then(|ship| ship.status().trouble);
            let trouble = self.vfs.namespace().trouble().or_else(shipping).or_else(|| watch.trouble(&self.vfs));
            asker.tell(&Told::Draining { objects, bytes, trouble }).await?;
            match tokio::time::timeout(TELL_INTERVAL, &mut flushed).await {
                Err(_) => {}
                Ok(Err(error)) => return asker.tell(&Told::Failed { error }).await,
                Ok(Ok(())) => {
                    return asker.tell(&Told::Flushed { elsewhere_bytes: self.elsewhere_bytes() }).await;
                }
            }
        }
    }

    /// Whether there is nothing left to do but to store what is left.
    pub(super) fn is_ending(&self) -> bool {
        self.mount.as_ref().map_or_else(|| *self.ending.wanted.borrow(), |(mount, _)| mount.is_over())
    }

    /// Of a served volume: bytes that mounts elsewhere have acked and not stored.
    pub(super) fn elsewhere_bytes(&self) -> Option<u64> {
        let service = self.service.as_ref().and_then(Weak::upgrade)?;
        Some(service.overview().unstored_bytes())
    }

    async fn tell_of_the_drain(&self, asker: &mut Asker, mut drained: watch::Receiver<()>) -> anyhow::Result<()> {
        let mut watch = DrainWatch::default();
        loop {
            let (objects, bytes) = watch.look(&self.vfs);
            let trouble = self.trouble(&watch);
            asker.tell(&Told::Draining { objects, bytes, trouble }).await?;
            if tokio::time::timeout(TELL_INTERVAL, drained.changed()).await.is_ok() {
                return Ok(());
            }
        }
    }

    /// Why it takes long, when it does.
    fn trouble(&self, watch: &DrainWatch) -> Option<String> {
        if let Some(trouble) = self.vfs.namespace().trouble() {
            return Some(trouble);
        }
        if self.mount.as_ref().is_some_and(|(mount, _)| !mount.is_over()) {
            return (watch.stalled() > 1).then(|| "programs have files open".into());
        }
        watch.trouble(&self.vfs)
    }

    fn unmount(&self, lazy: bool) -> anyhow::Result<()> {
        let Some((mount, mountpoint)) = &self.mount else {
            bail!("{} is served, not mounted here: end its process with SIGTERM", self.dir.display());
        };
        if !self.is_attached(mountpoint) {
            // Gone already; what is mounted there now, if anything, is another mount.
            return Ok(());
        }
        match mount.unmount(lazy) {
            Err(MountError::Busy(path)) => bail!(
                "{} is busy: end the programs that use it, or `sluice umount --lazy {}`",
                path.display(),
                quoted(&path)
            ),
            other => Ok(other?),
        }
    }

    fn is_attached(&self, mountpoint: &Path) -> bool {
        mounts::at(mountpoint).is_some_and(|found| found.dir == self.dir)
    }

    pub(super) fn state(&self) -> &'static str {
        let Some((mount, mountpoint)) = &self.mount else { return "serving" };
        match (mount.is_over(), self.is_attached(mountpoint)) {
            (true, _) => "draining",
            (false, true) => "mounted",
            (false, false) => "unmounting",
        }
    }

    fn warmups(&self) -> Vec<serde_json::Value> {
        let told = |warmup: &Arc<Warmup>| json!({ "to": warmup.to, "numbers": warmup.numbers() });
        self.vfs.warmups().iter().map(told).collect()
    }

    /// What `sluice status --json` prints.
    pub fn status(&self) -> serde_json::Value {
        let counts = self.mount.as_ref().map(|(mount, _)| mount.counts().named());
        let mountpoint = self.mount.as_ref().map(|(_, at)| at.to_string_lossy());
        let mut status = json!({
            "volume": self.config.id,
            "store": self.config.store,
            "mountpoint": mountpoint,
            "server": self.server,
            "pid": std::process::id(),
            "running": true,
            "state": self.state(),
            "requests": counts,
            "last_warning": output::last_warning(),
            "numbers": self.vfs.status().ok(),
            "warmups": self.warmups(),
            "metadata": self.ship.as_ref().map(|ship| ship.status()),
        });
        if let Some(service) = self.service.as_ref().and_then(Weak::upgrade) {
            let own = self.vfs.dirty_totals().1;
            overview::add(&mut status, &service.overview(), own);
        }
        status
    }
}
