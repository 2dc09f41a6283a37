//! A server of files' bytes, and a port that asks it.

use bytes::Bytes;
use sluice_base::{
    Clock, SystemClock, VolumeId,
    crc::{Crc32c, crc32c},
};
use sluice_net::{
    Failure, Refusal,
    port::{
        Answer, Arrived, Ask, AskError, DataPeer, DataServer, DataServerOptions, DataService, Done, PeerKey, Port,
        PortOptions, Techniques,
    },
};
use sluice_wire::{Hello, LaneClass, Payload, PeerKind, Piece, Region, RequestRef, Welcome};
use std::{
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub const VOLUME: VolumeId = VolumeId([5; 16]);
/// Bytes of the file.
pub const FILE_BYTES: usize = 8 << 20;
/// Methods: bytes of the file from memory, by region, later; a failure; never.
pub const MEMORY: u16 = 1;
pub const REGION: u16 = 2;
pub const LATER: u16 = 3;
pub const FAIL: u16 = 4;
pub const NEVER: u16 = 5;
pub const PANIC: u16 = 6;

/// A range of the file; counts those that are alive.
#[derive(Debug)]
struct Part {
    file: Arc<File>,
    offset: u64,
    len: usize,
    alive: Arc<AtomicUsize>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Region for Part {
    fn len(&self) -> usize {
        self.len
    }
    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, self.offset + offset as u64)
    }
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.file.as_fd(), self.offset))
    }
}

pub struct Files {
    file: Arc<File>,
    pub bytes: Vec<u8>,
    pub alive: Arc<AtomicUsize>,
    pub peers: AtomicUsize,
}

impl Files {
    fn new() -> Self {
        let bytes: Vec<u8> =
            (0..FILE_BYTES / 4).flat_map(|at| (at as u32).wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("room");
        Self { file: Arc::new(file), bytes, alive: Arc::default(), peers: AtomicUsize::new(0) }
    }

    fn memory(&self, offset: usize, len: usize) -> Payload {
        Bytes::copy_from_slice(&self.bytes[offset..offset + len]).into()
    }
}

impl DataService for Files {
    fn hello(&self, hello: &Hello, _: std::net::SocketAddr) -> Result<Welcome, Refusal> {
        match hello.volume.filter(|volume| *volume != VOLUME) {
            Some(other) => Err(Refusal::other_volume(other, VOLUME)),
            None => Ok(Welcome { volume: VOLUME, session: None, name: "files".into() }),
        }
    }

    fn opened(&self, _: &DataPeer) {
        self.peers.fetch_add(1, Ordering::SeqCst);
    }

    fn gone(&self, _: &DataPeer, _: &sluice_wire::ConnectionError) {
        self.peers.fetch_sub(1, Ordering::SeqCst);
    }

    fn epoch(&self) -> u32 {
        7
    }

    fn call(&self, _: &DataPeer, request: RequestRef<'_>) -> Answer {
        let (offset, len) = decode(request.body.bytes);
        match request.method {
            MEMORY => Answer::Now(self.memory(offset, len)),
            REGION => {
                self.alive.fetch_add(1, Ordering::SeqCst);
                let (file, alive) = (self.file.clone(), self.alive.clone());
                let part = Part { file, offset: offset as u64 + 4, len: len - 4, alive };
                let head = Bytes::copy_from_slice(&self.bytes[offset..offset + 4]);
                let mut crc = Crc32c::default();
                crc.update(&self.bytes[offset..offset + len]);
                let pieces = vec![Piece::Bytes(head), Piece::Region(Arc::new(part))];
                Answer::Now(Payload::from(pieces).with_crc(crc.value()).unchecked())
            }
            LATER => {
                let payload = self.memory(offset, len);
                Answer::Later(Box::pin(async move {
                    tokio::task::yield_now().await;
                    Ok(payload)
                }))
            }
            NEVER => Answer::Later(Box::pin(std::future::pending())),
            PANIC => panic!("a handler with a fault"),
            _ => Answer::Failed(Failure::new(42, "not this")),
        }
    }
}

pub fn encode(offset: usize, len: usize) -> [u8; 16] {
    let mut body = [0; 16];
    body[..8].copy_from_slice(&(offset as u64).to_le_bytes());
    body[8..].copy_from_slice(&(len as u64).to_le_bytes());
    body
}

fn decode(body: &[u8]) -> (usize, usize) {
    let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes")) as usize;
    (number(0), number(8))
}

pub fn hello() -> Hello {
    Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(VOLUME), session: None, name: "test".into() }
}

