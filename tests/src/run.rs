//! Running programs with a time limit and with everything they print kept for the failure message.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::eventually;

/// No command of the binary may take longer than this on the small volumes of the tests.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How a program ended and what it printed.
#[derive(Debug)]
pub struct Ran {
    /// The command, as a person would type it.
    pub command: String,
    /// Exit status; `None` when a signal (ours, after the time limit) ended it.
    pub code: Option<i32>,
    /// Everything written to standard output.
    pub stdout: String,
    /// Everything written to standard error.
    pub stderr: String,
}

impl Ran {
    /// Returns itself after checking that the exit status was 0.
    ///
    /// # Panics
    /// When it was not, with everything the program printed.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}\n{}\n{}", self.command, self.stdout, self.stderr);
        self
    }

    /// Checks that the program refused: exit status 1 and an explanation on stderr that has every word given. `a|b` asks
    /// for one of the two.
    ///
    /// # Panics
    /// When it succeeded, died by a signal or a panic, or left one of the words out.
    #[track_caller]
    pub fn refused_with(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "expected a refusal: {self:#?}");
        assert!(!self.stderr.contains("panicked"), "a panic is not an explanation: {self:#?}");
        let message = self.stderr.to_lowercase();
        for word in words {
            let said = word.split('|').any(|word| message.contains(&word.to_lowercase()));
            assert!(said, "`{word}` is missing from the explanation: {self:#?}");
        }
        self
    }

    /// Standard output read as JSON.
    ///
    /// # Panics
    /// When it is not JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("not JSON ({e}): {self:#?}"))
    }
}

/// Runs a command to its end, or kills it when `limit` passes (its exit status is then `None`).
///
/// # Panics
/// When the program cannot be started.
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Ran {
    let mut out = tempfile::tempfile().expect("a temporary file");
    let mut err = tempfile::tempfile().expect("a temporary file");
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("dup"))
        .stderr(err.try_clone().expect("dup"))
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {shown}: {e}; `make deps` installs what the tests use"));
    let mut status = None;
    let ended = eventually(limit, || {
        status = child.try_wait().expect("wait");
        status.is_some()
    });
    if !ended {
        child.kill().expect("kill");
        child.wait().expect("wait");
        eprintln!("{shown}: ended after {limit:?}");
    }
    let stdout = read_back(&mut out);
    Ran { command: shown, code: status.and_then(|s| s.code()), stdout, stderr: read_back(&mut err) }
}

fn read_back(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("read the output back");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a bash script in `dir` with the exit-on-error options set.
///
/// # Panics
/// When it does not end with status 0 within five minutes.
#[track_caller]
pub fn shell(dir: &Path, script: &str) -> Ran {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]).current_dir(dir);
    run(&mut bash, Duration::from_secs(300)).ok()
}

/// Runs the binary under test.
#[track_caller]
pub fn sluice<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    run(Command::new(sluice_binary()).args(args), COMMAND_LIMIT)
}

/// Where the binary under test is.
///
/// # Panics
/// When there is none: a suite that silently tests nothing is worse than one that fails.
pub fn sluice_binary() -> PathBuf {
    let path = std::env::var_os("SLUICE_BIN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/sluice"), PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `make build` first, or set SLUICE_BIN", path.display());
    path
}
