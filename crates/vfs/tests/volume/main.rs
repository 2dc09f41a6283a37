//! The vfs from the outside: only public calls, over disks and a store that fail, lose power, fill up and lie.

#![allow(missing_docs)]

mod ahead;
mod bits;
mod faults;
mod gc;
mod harness;
mod model;
mod overwrites;
mod owner;
mod power;
mod threads;
mod turns;
mod warm;
