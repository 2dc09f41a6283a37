//! Threads, tasks, time, locks and connections, by one name for the binary and for the simulation.
//!
//! Without the feature `simulated` these are the ones of std, tokio and parking_lot themselves, at no cost. With it they look where
//! they are called: inside a simulation (`simulation::run`) they belong to its scheduler, which lets one thread run at a time, chosen
//! by a seed, and whose time passes only when nobody can run; elsewhere they are the real ones as before, so that a build of the whole
//! workspace may have the feature on.
//!
//! What waits must wait through this crate. tokio's channels, `Notify` and `Semaphore` are used as they are, all but `watch`: they
//! know no runtime, only wakers, and keep an order. Of `tokio::select!` the biased form is used, as the other one rolls dice of its own.

#![forbid(unsafe_code)]

mod bug;
#[cfg(feature = "simulated")]
mod simulated;

pub use bug::Bug;

#[cfg(feature = "simulated")]
pub use simulated::{collections, lock, net, simulation, task, thread, time, watch};

/// Threads.
#[cfg(not(feature = "simulated"))]
pub mod thread {
    pub use std::thread::{Builder, JoinHandle, ThreadId, current};
}

/// Locks that block their thread.
#[cfg(not(feature = "simulated"))]
pub mod lock {
    pub use parking_lot::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
    };
}

/// Tasks, and what they leave to threads.
#[cfg(not(feature = "simulated"))]
pub mod task {
    pub use tokio::{
        runtime::Handle,
        spawn,
        task::{JoinHandle, JoinSet, block_in_place, spawn_blocking},
    };

    /// The runtime of the process, for the parts that spawn on it.
    pub fn handle(of: &tokio::runtime::Handle) -> Handle {
        of.clone()
    }
}

/// Time for tasks. What may be cached, leased or logged goes by `sluice_base::Clock`.
#[cfg(not(feature = "simulated"))]
pub mod time {
    pub use tokio::time::{Instant, Sleep, error::Elapsed, sleep, sleep_until, timeout, timeout_at};

    /// Now, for deadlines of this module.
    pub fn now() -> Instant {
        Instant::now()
    }
}

/// A value that is watched.
#[cfg(not(feature = "simulated"))]
pub mod watch {
    pub use tokio::sync::watch::{Receiver, Ref, Sender, channel};
}

/// Connections.
#[cfg(not(feature = "simulated"))]
pub mod net {
    use rustix::net::Shutdown;
    pub use tokio::net::{TcpListener, TcpStream};

    /// No more is written.
    pub fn shutdown_write(stream: &TcpStream) -> std::io::Result<()> {
        Ok(rustix::net::shutdown(stream, Shutdown::Write)?)
    }

    /// Nothing is read or written any more.
    pub fn shutdown_both(stream: &TcpStream) -> std::io::Result<()> {
        Ok(rustix::net::shutdown(stream, Shutdown::Both)?)
    }
}

/// Maps whose order of iteration is the same in each run of a seed.
#[cfg(not(feature = "simulated"))]
pub mod collections {
    pub use std::collections::{HashMap, HashSet};
}
