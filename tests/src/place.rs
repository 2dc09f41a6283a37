//! Where a test of file system behaviour runs: a fresh mount, or a plain directory to check the test itself.

use std::path::{Path, PathBuf};

use crate::{Mount, Scratch, Server, Volume, local_mode, remote_mode};

/// An empty directory to work in.
#[derive(Debug)]
pub struct Place {
    root: PathBuf,
    mount: Option<Mount>,
    // After the mount, which needs it to its end.
    _server: Option<Server>,
    _scratch: Option<Scratch>,
}

impl Place {
    /// A fresh volume, mounted; with `SLUICE_TEST_LOCAL=1` a plain directory, with `SLUICE_TEST_REMOTE=1` mounted from a server.
    #[expect(clippy::new_without_default, reason = "it mounts: not a default value")]
    #[track_caller]
    pub fn new() -> Self {
        if local_mode() {
            let scratch = Scratch::new();
            return Self { root: scratch.path().to_owned(), mount: None, _server: None, _scratch: Some(scratch) };
        }
        let server = remote_mode().then(Server::new);
        let mount = server.as_ref().map_or_else(|| Volume::new().up(), |server| server.mount("mnt"));
        Self { root: mount.root().to_owned(), mount: Some(mount), _server: server, _scratch: None }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Unmounts and mounts again, so that nothing that follows is answered from memory.
    #[track_caller]
    pub fn remount(&mut self) {
        if let Some(mount) = self.mount.take() {
            self.mount = Some(mount.remount());
        }
    }
}
