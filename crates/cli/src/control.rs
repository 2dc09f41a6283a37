//! The socket through which `status` and `umount` speak to a running mount: one JSON request, one JSON answer a line.
//! It lies in the volume's directory, open to the owner only.

mod server;

pub use server::{Ending, Server, Socket};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

/// A request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Ask {
    /// The numbers of now.
    Status,
    /// Unmount, store everything, end. Answers [`Told::Draining`] until the process is gone.
    Umount {
        /// Detach although files are open.
        lazy: bool,
    },
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

/// A connection to a running mount.
pub struct Control {
    stream: UnixStream,
    pid: u32,
}

impl Control {
    /// Connects to the mount of the volume in `dir`; `None` when none runs.
    pub fn connect(dir: &Path) -> anyhow::Result<Option<Self>> {
        let held = std::fs::File::open(dir).with_context(|| format!("opening {}", dir.display()))?;
        let short = short_path(&held);
        let stream = match UnixStream::connect(&short) {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("connecting to {}", socket_path(dir).display())),
        };
        let pid =
            rustix::net::sockopt::socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get() as u32);
        Ok(Some(Self { stream, pid }))
    }

    /// The process at the other end.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks, and hands every answer to `each` until the other end closes or `each` breaks.
    pub fn ask(&mut self, ask: Ask, mut each: impl FnMut(Told) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&ask)?;
        line.push(b'\n');
        if matches!(ask, Ask::Status) {
            // It is answered from memory: who does not is stopped.
            self.stream.set_read_timeout(Some(STATUS_WAIT)).context("asking the mount")?;
        }
        self.stream.write_all(&line).context("asking the mount")?;
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
