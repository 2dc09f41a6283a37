//! How many files and connections this process may have open at once.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_net::ServerOptions;

/// More than a process of ours needs: connections, slabs, tables, the kernel's clones.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// The usual soft limit of 1024 is there for programs that use select(2), which this one does not.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    if current.is_some_and(|current| current < wanted) {
        // Where that is not allowed there are fewer connections.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Settings of a server: strangers that connect leave half of the descriptors to the volume's own files.
pub fn server_options() -> ServerOptions {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX);
    let options = ServerOptions::default();
    ServerOptions {
        connections_max: options.connections_max.min(usize::try_from(limit / 2).unwrap_or(usize::MAX)),
        ..options
    }
}
