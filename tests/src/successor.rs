//! A process that takes a mount over (`sluice up --takeover`).

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{Mount, eventually, wait_for};

/// Requests under way may take ten seconds to end.
const LIMIT: Duration = Duration::from_secs(60);

/// The process, from its start to the moment in which it serves the mount. Dropping it ends it.
#[derive(Debug)]
pub struct Successor {
    child: Option<Child>,
    log: PathBuf,
    log_start: u64,
}

impl Successor {
    /// Starts `command`, which writes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let out = File::options().create(true).append(true).open(log).expect("the log");
        let log_start = out.metadata().expect("stat").len();
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("dup")).stderr(out);
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        Self { child: Some(child), log: log.into(), log_start }
    }

    /// Everything it has printed.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().min(self.log_start as usize)..]).into_owned()
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Ends it as a crash would.
    pub fn kill9(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until it serves the mount; an error, what it said, when it ended instead.
    pub(crate) fn served(mut self) -> Result<(Child, u64), String> {
        let mut child = self.child.take().expect("running");
        let mut ended = None;
        wait_for("the successor to serve or to end", LIMIT, || {
            ended = child.try_wait().expect("wait");
            ended.is_some() || self.log().contains("is mounted at")
        });
        match ended {
            None => Ok((child, self.log_start)),
            Some(_) => Err(self.log()),
        }
    }

    /// How it ended, and what it said.
    ///
    /// # Panics
    /// When it goes on.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let child = self.child.as_mut().expect("running");
        let mut status = None;
        let has_ended = eventually(LIMIT, || {
            status = child.try_wait().expect("wait");
            status.is_some()
        });
        assert!(has_ended, "the successor goes on: {}", self.log());
        (status.and_then(|status| status.code()), self.log())
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.end();
    }
}

impl Mount {
    /// Has another process take the mount over, which this value is of from then on.
    ///
    /// # Panics
    /// When it does not, or the former process does not end with 0.
    #[track_caller]
    pub fn take_over(&mut self) {
        let next = self.successor(&[]);
        self.hand_over_to(next);
    }

    /// The same with a process that was started before.
    ///
    /// # Panics
    /// When it does not, or the former process does not end with 0.
    #[track_caller]
    pub fn hand_over_to(&mut self, next: Successor) {
        self.try_hand_over_to(next).unwrap_or_else(|log| panic!("the successor gave up: {log}"));
    }

    /// The same, or what the process said that gave up.
    ///
    /// # Errors
    /// What it said.
    ///
    /// # Panics
    /// When the former process does not end with 0.
    #[track_caller]
    pub fn try_hand_over_to(&mut self, next: Successor) -> Result<(), String> {
        let (child, log_start) = next.served()?;
        let mut former = self.become_of(child, log_start).expect("running");
        let mut status = None;
        wait_for("the former process to end", LIMIT, || {
            status = former.try_wait().expect("wait");
            status.is_some()
        });
        assert!(status.expect("ended").success(), "the former process: {status:?}");
        Ok(())
    }

    /// Whether `next` serves the mount, whose process was killed; it ended by itself if not.
    pub fn is_succeeded_by(&mut self, next: Successor) -> bool {
        let served = next.served().map_err(|log| eprintln!("the successor gave up: {log}"));
        served.is_ok_and(|(child, log_start)| self.become_of(child, log_start).is_none())
    }
}
