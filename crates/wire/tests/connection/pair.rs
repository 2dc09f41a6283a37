//! Two connections and the bytes between them.

use bytes::Bytes;
use sluice_base::{SessionId, VolumeId};
use sluice_wire::{Clear, Connection, Event, Hello, LaneClass, Options, PeerKind, Records, Session, Welcome};
use std::time::Duration;

pub const VOLUME: VolumeId = VolumeId([3; 16]);

pub fn hello() -> Hello {
    let session = Some(Session { id: SessionId(4), epoch: 1 });
    Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(VOLUME), session, name: "mount".into() }
}

pub fn welcome() -> Welcome {
    Welcome { volume: VOLUME, session: None, name: "server".into() }
}

pub struct Pair {
    pub now: Duration,
    pub initiator: Connection,
    pub acceptor: Connection,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Initiator,
    Acceptor,
}

impl Side {
    pub fn other(self) -> Side {
        if self == Side::Initiator { Side::Acceptor } else { Side::Initiator }
    }
}

impl Pair {
    pub fn new(initiator: Options, acceptor: Options) -> Self {
        Self::with_records(initiator, acceptor, || Box::new(Clear))
    }

    pub fn with_records(initiator: Options, acceptor: Options, records: impl Fn() -> Box<dyn Records>) -> Self {
        let now = Duration::from_secs(1000);
        Self {
            now,
            initiator: Connection::initiator(now, hello(), initiator, records()),
            acceptor: Connection::acceptor(now, acceptor, records()),
        }
    }

    /// A pair that has shaken hands.
    pub fn open() -> Self {
        Self::open_with(Options::default(), Options::default())
    }

    pub fn open_with(initiator: Options, acceptor: Options) -> Self {
        let mut pair = Self::new(initiator, acceptor);
        pair.shake();
        pair
    }

    pub fn shake(&mut self) {
        self.run();
        assert_eq!(self.acceptor.poll_event(), Some(Event::Hello(hello())));
        self.acceptor.accept(welcome());
        self.run();
        let established = Some(Event::Established { version: 1, welcome: welcome() });
        assert_eq!(self.initiator.poll_event(), established);
        assert_eq!(self.acceptor.poll_event(), established);
    }

    pub fn side(&mut self, side: Side) -> &mut Connection {
        match side {
            Side::Initiator => &mut self.initiator,
            Side::Acceptor => &mut self.acceptor,
        }
    }

    /// Takes up to `bytes_max` of what `side` sends.
    pub fn sent(&mut self, side: Side, bytes_max: usize) -> Vec<u8> {
        let now = self.now;
        transmit(self.side(side), now, bytes_max)
    }

    /// Moves everything both ways until nothing is sent any more.
    pub fn run(&mut self) {
        loop {
            let (there, back) = (self.sent(Side::Initiator, usize::MAX), self.sent(Side::Acceptor, usize::MAX));
            if there.is_empty() && back.is_empty() {
                return;
            }
            // Their errors are events too.
            let _ = self.acceptor.handle_input(self.now, &there);
            let _ = self.initiator.handle_input(self.now, &back);
        }
    }

    /// Lets time go on, and both see it.
    pub fn pass(&mut self, by: Duration) {
        self.now += by;
        self.initiator.handle_timeout(self.now);
        self.acceptor.handle_timeout(self.now);
    }
}

pub fn transmit(connection: &mut Connection, now: Duration, bytes_max: usize) -> Vec<u8> {
    let mut pieces: Vec<Bytes> = Vec::new();
    let taken = connection.poll_transmit(now, &mut pieces, bytes_max);
    let sent = pieces.concat();
    assert_eq!(sent.len(), taken);
    assert!(taken <= bytes_max);
    sent
}

pub fn events(connection: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| connection.poll_event()).collect()
}