pub struct Rig {
    pub files: Arc<Files>,
    pub server: Option<DataServer>,
    pub port: Port<Vec<u8>>,
    pub peer: PeerKey,
    pub clock: Arc<dyn Clock>,
    _runtime: tokio::runtime::Runtime,
}

impl Rig {
    pub fn new(techniques: Techniques) -> Self {
        let options = DataServerOptions { threads: 2, techniques, ..DataServerOptions::default() };
        Self::with(PortOptions { techniques, ..PortOptions::default() }, options)
    }

    pub fn with(options: PortOptions, server_options: DataServerOptions) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("one");
        let files = Arc::new(Files::new());
        let any = "127.0.0.1:0".parse().expect("an address");
        let server = DataServer::bind(any, files.clone(), server_options, clock.clone(), runtime.handle().clone());
        let server = server.expect("a port is free");
        let mut port = Port::new(options, clock.clone()).expect("descriptors");
        let peer = port.peer(server.address(), hello());
        let mut rig = Self { files, server: Some(server), port, peer, clock, _runtime: runtime };
        rig.connect();
        rig
    }

    pub fn connect(&mut self) {
        let until = self.clock.monotonic() + Duration::from_secs(10);
        while !self.port.is_connected(self.peer) {
            assert!(self.clock.monotonic() < until, "not connected in time");
            self.port.turn(Some(Duration::from_millis(10)), |_| panic!("nothing was asked")).expect("it waits");
        }
    }

    pub fn ask(&mut self, method: u16, offset: usize, len: usize, token: u64) -> bool {
        self.ask_within(method, offset, len, token, Duration::from_secs(20))
    }

    pub fn ask_within(&mut self, method: u16, offset: usize, len: usize, token: u64, within: Duration) -> bool {
        let deadline = self.clock.monotonic() + within;
        let body = encode(offset, len);
        let ask = Ask { method, body: &body, answer_bytes: len, deadline, token, into: Vec::new() };
        self.port.ask(self.peer, ask).is_ok()
    }

    /// What ends in one turn.
    pub fn turn(&mut self) -> Vec<Done<Vec<u8>>> {
        let mut all = Vec::new();
        self.port.turn(Some(Duration::from_millis(100)), |done| all.push(done)).expect("it waits");
        all
    }

    /// Everything that is under way, to its end.
    pub fn finish(&mut self) -> Vec<Done<Vec<u8>>> {
        let mut all = Vec::new();
        let until = self.clock.monotonic() + Duration::from_secs(30);
        while self.port.under_way() > 0 {
            assert!(self.clock.monotonic() < until, "{} requests hang", self.port.under_way());
            all.extend(self.turn());
        }
        all
    }

    /// That `done` is the answer for this range.
    pub fn check(&self, done: &Done<Vec<u8>>, offset: usize, len: usize) {
        let expected = &self.files.bytes[offset..offset + len];
        assert!(done.sink == expected, "request {} got other bytes", done.token);
        assert_eq!(done.outcome, Ok(Arrived { len, crc: crc32c(expected), epoch: 7 }));
    }

    pub fn failed(&mut self) -> AskError {
        match &self.finish()[..] {
            [Done { outcome: Err(error), .. }] => error.clone(),
            other => panic!("one failure was expected: {other:?}"),
        }
    }
}
