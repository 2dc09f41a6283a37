//! Processes of `sluice serve sluice://...`.

use crate::{Server, sluice, wait_for};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A running node. Dropping it ends its process.
#[derive(Debug)]
pub struct Node {
    /// What it is called.
    pub name: String,
    /// Where its cache is.
    pub dir: PathBuf,
    child: Child,
    log: PathBuf,
    log_start: u64,
}

impl Node {
    /// Starts one with a cache of its own, and waits until the server has it in its group.
    ///
    /// # Panics
    /// When it is not soon.
    pub fn start(server: &Server, name: &str) -> Self {
        Self::start_with(server, name, &[])
    }

    /// The same with further options.
    pub fn start_with(server: &Server, name: &str, options: &[&str]) -> Self {
        let mut node = Self::spawn_with(server, name, name, options);
        wait_for("the node to be in the group", LIMIT, || {
            let ended = node.child.try_wait().expect("wait");
            assert!(ended.is_none(), "the node ended: {ended:?}\n{}", node.log());
            // One that was killed may be in the list for a while yet.
            node.log().contains("listens at") && members(server).iter().any(|member| member["name"] == name)
        });
        node
    }

    /// Starts one called `name` with the cache directory of `cache`.
    pub fn spawn(server: &Server, name: &str, cache: &str) -> Self {
        Self::spawn_with(server, name, cache, &[])
    }

    /// The same with further options.
    pub fn spawn_with(server: &Server, name: &str, cache: &str, options: &[&str]) -> Self {
        let base = server.volume().mountpoint();
        let dir = base.with_file_name(format!("{cache}.cache"));
        let log = base.with_file_name(format!("{cache}.log"));
        let out = File::options().create(true).append(true).open(&log).expect("the log");
        let (meta, log_start) = (server.meta(), out.metadata().expect("stat").len());
        let mut command =
            server.volume().command(["serve", &meta, "--listen", "127.0.0.1:0", "--name", name, "--cache"]);
        command.arg(format!("{}:256M", dir.display())).args(options).stdin(Stdio::null());
        let child = command.stdout(out.try_clone().expect("dup")).stderr(out).spawn().expect("start sluice serve");
        Self { name: name.into(), dir, child, log, log_start }
    }

    /// Ends the process as a crash would.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the process, so that it keeps its connections and answers nothing.
    pub fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("SIGSTOP");
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("SIGCONT");
    }

    /// From now on writes behind the first `bytes` of a file fail (EFBIG), as those to a disk that has failed do.
    ///
    /// # Panics
    /// When the limit cannot be set.
    pub fn limit_files(&self, bytes: u64) {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit).expect("prlimit");
    }

    /// How the process ended by itself.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        wait_for("the node to end", LIMIT, || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Everything this process has printed.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().min(self.log_start as usize)..]).into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("node {} said:\n{}", self.name, self.log());
        }
    }
}

/// The nodes of a group, as `sluice status` shows them.
pub fn members(server: &Server) -> Vec<serde_json::Value> {
    let status = sluice(["status", &server.meta(), "--json"]).ok().json();
    status["nodes"].as_array().expect("a list").clone()
}

/// The sum of a number over all nodes.
pub fn sum(server: &Server, number: &str) -> u64 {
    members(server).iter().map(|member| member[number].as_u64().expect("a number")).sum()
}
