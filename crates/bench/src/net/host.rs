//! The side that is read from.

use super::{
    case::Case,
    control::{OBJECT_BYTES, OPEN, RAW, RAW_USAGE, READ, Read, USAGE, Usage},
    raw,
};
use bytes::{Bytes, BytesMut};
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use sluice_base::{
    Clock, ObjectId, VolumeId,
    crc::{crc32c, segment_crc},
    disk::RealDisk,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_net::{
    Failure, Refusal,
    port::{Answer, DataPeer, DataServer, DataServerOptions, DataService, PortStats},
};
use sluice_store::{Cache, CacheOptions};
use sluice_wire::{Hello, Limits, Options, Payload, Piece, Region, RequestRef, Welcome};
use std::{
    fmt,
    fs::File,
    io,
    net::SocketAddr,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// The volume that hosts pretend to serve, so that nothing else connects to them by mistake.
pub(super) const VOLUME: VolumeId = VolumeId(*b"sluice bench net");

/// A process that is read from.
pub struct Host {
    control: DataServer,
}

impl Host {
    /// Fills a cache of `bytes` below `dir` and listens at `address`.
    pub fn start(
        dir: &Path,
        bytes: u64,
        address: SocketAddr,
        clock: Arc<dyn Clock>,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let objects = (bytes / OBJECT_BYTES as u64).max(1) as u32;
        // A slot more than there are objects, as a full cache makes room.
        let capacity_bytes = (u64::from(objects) + 1) * OBJECT_BYTES as u64;
        let options = CacheOptions { dir: dir.into(), capacity_bytes, volume: VOLUME };
        let cache = Cache::open(Arc::new(RealDisk), options, clock.clone())?;
        (0..objects).try_for_each(|number| fill(&cache, number))?;
        let service = Control {
            cache,
            objects,
            slab: dir.join("slab-00000"),
            clock: clock.clone(),
            runtime: runtime.clone(),
            open: Mutex::default(),
            raw_us: Arc::default(),
            address,
        };
        let options = DataServerOptions { threads: 1, ..DataServerOptions::default() };
        Ok(Self { control: DataServer::bind(address, Arc::new(service), options, clock, runtime)? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.control.address()
    }
}

/// The id of an object.
pub(super) fn id(number: u32) -> ObjectId {
    let mut id = *b"bench object    ";
    id[12..].copy_from_slice(&number.to_le_bytes());
    ObjectId(id)
}

fn fill(cache: &Cache, number: u32) -> anyhow::Result<()> {
    let (object, mut bytes) = (id(number), vec![0; SEGMENT_BYTES]);
    let mut random = SmallRng::seed_from_u64(number.into());
    for index in 0..SEGMENTS_PER_OBJECT as u32 {
        random.fill_bytes(&mut bytes);
        cache.fill(object, index, &bytes, segment_crc(object, index, &bytes))?;
    }
    Ok(())
}

/// Answers the client's questions of how, and opens data ports.
struct Control {
    cache: Cache,
    objects: u32,
    slab: PathBuf,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    /// The data port of now, and what former ones counted.
    open: Mutex<Opened>,
    raw_us: Arc<AtomicU64>,
    address: SocketAddr,
}

#[derive(Default)]
struct Opened {
    server: Option<DataServer>,
    before: PortStats,
}

impl Control {
    fn open(&self, case: &Case) -> io::Result<u16> {
        let service = Objects { cache: self.cache.clone(), objects: self.objects, combine: case.combine };
        let options = DataServerOptions { techniques: case.techniques, connection: connection(), ..Default::default() };
        let any = SocketAddr::new(self.address.ip(), 0);
        let server = DataServer::bind(any, Arc::new(service), options, self.clock.clone(), self.runtime.clone())?;
        let port = server.address().port();
        let mut open = self.open.lock().expect("nobody panicked");
        if let Some(former) = open.server.replace(server) {
            open.before = open.before.plus(&former.stats());
        }
        Ok(port)
    }

    fn usage(&self) -> Usage {
        let open = self.open.lock().expect("nobody panicked");
        let now = open.server.as_ref().map_or_else(PortStats::default, DataServer::stats);
        Usage::now(&open.before.plus(&now))
    }

    fn raw(&self, body: &[u8]) -> Option<io::Result<u16>> {
        let body: &[u8; 16] = body.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes"));
        let (total, step, file_bytes) = (number(0), number(8) as usize, u64::from(self.objects) * OBJECT_BYTES as u64);
        if step == 0 || step as u64 > file_bytes {
            return None;
        }
        self.raw_us.store(0, Ordering::Release);
        let file = File::open(&self.slab);
        Some(file.and_then(|file| raw::serve(file, file_bytes, total, step, self.raw_us.clone(), self.address)))
    }
}

/// Of a host and of its client: as much under way as a measurement asks for.
pub(super) fn connection() -> Options {
    Options {
        limits: Limits { requests_max: 1024, bytes_max: 16 << 20 },
        output_bytes_max: 64 << 20,
        ..Options::default()
    }
}

impl DataService for Control {
    fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        welcome(hello)
    }

    fn call(&self, _: &DataPeer, request: RequestRef<'_>) -> Answer {
        let body = request.body.bytes;
        let port = |port: io::Result<u16>| match port {
            Ok(port) => Answer::Now(port.to_le_bytes().to_vec().into()),
            Err(error) => Answer::Failed(Failure::new(2, error.to_string())),
        };
        match request.method {
            OPEN => Case::decode(body).map_or_else(malformed, |case| port(self.open(&case))),
            USAGE => Answer::Now(self.usage().encode().into()),
            RAW => self.raw(body).map_or_else(malformed, port),
            RAW_USAGE => Answer::Now(self.raw_us.load(Ordering::Acquire).to_le_bytes().to_vec().into()),
            _ => malformed(),
        }
    }
}

fn welcome(hello: &Hello) -> Result<Welcome, Refusal> {
    match hello.volume {
        Some(VOLUME) => Ok(Welcome { volume: VOLUME, session: None, name: "bench".into() }),
        other => Err(Refusal::other_volume(other.unwrap_or(VolumeId([0; 16])), VOLUME)),
    }
}

fn malformed() -> Answer {
    Answer::Failed(Failure::new(1, "the request does not parse"))
}

/// Serves objects as a node does: whole segments from where they lie, with the CRCs that are stored; parts of segments copied.
struct Objects {
    cache: Cache,
    objects: u32,
    combine: bool,
}

/// A run of segments on the disk.
struct Stored(sluice_store::Region);

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segments of {}", self.0.object())
    }
}

impl Region for Stored {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf).map_err(io::Error::other)
    }
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.file()
    }
}

