//! A volume in a directory of its own, and its mount process.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::{fs::Mode, mount::UnmountFlags};
use tempfile::TempDir;

use crate::{Ran, Successor, UringConsent, eventually, run, sluice_binary, wait_for};

/// A mount that is not there by then has failed.
const START_LIMIT: Duration = Duration::from_secs(30);
/// An unmount stores everything first; the volumes of the tests are small.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// A directory that other users may enter, removed at the end.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<TempDir>);

impl Scratch {
    /// A fresh directory under `TMPDIR`.
    ///
    /// # Panics
    /// When it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes a directory: not a default value")]
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("sluice-test.").tempdir().expect("a temporary directory");
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).expect("chmod");
        Self(Arc::new(dir))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A volume that lives in one directory, as `sluice up DIR MOUNTPOINT` makes it.
#[derive(Clone, Debug)]
pub struct Volume {
    scratch: Scratch,
    /// Relative to the scratch directory.
    dir: PathBuf,
    options: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Volume {
    /// A volume not yet created: the first [`Volume::up`] does that.
    #[expect(clippy::new_without_default, reason = "it makes directories: not a default value")]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("mnt")).expect("mkdir");
        Self { scratch, dir: "volume".into(), options: Vec::new(), env: Vec::new() }
    }

    /// Puts the volume's directory there instead of beside its mount point.
    #[must_use]
    pub fn in_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = dir.into();
        self
    }

    /// Adds an option and its value to every later `up`.
    #[must_use]
    pub fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Sets an environment variable for every later start of the binary.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The volume's directory: meta/, objects/, cache/ and journal/ are in it.
    pub fn dir(&self) -> PathBuf {
        self.scratch.path().join(&self.dir)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// Mounts it.
    ///
    /// # Panics
    /// When that fails, with what the process said.
    #[track_caller]
    pub fn up(&self) -> Mount {
        self.try_up().unwrap_or_else(|ran| panic!("the mount failed: {ran:#?}"))
    }

    /// Mounts it, or returns how the process ended.
    ///
    /// # Errors
    /// How the process ended.
    pub fn try_up(&self) -> Result<Mount, Ran> {
        self.try_up_at(&self.mountpoint())
    }

    /// Mounts it somewhere else than at its own mount point, or returns how the process ended.
    ///
    /// # Errors
    /// How the process ended.
    pub fn try_up_at(&self, mountpoint: &Path) -> Result<Mount, Ran> {
        self.try_mount(self.up_args(mountpoint), mountpoint)
    }

    fn up_args(&self, mountpoint: &Path) -> Vec<OsString> {
        let up = ["up".into(), self.dir().into(), mountpoint.into()];
        up.into_iter().chain(self.options.iter().cloned()).collect()
    }

    /// Mounts it with the kernel's consent to FUSE over io_uring as it is, or as the caller holds it.
    ///
    /// # Panics
    /// When that fails, with what the process said.
    #[track_caller]
    pub fn up_without_consent(&self) -> Mount {
        let mountpoint = self.mountpoint();
        let mounted = self.try_mount_as_it_is(self.up_args(&mountpoint), &mountpoint);
        mounted.unwrap_or_else(|ran| panic!("the mount failed: {ran:#?}"))
    }

    /// Runs a command that mounts at `mountpoint` until it does, or returns how it ended. The kernel is asked to allow rings where the
    /// command wants them.
    pub(crate) fn try_mount(&self, mut args: Vec<OsString>, mountpoint: &Path) -> Result<Mount, Ran> {
        let further = std::env::var("SLUICE_TEST_MOUNT_OPTIONS").unwrap_or_default();
        for option in further.split_whitespace().map(OsString::from) {
            if !args.contains(&option) {
                args.push(option);
            }
        }
        let _consent = args.iter().any(|arg| arg == "uring").then(|| UringConsent::set(true));
        self.try_mount_as_it_is(args, mountpoint)
    }

    fn try_mount_as_it_is(&self, args: Vec<OsString>, mountpoint: &Path) -> Result<Mount, Ran> {
        let log_path = mountpoint.with_extension("stderr");
        let log = File::options().create(true).append(true).open(&log_path).expect("the log");
        let log_start = log.metadata().expect("stat").len();
        let mut command = self.command(&args);
        let before = device_of(mountpoint);
        let is_mounted = || device_of(mountpoint).is_some_and(|now| Some(now) != before);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let mut ended = None;
        eventually(START_LIMIT, || {
            ended = child.try_wait().expect("wait");
            ended.is_some() || is_mounted()
        });
        let mut mount = Mount {
            child: Some(child),
            mountpoint: mountpoint.to_owned(),
            log_path,
            log_start,
            args,
            volume: self.clone(),
        };
        if ended.is_none() && is_mounted() {
            return Ok(mount);
        }
        if !is_mounted()
            && let Some(mut child) = mount.child.take()
        {
            // Not the guard's way: what it would detach is somebody else's mount.
            let _ = child.kill();
            let _ = child.wait();
        }
        Err(Ran {
            command: format!("{command:?}"),
            code: ended.and_then(|s| s.code()),
            stdout: String::new(),
            stderr: mount.log(),
        })
    }

    /// Runs another command of the binary with this volume's environment.
    #[track_caller]
    pub fn sluice<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        run(&mut self.command(args), STOP_LIMIT)
    }

    /// Runs fsck on the unmounted volume, reading every object.
    ///
    /// # Panics
    /// When it finds anything.
    #[track_caller]
    pub fn fsck_is_clean(&self) {
        self.sluice(["fsck".as_ref(), self.dir().as_os_str(), "--data".as_ref()]).ok();
    }

    /// The binary with these arguments and this volume's environment, not started.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(sluice_binary());
        // Mounts note there where their journals are.
        command.env("XDG_CACHE_HOME", self.scratch.path().join("home"));
        command.args(args).envs(self.env.iter().map(|(k, v)| (k, v)));
        command
    }
}

