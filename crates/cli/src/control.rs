//! The socket through which `status`, `umount` and others speak to a running mount, a volume's server or a node: one JSON request, one JSON
//! answer a line. It lies in the volume's directory, a node's in its cache directory, open to the owner only.

mod dump;
mod hand_over;
mod listen;
mod node;
mod scrub;
mod server;
mod warm;

pub use hand_over::{HeirCache, Served, Taken};
pub use listen::{Asker, Socket};
pub use node::NodeServer;
pub use server::{DrainWatch, Ending, Server, TELL_INTERVAL};

use crate::output::explained;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sluice_meta::dump::Dumped;
use sluice_vfs::{Held, ScrubNumbers, WarmNumbers, WarmTo};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Ask {
    /// The numbers of now.
    Status,
    /// Unmount, store everything, end. Answers [`Told::Draining`] until [`Told::Unmounted`], and keeps the connection until the process is gone.
    Umount {
        /// Detach although files are open.
        lazy: bool,
    },
    /// Store what was written before, bytes and metadata, and go on. Answers [`Told::Draining`] until [`Told::Flushed`].
    Flush,
    /// Bring near what the paths name that follow ([`Control::ask_about`]), from the root of the volume. Answers [`Told::Warming`].
    Warmup {
        /// Where to.
        to: WarmTo,
        /// Tell of it until it is over, and stop when the asker goes away.
        wait: bool,
    },
    /// Say what is cached of each of the paths that follow. Answers [`Told::Held`] or [`Told::Missed`] for each.
    Held,
    /// Give up what is cached of each of the paths that follow. Answers [`Told::Evicted`] or [`Told::Missed`] for each.
    Evict,
    /// Note which of the files below the paths that follow are opened. Answers [`Told::Learning`], and, once the asker has closed his side
    /// of the connection, [`Told::Opened`] for each in the order of the first opening.
    Learn,
    /// Check the cache now. Answers [`Told::Scrub`] until it is over.
    Scrub {
        /// Bytes a second; 0: as fast as the disk gives them.
        rate: u64,
    },
    /// Dump the volume's metadata. Answers the lines of the dump, which are no [`Told`], and [`Told::Dumped`] behind them ([`Control::dump`]).
    Dump,
    /// Hand the mount on to the asker. Answers [`Told::HandingOver`], then as it says (`hand_over.rs`).
    TakeOver {
        /// The newest format of the state that the asker reads.
        format: u32,
        /// Where he sees the mount: the volume may be mounted elsewhere by now.
        mountpoint: String,
        /// He will have a cache.
        has_cache: bool,
        /// Where it is, if that is for him to say.
        #[serde(default)]
        cache_dir: Option<PathBuf>,
    },
}

/// What a store does not have of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lacks {
    /// What, and why, for people.
    pub what: String,
    /// The next mount brings it there.
    pub comes_later: bool,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Told {
    /// The numbers, as `sluice status --json` prints them.
    Status {
        /// Free form: the command prints it.
        status: serde_json::Value,
    },
    /// So much is to be stored yet.
    Draining {
        /// Objects.
        objects: usize,
        /// Bytes.
        bytes: u64,
        /// Why it takes long, when it does.
        trouble: Option<String>,
    },
    /// The mount is gone, and its process ends. One that is killed does not say so.
    Unmounted {
        /// What the store does not have.
        lacks: Option<Lacks>,
    },
    /// All that was asked for is stored.
    Flushed {
        /// Of a served volume: bytes that mounts elsewhere have acked and not stored. They are not part of it.
        elsewhere_bytes: Option<u64>,
    },
    /// How far a warm-up is.
    Warming {
        /// The numbers.
        numbers: WarmNumbers,
    },
    /// What is cached of a path.
    Held {
        /// The numbers.
        held: Held,
    },
    /// A path was given up.
    Evicted {
        /// Bytes that were in the cache.
        bytes: u64,
    },
    /// A path could not be looked at.
    Missed {
        /// Why.
        error: String,
    },
    /// Openings are noted from now on.
    Learning,
    /// A file that was opened, from the root of the volume.
    Opened {
        /// Its path.
        path: String,
    },
    /// How far a scrub is.
    Scrub {
        /// What has been done and found.
        scrub: Box<ScrubNumbers>,
        /// What there is to read, about.
        held_bytes: u64,
        /// It is complete.
        over: bool,
    },
    /// The dump is complete.
    Dumped {
        /// What is in it.
        dumped: Dumped,
        /// Of a served volume: bytes that mounts elsewhere have acked and not stored.
        elsewhere_bytes: Option<u64>,
    },
    /// The state of the mount comes next, and its device with it, and further channels of that.
    HandingOver {
        /// Length of the state.
        bytes: u64,
    },
    /// The mount is the asker's; this process ends.
    HandedOver,
    /// It was not done.
    Failed {
        /// Why.
        error: String,
    },
}

