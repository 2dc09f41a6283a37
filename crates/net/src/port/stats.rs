//! What a thread's lanes did.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PortStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Of one thread; read by others.
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            pub(super) fn read(&self) -> PortStats {
                PortStats { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl PortStats {
            /// Each with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// From numbers in the order of [`Self::named`]; `None` if they are too few.
            pub fn from_numbers(numbers: &mut impl Iterator<Item = u64>) -> Option<Self> {
                Some(Self { $($name: numbers.next()?,)* })
            }

            /// The sum of both.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }

            /// What was added since `before`.
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(before.$name),)* }
            }
        }
    };
}

stats! {
    /// Returns from epoll_wait with something to do.
    wakeups,
    /// Reads of sockets.
    reads,
    /// Bytes that came.
    read_bytes,
    /// Writes of bytes from memory.
    writes,
    /// Bytes that went, in any way.
    sent_bytes,
    /// Calls of sendfile.
    sendfiles,
    /// Calls of splice from a socket into a pipe.
    splices,
    /// Bodies whose pipe was full, so that the rest was copied.
    pipes_full,
    /// Changes of SO_RCVLOWAT.
    low_waters,
    /// Requests sent or taken.
    requests,
    /// Requests that have ended, with an answer or without one; or answers sent.
    answers,
    /// Requests that were answered by a future.
    later,
    /// Of these, those that the peer cancelled before they were answered.
    cancelled,
    /// Connections made or taken.
    connections,
    /// Bulk lanes added, as the traffic grew.
    lanes_added,
    /// Bulk lanes given up, as it shrank.
    lanes_removed,
}

pub(super) type Shared = Arc<Counters>;

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Relaxed);
}
