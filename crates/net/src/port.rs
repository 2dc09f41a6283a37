//! Lanes for data: threads that own their sockets, without a runtime.
//!
//! A [`Port`] belongs to one thread and has that thread's lanes to its peers: what is asked on the thread is answered on it, and nothing
//! is handed over, locked or allocated on the way. Its descriptor is watched by whatever else the thread waits for. A [`DataServer`] is the
//! other side: a few threads that answer what is at hand at once, by sendfile where it lies in a file, and leave the rest to futures.
//! Both drive `sluice_wire::Connection`, as the tasks of [`crate::Client`] and [`crate::Server`] do, which carry what must wait and what is
//! simulated.
//!
//! **Small and bulk lanes.** A small lane carries requests and answers below 64 KiB: its input is read as much as there is into one
//! buffer of the thread, and handled where it lies. A bulk lane carries large answers: their header is read alone, then the
//! body straight to where it belongs, a buffer or a pipe ([`Sink`]); so no small answer waits behind a megabyte.
//!
//! **Wake-ups.** What is asked is sent when nothing more is asked, or at 4 KiB ([`Techniques::coalesce`]). While a large body comes, the
//! socket becomes readable again with what is left of it, or half a megabyte (SO_RCVLOWAT).
//!
//! **The number of bulk lanes** to a peer follows its traffic (`port/policy.rs`).
//!
//! Every technique has a switch, [`Techniques`], and a count, [`PortStats`], for `sluice bench net`.

mod client;
mod policy;
mod server;
mod sink;
mod socket;
mod stats;
mod stream;

pub use client::{Arrived, Ask, AskError, Done, NotSent, NotSentWhy, PeerKey, Port, PortOptions, Ticket};
pub use policy::LaneLimits;
pub use server::{Answer, DataPeer, DataServer, DataServerOptions, DataService};
pub use sink::{Place, Sink};
pub use stats::PortStats;

/// What makes lanes fast, each to be switched off to see what it brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// Many requests under way on a lane; without it one, and as many lanes as requests.
    pub multiplex: bool,
    /// Small requests and answers have lanes of their own.
    pub small_lanes: bool,
    /// What is sent is gathered until nothing more is there, or 4 KiB.
    pub coalesce: bool,
    /// Small lanes read as much as there is; without it header and body one by one.
    pub batch: bool,
    /// SO_RCVLOWAT while a large body comes.
    pub low_water: bool,
    /// Bodies that lie in files leave by sendfile; without it they are read and written.
    pub sendfile: bool,
}

impl Default for Techniques {
    fn default() -> Self {
        Self { multiplex: true, small_lanes: true, coalesce: true, batch: true, low_water: true, sendfile: true }
    }
}

impl Techniques {
    /// None of them: a connection for each request, as it is written first.
    pub const PLAIN: Self =
        Self { multiplex: false, small_lanes: false, coalesce: false, batch: false, low_water: false, sendfile: false };
}
