//! Bodies of the frames that open a connection; docs/protocol.md has the tables.

use bytes::{BufMut, Bytes, BytesMut};
use sluice_base::{SessionId, VolumeId};

/// Oldest version of the protocol that this program speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest version of the protocol that this program speaks.
pub const VERSION_MAX: u16 = 1;
/// Longest name of a peer, in bytes.
pub const PEER_NAME_BYTES_MAX: usize = 255;
/// Longest text of a refusal, failure or farewell, in bytes; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 2 << 10;

mod hello {
    pub const VERSION_MIN: usize = 0;
    pub const VERSION_MAX: usize = VERSION_MIN + 2;
    pub const PEER: usize = VERSION_MAX + 2;
    pub const LANE: usize = PEER + 1;
    pub const ZERO: usize = LANE + 1;
    pub const VOLUME: usize = ZERO + 2;
    pub const SESSION: usize = VOLUME + 16;
    pub const SESSION_EPOCH: usize = SESSION + 8;
    pub const REQUESTS: usize = SESSION_EPOCH + 8;
    pub const BYTES: usize = REQUESTS + 4;
    pub const NAME: usize = BYTES + 4;
}

mod welcome {
    pub const VERSION: usize = 0;
    pub const ZERO: usize = VERSION + 2;
    pub const VOLUME: usize = ZERO + 6;
    pub const SESSION: usize = VOLUME + 16;
    pub const SESSION_EPOCH: usize = SESSION + 8;
    pub const REQUESTS: usize = SESSION_EPOCH + 8;
    pub const BYTES: usize = REQUESTS + 4;
    pub const NAME: usize = BYTES + 4;
}

mod refused {
    pub const CODE: usize = 0;
    pub const VERSION_MIN: usize = CODE + 2;
    pub const VERSION_MAX: usize = VERSION_MIN + 2;
    pub const TEXT: usize = VERSION_MAX + 2;
}

/// Versions of the protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest.
    pub min: u16,
    /// Newest, not below `min`.
    pub max: u16,
}

impl Default for Versions {
    fn default() -> Self {
        Self { min: VERSION_MIN, max: VERSION_MAX }
    }
}

impl Versions {
    /// The newest version that both speak.
    pub fn agree(self, other: Versions) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{} to {}", self.min, self.max) }
    }
}

/// What a side is ready to take from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most requests without an answer; 0 where none are taken.
    pub requests_max: u32,
    /// Most bytes of the bodies of these; a single larger one is taken alone.
    pub bytes_max: u32,
}

impl Default for Limits {
    /// 64 requests fill 10 Gbit/s at 1 ms with 16 KiB each; 16 MiB is four objects on their way.
    fn default() -> Self {
        Self { requests_max: 64, bytes_max: 16 << 20 }
    }
}

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PeerKind {
    /// A mount.
    Mount = 1,
    /// A node of the cache.
    Node = 2,
    /// The holder of the metadata.
    Server = 3,
    /// An operator's command.
    Admin = 4,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LaneClass {
    /// Requests, metadata, small reads.
    Small = 1,
    /// Payloads.
    Bulk = 2,
}

/// A session of the metadata and the epoch that fences it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// Its number, never 0.
    pub id: SessionId,
    /// Raised each time that the session is taken up again; what an older one sends is refused.
    pub epoch: u64,
}

/// Who the initiator is and what it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it is.
    pub peer: PeerKind,
    /// What the connection is for.
    pub lane: LaneClass,
    /// The volume that it expects; `None` to be told.
    pub volume: Option<VolumeId>,
    /// The session to go on with; `None` for a new one, or for none.
    pub session: Option<Session>,
    /// Its name for people and logs: 1 to 255 bytes without control characters.
    pub name: String,
}

/// The acceptor's consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The volume that is served.
    pub volume: VolumeId,
    /// The session that the initiator now has, if it has one.
    pub session: Option<Session>,
    /// The acceptor's name, as in [`Hello::name`].
    pub name: String,
}

/// Why an initiator is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum RefusalCode {
    /// No version that both speak.
    Version = 1,
    /// Another volume is served here.
    Volume = 2,
    /// As many connections as are allowed; try again later.
    Busy = 3,
    /// The session has ended, or somebody else has taken it up since.
    Session = 4,
    /// Somebody else has this name.
    Name = 5,
    /// This peer may not.
    Forbidden = 6,
    /// The acceptor is about to end.
    Closing = 7,
    /// See the text.
    Other = 8,
}

/// The acceptor's refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused ({code:?}): {text}")]
pub struct Refused {
    /// For programs.
    pub code: RefusalCode,
    /// What the acceptor speaks.
    pub versions: Versions,
    /// For people.
    pub text: String,
}

/// Why the body of a [`Hello`] is not one.
pub(crate) enum HelloError {
    Versions(Versions),
    Malformed,
}

impl Hello {
    pub(crate) fn encode(&self, versions: Versions, limits: Limits) -> Bytes {
        let mut bytes = BytesMut::with_capacity(hello::NAME + self.name.len());
        bytes.put_u16_le(versions.min);
        bytes.put_u16_le(versions.max);
        bytes.put_u8(self.peer as u8);
        bytes.put_u8(self.lane as u8);
        bytes.put_u16_le(0);
        bytes.put_slice(&self.volume.map_or([0; 16], |volume| volume.0));
        put_session(&mut bytes, self.session);
        put_limits(&mut bytes, limits);
        bytes.put_slice(cut(&self.name, PEER_NAME_BYTES_MAX).as_bytes());
        bytes.freeze()
    }

