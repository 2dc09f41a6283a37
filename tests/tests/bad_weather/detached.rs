//! A mount that `up -d` left behind, for tests of what happens to it.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use rustix::{
    mount::UnmountFlags,
    process::{Pid, Signal, kill_process},
};
use sluice_tests::{Ran, Scratch, sluice};

/// Dropped, it ends the mount, so that a failed test leaves nothing.
pub struct Detached {
    pub dir: PathBuf,
    pub mnt: PathBuf,
    pid: Option<i32>,
}

impl Detached {
    /// Nothing is mounted yet; `dir` is the volume's.
    pub fn new(scratch: &Scratch, dir: &Path) -> Self {
        let mnt = scratch.path().join("mnt");
        fs::create_dir_all(&mnt).unwrap();
        Self { dir: dir.to_owned(), mnt, pid: None }
    }

    #[track_caller]
    pub fn up(&mut self, options: &[&str]) {
        let mut args = vec!["up".as_ref(), self.dir.as_os_str(), self.mnt.as_os_str(), "-d".as_ref()];
        args.extend(options.iter().map(OsStr::new));
        sluice(args).ok();
        let holder = fs::read_to_string(self.dir.join("lock")).unwrap();
        self.pid = holder.strip_prefix("pid ").and_then(|rest| rest.split(':').next()?.parse().ok());
    }

    pub fn pid(&self) -> i32 {
        self.pid.expect("mounted")
    }

    pub fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
    }

    pub fn umount(&self, options: &[&str]) -> Ran {
        let mut args = vec!["umount".as_ref(), self.mnt.as_os_str()];
        args.extend(options.iter().map(OsStr::new));
        sluice(args)
    }

    pub fn state(&self) -> String {
        let status = sluice(["status".as_ref(), self.dir.as_os_str(), "--json".as_ref()]).ok().json();
        status["state"].as_str().expect("a state").to_owned()
    }

    #[track_caller]
    pub fn fsck_is_clean(&self) {
        sluice(["fsck".as_ref(), self.dir.as_os_str(), "--data".as_ref()]).ok();
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some(pid) = self.pid
            && self.is_alive()
        {
            let _ = rustix::mount::unmount(&self.mnt, UnmountFlags::DETACH);
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}
