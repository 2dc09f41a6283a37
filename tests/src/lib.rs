//! What the end-to-end tests share: a volume and its mount, an S3 server, trees that can be compared, another user.
//!
//! Every test owns everything it touches: a directory of its own (under `TMPDIR`), its own mount process, its own port.
//! The mount runs in the foreground as a child of the test, so that the test knows its pid, can end it at any moment and
//! sees what it wrote to stderr. Dropping a [`Mount`] detaches the mount point and ends exactly that process.
//!
//! | variable | meaning |
//! |---|---|
//! | `SLUICE_BIN` | the binary to test; default: `target/release/sluice` of the workspace |
//! | `SLUICE_TEST_LOCAL=1` | use a plain local directory where a test asks for a [`Place`]: checks the tests themselves |
//! | `SLUICE_TEST_REMOTE=1` | mount by way of a server where a test asks for a [`Place`] |
//! | `SLUICE_TEST_MOUNT_OPTIONS` | further options of every mount, separated by spaces |
//! | `SLUICE_SEED` | seed of the random tests; printed by each of them |

mod clock;
mod front;
mod gateway;
pub mod group;
mod lock;
mod locker;
mod place;
mod poll;
mod proxy;
mod run;
mod server;
mod small_disk;
mod successor;
mod tree;
mod uring;
mod user;
mod volume;

pub use clock::WrongClock;
pub use front::{Answer, Asked, Front};
pub use gateway::{Gateway, SECRET};
pub use lock::{LockKind, set_range_lock, would_block_on};
pub use locker::{Locker, told};
pub use place::Place;
pub use poll::{Stopwatch, eventually, wait_for};
pub use proxy::{Proxy, Stuck, Way};
pub use run::{Ran, run, shell, sluice, sluice_binary};
pub use server::Server;
pub use small_disk::SmallDisk;
pub use successor::Successor;
pub use tree::{Content, Node, Tree, TreeOptions, compare_trees, read_tree};
pub use uring::UringConsent;
pub use user::{NOBODY, as_user};
pub use volume::{Mount, Scratch, Volume};

/// A thread beside the test.
///
/// # Panics
/// When there are too many.
pub fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    std::thread::Builder::new().name("background".into()).spawn(work).expect("a thread")
}

/// True when the tests run against a plain local directory to check the tests themselves.
pub fn local_mode() -> bool {
    std::env::var_os("SLUICE_TEST_LOCAL").is_some_and(|v| v == "1")
}

/// True when a [`Place`] is a mount of another process's volume.
pub fn remote_mode() -> bool {
    std::env::var_os("SLUICE_TEST_REMOTE").is_some_and(|v| v == "1")
}

/// True when a test that is about the binary itself cannot run, because only a local directory is under test.
pub fn skipped_in_local_mode(test: &str) -> bool {
    if local_mode() {
        eprintln!("{test}: needs the binary, not run with SLUICE_TEST_LOCAL=1");
    }
    local_mode()
}

/// Ends a test that is about the binary itself where only a local directory is under test.
#[macro_export]
macro_rules! needs_binary {
    () => {
        if $crate::skipped_in_local_mode(module_path!()) {
            return;
        }
    };
}

/// Bytes that no other place of a volume holds, different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng, rngs::StdRng};
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// The number in an environment variable, or `default` when it is not set.
///
/// # Panics
/// When the variable is set to something that is not a number: a run with a mistyped seed must not pass for one.
pub fn number_from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a whole number")),
        Err(_) => default,
    }
}

/// A seed from `SLUICE_SEED`, or a fresh one; printed, so that a failing run can be repeated.
pub fn seed(test: &str) -> u64 {
    let seed = number_from_env("SLUICE_SEED", rand::random::<u32>().into());
    eprintln!("{test}: SLUICE_SEED={seed}");
    seed
}
