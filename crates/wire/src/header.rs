//! The 32 bytes before every body; docs/protocol.md has the table. Pure: no input makes it panic.

use sluice_base::crc::crc32c;
use std::time::Duration;

/// First byte of every frame. No UTF-8 text and no TLS record begins with it.
pub const FORMAT: u8 = 0xF5;
/// Bytes of a frame header.
pub const HEADER_BYTES: usize = at::END;
/// Most body of a request or reply, in bytes: an object of 4 MiB, and its table and arguments.
pub const DATA_BYTES_MAX: usize = (4 << 20) + (64 << 10);
/// Most body of a push, in bytes.
pub const PUSH_BYTES_MAX: usize = 1 << 20;
/// Most body of the frames that open, refuse, fail or end, in bytes: a name or a line of text.
pub const NOTE_BYTES_MAX: usize = 4 << 10;
/// Longest deadline that a frame can carry, 4.6 hours; what is longer travels as this.
pub const DEADLINE_MAX: Duration = Duration::from_millis(0xFF_FFFF);

mod at {
    pub const FORMAT: usize = 0;
    pub const KIND: usize = FORMAT + 1;
    pub const METHOD: usize = KIND + 1;
    pub const LENGTH: usize = METHOD + 2;
    pub const ID: usize = LENGTH + 4;
    pub const EPOCH: usize = ID + 8;
    pub const FLAGS: usize = EPOCH + 4;
    pub const DEADLINE: usize = FLAGS + 1;
    pub const BODY_CRC: usize = DEADLINE + 3;
    pub const HEADER_CRC: usize = BODY_CRC + 4;
    pub const END: usize = HEADER_CRC + 4;
}

/// Bit of the flags: the connection does not check the body, its user does.
const UNCHECKED: u8 = 1;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The initiator says who it is.
    Hello = 1,
    /// The acceptor takes it.
    Welcome = 2,
    /// The acceptor does not.
    Refused = 3,
    /// Either side asks for something.
    Request = 4,
    /// The answer to a request.
    Reply = 5,
    /// The other answer to a request.
    Failed = 6,
    /// The asker no longer wants an answer. It gets one nevertheless, perhaps `Failed`.
    Cancel = 7,
    /// The acceptor says something unasked.
    Push = 8,
    /// The initiator has acted on a push.
    PushAck = 9,
    /// Are you there?
    Ping = 10,
    /// Yes.
    Pong = 11,
    /// The last frame of a side.
    Bye = 12,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 12] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Refused,
        Kind::Request,
        Kind::Reply,
        Kind::Failed,
        Kind::Cancel,
        Kind::Push,
        Kind::PushAck,
        Kind::Ping,
        Kind::Pong,
        Kind::Bye,
    ];

    fn parse(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }

    /// Most bytes of a body of this kind.
    pub const fn body_bytes_max(self) -> usize {
        match self {
            Kind::Request | Kind::Reply => DATA_BYTES_MAX,
            Kind::Push => PUSH_BYTES_MAX,
            Kind::Hello | Kind::Welcome | Kind::Refused | Kind::Failed | Kind::Bye => NOTE_BYTES_MAX,
            Kind::Cancel | Kind::PushAck | Kind::Ping | Kind::Pong => 0,
        }
    }

    /// Whether the id says which request or push is meant.
    const fn has_id(self) -> bool {
        matches!(self, Kind::Request | Kind::Reply | Kind::Failed | Kind::Cancel | Kind::Push | Kind::PushAck)
    }
}

/// A valid frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// What a request asks for; 0 for every other kind.
    pub method: u16,
    /// Bytes of the body, at most [`Kind::body_bytes_max`].
    pub length: u32,
    /// Number of the request or push, from 1; 0 for every other kind.
    pub id: u64,
    /// Newest epoch of the member list that the sender knows; 0 for none.
    pub epoch: u32,
    /// The body's CRC is for the body's user to check.
    pub unchecked: bool,
    /// Time that the sender of a request will still wait, in milliseconds, 1..2^24; `None` without limit and for every other
    /// kind.
    pub deadline_ms: Option<u32>,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

