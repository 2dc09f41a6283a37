//! What is about the session itself.

use super::read::messages;
use crate::rpc::codec::{Item, Reader, Wire, fields, tags};
use sluice_base::{Ino, SessionId};

messages! {
    /// Begins a session. Needs none.
    Begin<'a> {
        /// Who it is, for people: host and mount point. At most [`Begin::NAME_BYTES_MAX`].
        name: &'a [u8],
    }
    /// Answers [`Begin`].
    Begun {
        /// The session.
        session: SessionId,
        /// Its epoch.
        epoch: u32,
        /// The lease, in milliseconds.
        lease_ms: u32,
        /// The server's line of changes.
        line: u64,
    }
    /// Goes on with a session over a new connection, after a restart of the server, or after the lease ended. Needs none.
    Resume {
        /// The session.
        session: SessionId,
        /// The epoch that is known.
        epoch: u32,
        /// Another process goes on with it: the epoch grows, and the old incarnation is fenced.
        take_over: Option<Claim>,
        /// Inodes that are in use, so that those without a name live on; more by [`Hold`].
        uses: Vec<Ino>,
    }
    /// Answers [`Resume`].
    Resumed {
        /// The epoch from now on.
        epoch: u32,
        /// The lease, in milliseconds.
        lease_ms: u32,
        /// What was cached is still valid, but for pushes that follow. Otherwise everything is to be dropped first.
        kept: bool,
        /// Number of the last push that is old news, when nothing was kept: pushes go on behind it.
        pushes: u64,
        /// The highest number of a change whose result is kept, or was seen.
        numbers: u64,
        /// The server's line of changes.
        line: u64,
    }
    /// Renews the lease, as every other request does.
    Renew {}
    /// Ends the session and gives everything back.
    End {}
    /// These inodes are no longer open. One without a name goes once nobody uses it.
    Release {
        /// The inodes, at most [`Release::INOS_MAX`].
        inos: Vec<Ino>,
        /// They are still cached, so that invalidations go on. What has no name is given back all the same.
        cached: bool,
    }
    /// These inodes are in use: see [`Resume`].
    Hold {
        /// The inodes.
        inos: Vec<Ino>,
    }
    /// All sessions, for status. Needs none.
    ListSessions {}
    /// Answered when the server's log survives power loss up to a record; false when that is of another run of the server.
    SyncLog {
        /// The run.
        life: u32,
        /// The record.
        record: u64,
    }
    /// Answered when the store has the metadata as the server has it now: with whatever it answered before, on this line. A server that was
    /// recovered from its store is of another one.
    Ship {
        /// The line of changes of the server that answered before.
        line: u64,
    }
    /// After a [`Resume`] in a new run of the server: all that the earlier one answered, and that it may have lost, was sent again.
    Resent {
        /// Changes up to this number that come now are not to be done any more; 0 bars none.
        barred: u64,
    }
    /// A session as status shows it.
    SessionStatus {
        /// The session.
        session: SessionId,
        /// Its epoch.
        epoch: u32,
        /// Its name.
        name: Vec<u8>,
        /// How it is.
        state: Liveness,
        /// Milliseconds that are left in this state.
        left_ms: u64,
        /// Inodes noted as cached or held.
        inodes: u64,
        /// Inodes held open.
        open: u64,
        /// Pushes that it has not acked.
        pushes: u64,
    }
}

impl Item for SessionStatus {}

/// What a process asks for that takes a session over. It is durable where that process keeps its journal before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The epoch from then on: greater than every one that was asked for before.
    pub epoch: u32,
    /// Drawn anew for each epoch that is presented, so that whoever asks once more from there is known.
    pub secret: u64,
}

fields! { Claim { epoch, secret } }

impl Begin<'_> {
    /// Longest name of a session.
    pub const NAME_BYTES_MAX: usize = 255;
}

impl Release {
    /// Most inodes of one request, by its length.
    pub const INOS_MAX: usize = 30_000;
}

/// How a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It has a lease.
    Live,
    /// The server was restarted, and it has not been resumed yet.
    Grace,
    /// Its lease ended; it may be resumed.
    Expired,
}

tags! { Liveness { 1 = Live, 2 = Grace, 3 = Expired } }
