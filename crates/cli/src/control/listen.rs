//! The process's end of the socket: who asks is read, and answered by a task of his own.

use super::{ASK_BYTES_MAX, Ask, Told, short_path, socket_path};
use anyhow::{Context, bail};
use std::{
    collections::VecDeque,
    fs,
    os::unix::{fs::PermissionsExt, net},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Semaphore,
    task::AbortHandle,
    time::{sleep, timeout},
};

/// Connections that have not asked yet; one more, and the oldest is closed: who connects and says nothing shuts nobody out.
const IDLE_MAX: usize = 64;
/// Requests being answered at once; those of `umount` last as long as the drain.
pub const ANSWERS_MAX: usize = 64;
/// How long the other end may take to send its line, or to take ours.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before the next try to take a connection when there is no descriptor for it: only time can give one back.
const RETRY_AFTER: Duration = Duration::from_millis(300);

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

    /// Answers on the runtime.
    pub fn listen<A, F>(&self, answer: A) -> anyhow::Result<()>
    where
        A: Fn(Asker, Ask) -> F + Clone + Send + 'static,
        F: Future<Output = anyhow::Result<()>> + Send,
    {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        let places = Arc::new(Semaphore::new(ANSWERS_MAX));
        tokio::spawn(async move {
            let mut idle: VecDeque<AbortHandle> = VecDeque::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(RETRY_AFTER).await;
                    continue;
                };
                idle.retain(|reading| !reading.is_finished());
                if idle.len() >= IDLE_MAX
                    && let Some(oldest) = idle.pop_front()
                {
                    oldest.abort();
                }
                let asked = tokio::spawn(Asker::read(stream));
                idle.push_back(asked.abort_handle());
                let (answer, places) = (answer.clone(), places.clone());
                tokio::spawn(async move {
                    let Ok(Ok((asker, ask))) = asked.await else { return };
                    let Ok(_place) = places.acquire_owned().await else { return };
                    if let Err(error) = answer(asker, ask).await {
                        tracing::debug!(%error, "a control connection ended");
                    }
                });
            }
        });
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Longest path that may be named: PATH_MAX.
const PATH_BYTES_MAX: u64 = 4096;

/// Who has asked, and waits for answers.
pub struct Asker {
    pub paths: Paths,
    pub teller: Teller,
}

/// The paths that he names behind his question: each ends with a NUL, an empty one ends the list.
pub struct Paths(BufReader<OwnedReadHalf>);

/// The way back to him.
pub struct Teller(OwnedWriteHalf);

impl Asker {
    async fn read(stream: UnixStream) -> anyhow::Result<(Self, Ask)> {
        let (read, write) = stream.into_split();
        let mut reader = BufReader::new(read);
        let mut line = Vec::new();
        timeout(PATIENCE, (&mut reader).take(ASK_BYTES_MAX).read_until(b'\n', &mut line)).await??;
        let ask = serde_json::from_slice(&line)?;
        Ok((Self { paths: Paths(reader), teller: Teller(write) }, ask))
    }

    /// Sends an answer.
    pub async fn tell(&mut self, told: &Told) -> anyhow::Result<()> {
        self.teller.tell(told).await
    }

    /// The connection, for a thread that waits by itself. Nothing may have been sent behind the question.
    pub fn into_std(self) -> anyhow::Result<net::UnixStream> {
        let stream = self.paths.0.into_inner().reunite(self.teller.0)?.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

impl Paths {
    /// The next path; `None` at the end. Waits as long as it takes: the list may be one that somebody types.
    pub async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut path = Vec::new();
        (&mut self.0).take(PATH_BYTES_MAX + 1).read_until(0, &mut path).await?;
        if path.pop() != Some(0) {
            bail!("the list of paths was cut off");
        }
        Ok((!path.is_empty()).then_some(path))
    }
}

impl Teller {
    /// Sends an answer.
    pub async fn tell(&mut self, told: &Told) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(told)?;
        line.push(b'\n');
        Ok(timeout(PATIENCE, self.0.write_all(&line)).await??)
    }
}
