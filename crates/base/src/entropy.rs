//! Randomness enters here, so that a seed can replay a run.

use parking_lot::Mutex;
use rand::{RngCore, SeedableRng, rngs::SmallRng};

/// A source of random bytes.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// The kernel's generator.
pub struct OsEntropy;

impl Entropy for OsEntropy {
    #[allow(clippy::disallowed_methods, reason = "this is the place where real randomness enters")]
    fn fill(&self, bytes: &mut [u8]) {
        // getrandom(2) fails only where the system call itself is missing.
        getrandom::fill(bytes).expect("the kernel gives random bytes");
    }
}

/// The same bytes for the same seed.
pub struct SeededEntropy(Mutex<SmallRng>);

impl SeededEntropy {
    /// A generator that `seed` determines.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(SmallRng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill_bytes(bytes);
    }
}
