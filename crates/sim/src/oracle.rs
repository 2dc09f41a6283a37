//! What may be seen, by what was answered.
//!
//! One thread runs at a time, so a counter orders everything: each call has the tick at which it began and the one at which it was
//! answered. A value is stale when another one replaced it for sure: it began after the value was settled, and whoever looks must
//! know of it. What was not answered, or answered with an error, may have happened or not, at any time from then on; so it makes
//! nothing stale, and is never stale itself.
//!
//! Every 8 bytes of a unit tell which write they are of and where they belong, so wrong bytes are known as such.

mod data;
mod names;

use data::{File, Write};
pub use data::{UNIT_BYTES, unit_of};
use names::Name;
use sluice_base::Ino;
use std::collections::BTreeMap;

/// A tick of the counter. The end of a call that has none is later than all.
pub type Tick = u64;
pub const NEVER: Tick = u64::MAX;

/// See the module.
#[derive(Default)]
pub struct Oracle {
    tick: Tick,
    pub names: BTreeMap<String, Name>,
    pub files: BTreeMap<Ino, File>,
    pub writes: Vec<Write>,
}

impl Oracle {
    /// The next tick.
    pub fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }
}
