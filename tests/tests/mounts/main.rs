//! One volume, several mounts: what one closes the others see, and what happens when one of them, or the server, goes.

mod bytes;
mod clocks;
mod crowd;
mod ends;
mod killed;
mod mistakes;
mod recover;
mod server;
mod sharing;

use sluice_tests::noise;
use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    process::Command,
};

/// The file's bytes, or the errno of whatever failed.
fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, Option<i32>> {
    let mut bytes = Vec::new();
    let done = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    done.map(|_| bytes).map_err(|error| error.raw_os_error())
}

/// Writes a file by a process of its own. A test that starts the server must have no file of a mount open to write: between fork and exec the
/// new process would close its copy, which waits for the mount, which waits for the server.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut source = tempfile::NamedTempFile::new()?;
    source.write_all(bytes)?;
    let done = Command::new("cp").arg(source.path()).arg(path).output()?;
    if done.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()))
    }
}