impl Objects {
    fn read(&self, read: Read) -> Option<Payload> {
        let pin = self.cache.pin(id(read.object)).filter(|_| read.object < self.objects)?;
        let (offset, len) = (read.offset as usize, read.len as usize);
        let is_whole = offset.is_multiple_of(SEGMENT_BYTES) && len.is_multiple_of(SEGMENT_BYTES);
        if is_whole {
            let region = pin.region((offset / SEGMENT_BYTES) as u32, (len / SEGMENT_BYTES) as u32).ok()?;
            let crc = if self.combine {
                region.crc()
            } else {
                let mut bytes = vec![0; len];
                region.read_at(0, &mut bytes).ok()?;
                crc32c(&bytes)
            };
            return Some(Payload::from(vec![Piece::Region(Arc::new(Stored(region)))]).with_crc(crc).unchecked());
        }
        let mut bytes = BytesMut::zeroed(len);
        pin.read_resident_at(read.offset, &mut bytes).or_else(|_| pin.read_at(read.offset, &mut bytes)).ok()?;
        let bytes: Bytes = bytes.freeze();
        let crc = crc32c(&bytes);
        Some(Payload::from(bytes).with_crc(crc).unchecked())
    }
}

impl DataService for Objects {
    fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        welcome(hello)
    }

    fn call(&self, _: &DataPeer, request: RequestRef<'_>) -> Answer {
        let read = Read::decode(request.body.bytes).filter(|_| request.method == READ);
        read.and_then(|read| self.read(read)).map_or_else(malformed, Answer::Now)
    }
}