    /// The initiator, the version to speak with it, and what it takes. Versions come first: behind them a stranger's body may
    /// look otherwise.
    pub(crate) fn decode(body: &[u8], ours: Versions) -> Result<(Self, u16, Limits), HelloError> {
        let fixed = body.get(..hello::PEER).ok_or(HelloError::Malformed)?;
        let theirs = Versions { min: u16_at(fixed, hello::VERSION_MIN), max: u16_at(fixed, hello::VERSION_MAX) };
        let version = ours.agree(theirs).ok_or(HelloError::Versions(theirs))?;
        Self::decode_rest(body).map(|(hello, limits)| (hello, version, limits)).ok_or(HelloError::Malformed)
    }

    fn decode_rest(body: &[u8]) -> Option<(Self, Limits)> {
        let fixed = body.get(..hello::NAME)?;
        let peer = match fixed[hello::PEER] {
            1 => PeerKind::Mount,
            2 => PeerKind::Node,
            3 => PeerKind::Server,
            4 => PeerKind::Admin,
            _ => return None,
        };
        let lane = match fixed[hello::LANE] {
            1 => LaneClass::Small,
            2 => LaneClass::Bulk,
            _ => return None,
        };
        if fixed[hello::ZERO..hello::VOLUME] != [0; 2] {
            return None;
        }
        let volume = volume_at(fixed, hello::VOLUME);
        let session = session_at(fixed, hello::SESSION, hello::SESSION_EPOCH)?;
        let name = name(&body[hello::NAME..])?;
        let hello = Self { peer, lane, volume: (volume.0 != [0; 16]).then_some(volume), session, name };
        Some((hello, limits_at(fixed, hello::REQUESTS, hello::BYTES)))
    }
}

impl Welcome {
    pub(crate) fn encode(&self, version: u16, limits: Limits) -> Bytes {
        let mut bytes = BytesMut::with_capacity(welcome::NAME + self.name.len());
        bytes.put_u16_le(version);
        bytes.put_bytes(0, welcome::VOLUME - welcome::ZERO);
        bytes.put_slice(&self.volume.0);
        put_session(&mut bytes, self.session);
        put_limits(&mut bytes, limits);
        bytes.put_slice(cut(&self.name, PEER_NAME_BYTES_MAX).as_bytes());
        bytes.freeze()
    }

    pub(crate) fn decode(body: &[u8]) -> Option<(Self, u16, Limits)> {
        let fixed = body.get(..welcome::NAME)?;
        let volume = volume_at(fixed, welcome::VOLUME);
        if volume.0 == [0; 16] || fixed[welcome::ZERO..welcome::VOLUME] != [0; 6] {
            return None;
        }
        let session = session_at(fixed, welcome::SESSION, welcome::SESSION_EPOCH)?;
        let welcome = Self { volume, session, name: name(&body[welcome::NAME..])? };
        Some((welcome, u16_at(fixed, welcome::VERSION), limits_at(fixed, welcome::REQUESTS, welcome::BYTES)))
    }
}

impl Refused {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(refused::TEXT + self.text.len());
        bytes.put_u16_le(self.code as u16);
        bytes.put_u16_le(self.versions.min);
        bytes.put_u16_le(self.versions.max);
        bytes.put_slice(cut(&self.text, TEXT_BYTES_MAX).as_bytes());
        bytes.freeze()
    }

    /// A code that this version does not know is "other": a newer acceptor must be able to refuse.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let fixed = body.get(..refused::TEXT)?;
        let code = match u16_at(fixed, refused::CODE) {
            1 => RefusalCode::Version,
            2 => RefusalCode::Volume,
            3 => RefusalCode::Busy,
            4 => RefusalCode::Session,
            5 => RefusalCode::Name,
            6 => RefusalCode::Forbidden,
            7 => RefusalCode::Closing,
            _ => RefusalCode::Other,
        };
        let versions = Versions { min: u16_at(fixed, refused::VERSION_MIN), max: u16_at(fixed, refused::VERSION_MAX) };
        Some(Self { code, versions, text: text(&body[refused::TEXT..])? })
    }
}

/// `text` without what is behind `bytes_max`, cut between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// Text for people, from a stranger: control characters are not let through to a terminal.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

fn name(bytes: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(bytes).ok()?;
    let valid = (1..=PEER_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    valid.then(|| name.to_owned())
}

fn put_session(bytes: &mut BytesMut, session: Option<Session>) {
    bytes.put_u64_le(session.map_or(0, |session| session.id.0));
    bytes.put_u64_le(session.map_or(0, |session| session.epoch));
}

/// `None` when there is an epoch of no session.
fn session_at(bytes: &[u8], id: usize, epoch: usize) -> Option<Option<Session>> {
    match (u64_at(bytes, id), u64_at(bytes, epoch)) {
        (0, 0) => Some(None),
        (0, _) => None,
        (id, epoch) => Some(Some(Session { id: SessionId(id), epoch })),
    }
}

fn put_limits(bytes: &mut BytesMut, limits: Limits) {
    bytes.put_u32_le(limits.requests_max);
    bytes.put_u32_le(limits.bytes_max);
}

fn limits_at(bytes: &[u8], requests: usize, sizes: usize) -> Limits {
    Limits { requests_max: u32_at(bytes, requests), bytes_max: u32_at(bytes, sizes) }
}

fn volume_at(bytes: &[u8], at: usize) -> VolumeId {
    VolumeId(bytes[at..at + 16].try_into().expect("16 bytes"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests;