/// Why 32 bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte is not [`FORMAT`].
    #[error("the peer does not speak this protocol: a frame begins with byte {0:#04x}")]
    NotAFrame(u8),
    /// The header was damaged on its way, or is noise.
    #[error("the checksum of a frame header does not match")]
    BadChecksum,
    /// A kind that this version does not have.
    #[error("a frame is of the unknown kind {0}")]
    UnknownKind(u8),
    /// The body would be larger than its kind allows.
    #[error("a {kind:?} frame claims a body of {length} bytes; at most {} are allowed", .kind.body_bytes_max())]
    TooLong {
        /// Of this kind.
        kind: Kind,
        /// The claim.
        length: u32,
    },
    /// A field has a value that is never sent with this kind.
    #[error("a field of a {0:?} frame is out of range")]
    BadField(Kind),
}

impl Header {
    /// A header without a body.
    pub const fn new(kind: Kind, id: u64) -> Self {
        Self { kind, method: 0, length: 0, id, epoch: 0, unchecked: false, deadline_ms: None, body_crc: 0 }
    }

    /// The header in `bytes`. Nothing of it is believed before its checksum, and its length is one that may be allocated.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        if bytes[at::FORMAT] != FORMAT {
            return Err(FrameError::NotAFrame(bytes[at::FORMAT]));
        }
        if crc32c(&bytes[..at::HEADER_CRC]) != u32_at(bytes, at::HEADER_CRC) {
            return Err(FrameError::BadChecksum);
        }
        let kind = Kind::parse(bytes[at::KIND]).ok_or(FrameError::UnknownKind(bytes[at::KIND]))?;
        let length = u32_at(bytes, at::LENGTH);
        if length as usize > kind.body_bytes_max() {
            return Err(FrameError::TooLong { kind, length });
        }
        let deadline = u32_at(bytes, at::FLAGS) >> 8;
        let header = Self {
            kind,
            method: u16::from_le_bytes([bytes[at::METHOD], bytes[at::METHOD + 1]]),
            length,
            id: u64::from_le_bytes(bytes[at::ID..at::EPOCH].try_into().expect("8 bytes")),
            epoch: u32_at(bytes, at::EPOCH),
            unchecked: bytes[at::FLAGS] == UNCHECKED,
            deadline_ms: (deadline > 0).then_some(deadline),
            body_crc: u32_at(bytes, at::BODY_CRC),
        };
        if bytes[at::FLAGS] & !UNCHECKED != 0 || !header.is_consistent() {
            return Err(FrameError::BadField(kind));
        }
        Ok(header)
    }

    fn is_consistent(&self) -> bool {
        let asks = self.kind == Kind::Request;
        (self.id != 0) == self.kind.has_id()
            && (asks || (self.method == 0 && self.deadline_ms.is_none()))
            && (!self.unchecked || asks || self.kind == Kind::Reply)
            && (self.length > 0 || self.body_crc == 0)
    }

    /// The bytes that [`Self::parse`] reads.
    ///
    /// # Panics
    /// If a field has a value that its kind does not allow: the sender checks before it promises to send.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        assert!(self.is_consistent() && self.length as usize <= self.kind.body_bytes_max(), "{self:?}");
        let deadline = self.deadline_ms.unwrap_or(0);
        assert!(deadline <= DEADLINE_MAX.as_millis() as u32, "{self:?}");
        let mut bytes = [0; HEADER_BYTES];
        bytes[at::FORMAT] = FORMAT;
        bytes[at::KIND] = self.kind as u8;
        bytes[at::METHOD..at::LENGTH].copy_from_slice(&self.method.to_le_bytes());
        bytes[at::LENGTH..at::ID].copy_from_slice(&self.length.to_le_bytes());
        bytes[at::ID..at::EPOCH].copy_from_slice(&self.id.to_le_bytes());
        bytes[at::EPOCH..at::FLAGS].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[at::FLAGS] = u8::from(self.unchecked) * UNCHECKED;
        bytes[at::DEADLINE..at::BODY_CRC].copy_from_slice(&deadline.to_le_bytes()[..3]);
        bytes[at::BODY_CRC..at::HEADER_CRC].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c(&bytes[..at::HEADER_CRC]);
        bytes[at::HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// A deadline as a frame carries it: rounded up to milliseconds, so that it never becomes "none".
pub(crate) fn deadline_ms(remaining: Duration) -> u32 {
    let remaining = remaining.min(DEADLINE_MAX);
    (remaining.as_micros().div_ceil(1000) as u32).clamp(1, DEADLINE_MAX.as_millis() as u32)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[cfg(test)]
mod tests;
