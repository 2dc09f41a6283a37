//! The kernel's consent to FUSE over io_uring, which is one setting for the whole host.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    path::PathBuf,
};

/// Root may write it.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The setting as a test wants it; put back when this is dropped. Tests take turns: hold it no longer than until a mount answers, which
/// keeps its rings whatever is set then.
#[derive(Debug)]
pub struct UringConsent {
    before: String,
    _turn: File,
}

impl UringConsent {
    /// Gives or takes it.
    ///
    /// # Panics
    /// When that is not possible, with what to do: a test of rings that did not have any would prove nothing.
    #[must_use]
    pub fn set(wanted: bool) -> Self {
        let path: PathBuf = std::env::temp_dir().join("sluice-test.enable_uring");
        let turn = File::options().create(true).append(true).open(&path).expect("a lock file");
        flock(&turn, FlockOperation::LockExclusive).expect("flock");
        let before = fs::read_to_string(PARAMETER).unwrap_or_else(|e| {
            panic!("{PARAMETER}: {e}; tests of FUSE over io_uring need Linux 6.14 with CONFIG_FUSE_IO_URING")
        });
        let consent = Self { before, _turn: turn };
        let value = if wanted { "Y" } else { "N" };
        if consent.before.trim() != value {
            fs::write(PARAMETER, value)
                .unwrap_or_else(|e| panic!("{PARAMETER}: {e}; run these tests as root, or write {value} there first"));
        }
        consent
    }
}

impl Drop for UringConsent {
    fn drop(&mut self) {
        if let Err(error) = fs::write(PARAMETER, self.before.trim()) {
            eprintln!("{PARAMETER} was not put back to {}: {error}", self.before.trim());
        }
    }
}