fn device_of(path: &Path) -> Option<u64> {
    rustix::fs::stat(path).ok().map(|s| s.st_dev)
}

/// A mounted volume and the process that serves it.
#[derive(Debug)]
pub struct Mount {
    child: Option<Child>,
    mountpoint: PathBuf,
    log_path: PathBuf,
    log_start: u64,
    args: Vec<OsString>,
    volume: Volume,
}

impl Mount {
    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.mountpoint
    }

    /// A path below the mount point.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// The pid of the process that serves the mount.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Everything this process has printed so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log_path).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().min(self.log_start as usize)..]).into_owned()
    }

    /// `sluice status MOUNTPOINT --json`.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        self.volume.sluice(["status".as_ref(), self.mountpoint.as_os_str(), "--json".as_ref()]).ok().json()
    }

    /// When fsync returns in it.
    #[track_caller]
    pub fn tier(&self) -> String {
        self.status()["numbers"]["tier"].as_str().expect("a tier").into()
    }

    /// Ends the process as a crash would, then takes the dead mount away.
    pub fn kill9(self) {
        let mountpoint = self.mountpoint.clone();
        self.kill9_and_leave_the_mount_point();
        rustix::mount::unmount(&mountpoint, UnmountFlags::DETACH).expect("detach the dead mount");
    }

    /// Ends the process as a crash would. The mount point stays behind, dead, as it does after a real crash.
    pub fn kill9_and_leave_the_mount_point(mut self) {
        self.kill9_in_place();
    }

    /// The same with a mount that a successor may still have.
    pub fn kill9_in_place(&mut self) {
        let mut child = self.child.take().expect("running");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// `sluice umount MOUNTPOINT`; returns when the process has ended.
    ///
    /// # Panics
    /// When the command fails, the process stays, or its exit status is not 0.
    #[track_caller]
    pub fn umount(mut self) {
        let ran = self.volume.sluice(["umount".as_ref(), self.mountpoint.as_os_str()]);
        assert_eq!(ran.code, Some(0), "{ran:#?}\nthe mount process said:\n{}", self.log());
        let mut child = self.child.take().expect("running");
        let mut status = None;
        wait_for("the mount process to end after umount", STOP_LIMIT, || {
            status = child.try_wait().expect("wait");
            status.is_some()
        });
        assert!(status.expect("ended").success(), "the mount process: {status:?}\n{}", self.log());
    }

    /// `sluice umount MOUNTPOINT` where the store does not have everything by then: it is unmounted, and said so with these words.
    ///
    /// # Panics
    /// When the command does not say that, the process stays, or its exit status is not 1.
    #[track_caller]
    pub fn umount_tells(self, words: &[&str]) {
        self.try_umount().refused_with(&[&["is unmounted, but the store lacks"], words].concat());
        let (code, log) = self.wait_for_the_end();
        assert_eq!(code, Some(1), "the mount process:\n{log}");
    }

    /// `sluice umount MOUNTPOINT`, whatever comes of it; the process goes on, or ends by itself.
    #[track_caller]
    pub fn try_umount(&self) -> Ran {
        self.volume.sluice(["umount".as_ref(), self.mountpoint.as_os_str()])
    }

    /// Waits until the process has ended, and tells its exit status and what it said.
    ///
    /// # Panics
    /// When it stays.
    #[track_caller]
    pub fn wait_for_the_end(mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().expect("running");
        let mut status = None;
        let ended = eventually(STOP_LIMIT, || {
            status = child.try_wait().expect("wait");
            status.is_some()
        });
        if !ended {
            self.child = Some(child);
            panic!("the mount process does not end");
        }
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        (status.and_then(|status| status.code()), self.log())
    }

    /// Starts a process that is to take the mount over, with further options.
    #[track_caller]
    pub fn successor(&self, options: &[&str]) -> Successor {
        let mut command = self.volume.command(&self.args);
        command.arg("--takeover").args(options);
        Successor::start(command, &self.log_path)
    }

    /// From now on another process serves the mount; the one that did.
    pub(crate) fn become_of(&mut self, child: Child, log_start: u64) -> Option<Child> {
        self.log_start = log_start;
        self.child.replace(child)
    }

    /// Unmounts and mounts again: what is seen afterwards comes from the volume, not from memory.
    #[track_caller]
    pub fn remount(self) -> Self {
        let again = self.again();
        self.umount();
        again()
    }

    /// What mounts it once more, the same way.
    pub fn again(&self) -> impl Fn() -> Self + use<> {
        let (volume, args, mountpoint) = (self.volume.clone(), self.args.clone(), self.mountpoint.clone());
        move || volume.try_mount(args.clone(), &mountpoint).unwrap_or_else(|ran| panic!("the mount failed: {ran:#?}"))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // EINVAL and ENOENT mean that it never came up: there is nothing to detach.
            let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                eprintln!("the mount process said:\n{}", self.log());
            }
        }
    }
}