/// How long the answer to [`Ask::Status`] may take.
const STATUS_WAIT: Duration = Duration::from_secs(3);
/// Longest request.
const ASK_BYTES_MAX: u64 = 64 << 10;

/// Where the socket of the volume in `dir` is. Socket paths have at most 107 bytes: it is reached through /proc/self/fd by
/// who finds it too long.
fn socket_path(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Whether the process that worked on `dir` left its socket: it takes that away when it ends by itself.
pub fn is_socket_left(dir: &Path) -> bool {
    socket_path(dir).exists()
}

/// A connection to a running mount.
pub struct Control {
    stream: UnixStream,
    pid: u32,
}

impl Control {
    /// Connects to the process that works on `dir`; `None` when none does.
    pub fn connect(dir: &Path) -> anyhow::Result<Option<Self>> {
        let held =
            std::fs::File::open(dir).map_err(|error| explained(&format!("opening {}", dir.display()), &error))?;
        let short = short_path(&held);
        let stream = match UnixStream::connect(&short) {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(explained(&format!("connecting to {}", socket_path(dir).display()), &error)),
        };
        let pid =
            rustix::net::sockopt::socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get() as u32);
        Ok(Some(Self { stream, pid }))
    }

    /// Waits for an answer so long at most, from now on.
    pub fn be_patient_for(&self, time: Duration) -> anyhow::Result<()> {
        self.stream.set_read_timeout(Some(time)).context("asking the mount")
    }

    /// The process at the other end.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// As [`Control::ask`], about paths from the root of the volume, which are sent while the answers come.
    pub fn ask_about(
        &mut self,
        ask: Ask,
        paths: impl Iterator<Item = Vec<u8>> + Send,
        each: impl FnMut(Told) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&ask)?;
        line.push(b'\n');
        let mut stream = self.stream.try_clone().context("asking the mount")?;
        // Who does not listen any more has said why.
        let send = move || -> std::io::Result<()> {
            stream.write_all(&line)?;
            for mut path in paths {
                path.push(0);
                stream.write_all(&path)?;
            }
            stream.write_all(&[0])
        };
        std::thread::scope(|scope| {
            std::thread::Builder::new().name("sluice-paths".into()).spawn_scoped(scope, send)?;
            self.hear(each)
        })
    }

    /// No more is asked or named.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write).context("asking the mount")
    }

    /// Asks, and hands every answer to `each` until the other end closes or `each` breaks.
    pub fn ask(&mut self, ask: Ask, each: impl FnMut(Told) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&ask)?;
        line.push(b'\n');
        if matches!(ask, Ask::Status) {
            // It is answered from memory: who does not is stopped.
            self.stream.set_read_timeout(Some(STATUS_WAIT)).context("asking the mount")?;
        }
        self.stream.write_all(&line).context("asking the mount")?;
        self.hear(each)
    }

    /// Hands every answer to `each`, as [`Control::ask`] does.
    pub fn hear(&self, mut each: impl FnMut(Told) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        for line in BufReader::new(&self.stream).lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line).context("the mount's answer")? {
                Told::Failed { error } => bail!(error),
                told => {
                    if !each(told)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The socket by way of an open directory: short however long the directory's path is.
fn short_path(dir: &std::fs::File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd()))
}
