//! A real S3 server: versitygw over a local directory, on a free port of the loopback interface.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{Scratch, Volume, wait_for};

const ACCESS: &str = "sluicetest";
/// The secret key that the server accepts.
pub const SECRET: &str = "sluicetest-secret";

/// A running server. [`Gateway::stop`] and [`Gateway::start`] take it down and bring it back on the same port.
#[derive(Debug)]
pub struct Gateway {
    scratch: Scratch,
    port: u16,
    child: Option<Child>,
}

impl Gateway {
    /// Starts a server that stores nothing yet.
    ///
    /// # Panics
    /// When versitygw is not installed or does not listen within ten seconds.
    #[expect(clippy::new_without_default, reason = "it starts a process: not a default value")]
    #[track_caller]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("buckets")).expect("mkdir");
        let port = free_port();
        let mut gateway = Self { scratch, port, child: None };
        gateway.start();
        gateway
    }

    /// Makes a bucket: for this server a directory.
    #[track_caller]
    pub fn bucket(&self, name: &str) {
        fs::create_dir(self.buckets().join(name)).expect("a new bucket");
    }

    /// The STORE argument for a prefix in a bucket.
    pub fn url(&self, bucket: &str, prefix: &str) -> String {
        Self::url_by(self.port, bucket, prefix)
    }

    /// The same by way of what passes connections to `port` on to the server.
    pub fn url_by(port: u16, bucket: &str, prefix: &str) -> String {
        format!("s3://{bucket}/{prefix}?endpoint=http://127.0.0.1:{port}&region=us-east-1")
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Hands a volume the credentials that the server accepts, by the usual variables.
    #[must_use]
    pub fn credentials(&self, volume: Volume) -> Volume {
        volume.env("AWS_ACCESS_KEY_ID", ACCESS).env("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    /// Starts it (again), with everything that was stored before.
    #[track_caller]
    pub fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.scratch.path().join("log")).expect("log");
        let child = Command::new(binary())
            .args(["--port", &format!("127.0.0.1:{}", self.port), "--access", ACCESS, "--secret", SECRET, "posix"])
            .arg(self.buckets())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .spawn()
            .expect("start versitygw");
        self.child = Some(child);
        wait_for("versitygw to listen", Duration::from_secs(10), || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
        });
    }

    /// Takes it down at once, as a failed machine would be.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The directory that holds the buckets.
    pub fn buckets(&self) -> PathBuf {
        self.scratch.path().join("buckets")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port that was free a moment ago. The server cannot be handed a listening socket, so a race remains; the kernel
/// hands ports out in random order, so that it is not met in practice.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).expect("a free port").port()
}

fn binary() -> PathBuf {
    let in_path = std::env::var_os("PATH").into_iter().flat_map(|p| std::env::split_paths(&p).collect::<Vec<_>>());
    let gopath = Command::new("go").args(["env", "GOPATH"]).output().ok();
    let in_gopath = gopath.map(|o| Path::new(String::from_utf8_lossy(&o.stdout).trim()).join("bin"));
    in_path
        .chain(in_gopath)
        .map(|dir| dir.join("versitygw"))
        .find(|p| p.is_file())
        .expect("versitygw is missing: `make deps` installs it")
}
