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
mod moods;
mod outages;
mod scrub;

use sluice_tests::{needs_binary, noise};
