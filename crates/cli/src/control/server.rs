//! The mount's end of the socket: answers `status` and `umount`.

mod overview;

use super::{ASK_BYTES_MAX, Ask, Told, short_path, socket_path};
use crate::{config::VolumeConfig, mounts, output, units::quoted};
use anyhow::{Context, bail};
use serde_json::json;
use sluice_fuse::{MountError, Session};
use sluice_join::MetaService;
use sluice_vfs::Vfs;
use std::{
    collections::VecDeque,
    fs,
    os::unix::{fs::PermissionsExt, net},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, watch},
    task::AbortHandle,
};

/// Connections that have not asked yet; one more, and the oldest is closed: who connects and says nothing shuts nobody out.
const IDLE_MAX: usize = 64;
/// Requests being answered at once; those of `umount` last as long as the drain.
const ANSWERS_MAX: usize = 64;
/// How long the other end may take to send its line, or to take ours.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two lines to one who waits for the end.
const TELL_INTERVAL: Duration = Duration::from_millis(300);
/// Lines without anything stored before that is called trouble: 3 s.
const STALLED_TELLS: u32 = 10;

/// The socket in the volume's directory; the file goes when this is dropped.
pub struct Socket {
    listener: net::UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Takes the place of what a killed process left.
    pub fn bind(dir: &Path) -> anyhow::Result<Self> {
        let path = socket_path(dir);
        let what = || format!("listening at {}", path.display());
        let _ = fs::remove_file(&path);
        let held = fs::File::open(dir).with_context(what)?;
        let listener = net::UnixListener::bind(short_path(&held)).with_context(what)?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).with_context(what)?;
        listener.set_nonblocking(true).with_context(what)?;
        Ok(Self { listener, path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// That the process is to end, and that it ends without what it should have done before.
#[derive(Default)]
pub struct Ending {
    /// Somebody asked for it.
    pub wanted: watch::Sender<bool>,
    /// Why not all is done.
    pub given_up: watch::Sender<Option<String>>,
}

impl Ending {
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
    pub config: VolumeConfig,
    pub ending: Arc<Ending>,
}

impl Server {
    /// Answers on the runtime. The first value, dropped, says that the drain is over; the second keeps the connections of those
    /// who wait for the end of the process.
    pub fn listen(self, socket: &Socket) -> anyhow::Result<(watch::Sender<()>, mpsc::Receiver<UnixStream>)> {
        let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
        let (drained, is_drained) = watch::channel(());
        let (keep, kept) = mpsc::channel(ANSWERS_MAX);
        let places = Arc::new(Semaphore::new(ANSWERS_MAX));
        tokio::spawn(async move {
            let mut idle: VecDeque<AbortHandle> = VecDeque::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of descriptors, which only time can give back.
                    tokio::time::sleep(TELL_INTERVAL).await;
                    continue;
                };
                idle.retain(|reading| !reading.is_finished());
                if idle.len() >= IDLE_MAX
                    && let Some(oldest) = idle.pop_front()
                {
                    oldest.abort();
                }
                let asked = tokio::spawn(read_ask(stream));
                idle.push_back(asked.abort_handle());
                let (server, is_drained, keep, places) =
                    (self.clone(), is_drained.clone(), keep.clone(), places.clone());
                tokio::spawn(async move {
                    let Ok(Ok((stream, ask))) = asked.await else { return };
                    let Ok(_place) = places.acquire_owned().await else { return };
                    if let Err(error) = server.answer(stream, ask, is_drained, keep).await {
                        tracing::debug!(%error, "a control connection ended");
                    }
                });
            }
        });
        Ok((drained, kept))
    }

    async fn answer(
        &self,
        mut stream: UnixStream,
        ask: Ask,
        drained: watch::Receiver<()>,
        keep: mpsc::Sender<UnixStream>,
    ) -> anyhow::Result<()> {
        match ask {
            Ask::Status => tell(&mut stream, &Told::Status { status: self.status() }).await,
            Ask::Umount { lazy } => {
                tokio::select! {
                    ended = self.end(&mut stream, lazy, drained) => if !ended? { return Ok(()) },
                    error = self.ending.gave_up() => return tell(&mut stream, &Told::Failed { error }).await,
                }
                let _ = keep.send(stream).await;
                Ok(())
            }
        }
    }

    /// Unmounts, and tells of the drain until it is over; false when it could not.
    async fn end(&self, stream: &mut UnixStream, lazy: bool, drained: watch::Receiver<()>) -> anyhow::Result<bool> {
        if self.mount.is_some() {
            self.ending.wanted.send_replace(true);
        }
        // The system call waits for whatever the kernel has to say to us first.
        let server = self.clone();
        let unmounted = tokio::task::spawn_blocking(move || server.unmount(lazy)).await?;
        if let Err(error) = unmounted {
            self.ending.wanted.send_replace(false);
            tell(stream, &Told::Failed { error: error.to_string() }).await?;
            return Ok(false);
        }
        self.tell_of_the_drain(stream, drained).await?;
        Ok(true)
    }

    async fn tell_of_the_drain(&self, stream: &mut UnixStream, mut drained: watch::Receiver<()>) -> anyhow::Result<()> {
        let (mut least, mut stalled) = (u64::MAX, 0);
        loop {
            let (objects, bytes) = self.vfs.dirty_totals();
            stalled = if bytes < least { 0 } else { stalled + 1 };
            least = least.min(bytes);
            let trouble = self.trouble(stalled);
            tell(stream, &Told::Draining { objects, bytes, trouble }).await?;
            if tokio::time::timeout(TELL_INTERVAL, drained.changed()).await.is_ok() {
                return Ok(());
            }
        }
    }

    /// Why it takes long, when it does.
    fn trouble(&self, stalled_tells: u32) -> Option<String> {
        if let Some(trouble) = self.vfs.namespace().trouble() {
            return Some(trouble);
        }
        if self.mount.as_ref().is_some_and(|(mount, _)| !mount.is_over()) {
            return (stalled_tells > 1).then(|| "programs have files open".into());
        }
        if stalled_tells < STALLED_TELLS {
            return None;
        }
        let mut text = format!("nothing was stored for {} s", (TELL_INTERVAL * stalled_tells).as_secs());
        if let Ok(status) = self.vfs.status() {
            let (failed, retries) = (status.upload_errors, status.store.retries);
            text += &format!("; {failed} uploads failed and {retries} requests were repeated since the start");
        }
        if let Some(warning) = output::last_warning() {
            text += &format!("; the last warning: {warning}");
        }
        Some(text)
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

    fn state(&self) -> &'static str {
        let Some((mount, mountpoint)) = &self.mount else { return "serving" };
        match (mount.is_over(), self.is_attached(mountpoint)) {
            (true, _) => "draining",
            (false, true) => "mounted",
            (false, false) => "unmounting",
        }
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
        });
        if let Some(service) = self.service.as_ref().and_then(Weak::upgrade) {
            let own = self.vfs.dirty_totals().1;
            overview::add(&mut status, &service.overview(), own);
        }
        status
    }
}

/// The one line that a client sends.
async fn read_ask(stream: UnixStream) -> anyhow::Result<(UnixStream, Ask)> {
    let mut reader = BufReader::new(stream.take(ASK_BYTES_MAX));
    let mut line = Vec::new();
    tokio::time::timeout(PATIENCE, reader.read_until(b'\n', &mut line)).await??;
    let ask = serde_json::from_slice(&line)?;
    Ok((reader.into_inner().into_inner(), ask))
}

async fn tell(stream: &mut UnixStream, told: &Told) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    Ok(tokio::time::timeout(PATIENCE, stream.write_all(&line)).await??)
}
