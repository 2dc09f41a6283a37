//! `sluice serve` over a volume, and mounts of it.

use std::{
    ffi::OsString,
    fs::{self, File},
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Mount, Ran, Volume, gateway::free_port, wait_for};

/// A server that does not listen by then has failed; one that was told to end stores what is left first.
const LIMIT: Duration = Duration::from_secs(60);

/// A served volume. Dropping it ends its process.
#[derive(Debug)]
pub struct Server {
    volume: Volume,
    port: u16,
    options: Vec<OsString>,
    child: Option<Child>,
}

impl Server {
    /// Makes a volume, and serves it.
    ///
    /// # Panics
    /// When one of them fails.
    #[expect(clippy::new_without_default, reason = "it starts a process: not a default value")]
    #[track_caller]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// As [`Server::new`], with further options of `serve`.
    ///
    /// # Panics
    /// When one of them fails.
    #[track_caller]
    pub fn with(options: &[&str]) -> Self {
        Self::over(Volume::new(), "file:objects", options)
    }

    /// Makes `volume` in `store`, and serves it with further options.
    ///
    /// # Panics
    /// When one of them fails.
    #[track_caller]
    pub fn over(volume: Volume, store: &str, options: &[&str]) -> Self {
        let store = ["--store".into(), store.into()];
        volume.sluice(["format".into(), volume.dir().into_os_string()].into_iter().chain(store)).ok();
        Self::of(volume, options)
    }

    /// Serves a volume that is there with further options.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn of(volume: Volume, options: &[&str]) -> Self {
        let options = options.iter().map(OsString::from).collect();
        let mut server = Self { volume, port: free_port(), options, child: None };
        server.start();
        server
    }

    /// Starts the process, which must not run.
    ///
    /// # Panics
    /// When it does not listen soon.
    #[track_caller]
    pub fn start(&mut self) {
        let address = format!("127.0.0.1:{}", self.port);
        let mut command = self.volume.command(["serve".as_ref(), self.volume.dir().as_os_str()]);
        command.args(["--listen", &address, "--cache-size", "64M", "--journal-size", "64M"]);
        command.args(&self.options);
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the log");
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().expect("dup")).stderr(log).spawn();
        self.child = Some(child.expect("start sluice serve"));
        wait_for("the server to listen", LIMIT, || {
            let ended = self.child.as_mut().expect("running").try_wait().expect("wait");
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
        });
    }

    /// Ends the process as a crash would.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
    }

    /// Stops the process, so that it keeps its connections and answers nothing, until [`Server::thaw`].
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("running");
        kill_process(Pid::from_child(child), signal).expect("a signal");
    }

    /// Ends the process as an operator would.
    ///
    /// # Panics
    /// When it does not end well.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("running");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM).expect("SIGTERM");
        let mut status = None;
        wait_for("the server to end", LIMIT, || {
            status = child.try_wait().expect("wait");
            status.is_some()
        });
        assert!(status.expect("ended").success(), "the server: {status:?}\n{}", self.log());
    }

    /// Sets environment variables for every later start, of the server and of mounts.
    pub fn set_env(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        for (name, value) in variables {
            self.volume = self.volume.clone().env(name, value);
        }
    }

    /// Its name for commands.
    pub fn meta(&self) -> String {
        format!("sluice://127.0.0.1:{}", self.port)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The volume, which nobody else may open while it is served.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Mounts it at a place of its own, `name`, with a journal of its own.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn mount(&self, name: &str) -> Mount {
        self.try_mount(name, &[]).unwrap_or_else(|ran| panic!("the mount failed: {ran:#?}"))
    }

    /// Mounts it with further options, or returns how the process ended.
    ///
    /// # Errors
    /// How the process ended.
    pub fn try_mount(&self, name: &str, options: &[&str]) -> Result<Mount, Ran> {
        self.try_mount_by(self.port, name, options)
    }

    /// As [`Server::try_mount`], by way of what passes connections to `port` on to the server.
    ///
    /// # Errors
    /// How the process ended.
    pub fn try_mount_by(&self, port: u16, name: &str, options: &[&str]) -> Result<Mount, Ran> {
        let base = self.volume.mountpoint();
        let scratch = base.parent().expect("it has one");
        let (mountpoint, journal) = (scratch.join(name), scratch.join(format!("{name}.journal")));
        fs::create_dir_all(&mountpoint).expect("mkdir");
        let mut journal: OsString = journal.into();
        journal.push(":64M");
        let meta = format!("sluice://127.0.0.1:{port}");
        let args = ["mount".into(), meta.into(), mountpoint.clone().into(), "--journal".into(), journal];
        self.volume.try_mount(args.into_iter().chain(options.iter().map(OsString::from)).collect(), &mountpoint)
    }

    /// Everything the process has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.volume.mountpoint().with_extension("server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.log());
        }
    }
}
