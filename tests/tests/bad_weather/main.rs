//! Bad input and bad weather: mistakes of people, failing disks and stores, flipped bits.
//!
//! Each test says first what must be survived. All of them need the binary.

mod command_line;
mod control_socket;
mod corruption;
mod detached;
mod full_disks;
mod logs;
mod mistakes;
mod outages;

use sluice_tests::skipped_in_local_mode;

/// Returns from the test when only a local directory is under test.
macro_rules! needs_binary {
    () => {
        if crate::skipped_in_local_mode(module_path!()) {
            return;
        }
    };
}
pub(crate) use needs_binary;

/// Bytes that no other place of a volume holds, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng, rngs::StdRng};
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
