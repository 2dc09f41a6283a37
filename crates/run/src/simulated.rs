//! The same names inside and outside a simulation.

pub mod lock;
pub mod net;
mod scheduler;
pub mod simulation;
pub mod task;
pub mod thread;
pub mod time;
pub mod watch;
mod worker;

use scheduler::current;

/// Maps whose order of iteration is the same in each run of a seed.
pub mod collections {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    /// A map; made by `default`, as `new` is only the other hasher's.
    pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
    /// A set; made by `default`.
    pub type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<DefaultHasher>>;
}
