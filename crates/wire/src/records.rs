//! What stands between frames and the stream: nothing, or encryption.

use bytes::BytesMut;

/// The record layer of one lane, and the handshake that gives it its keys.
///
/// Every frame header is one record, every body that is not empty another; a record is its plain bytes, changed in place, and a
/// tag of fixed length behind them. Both directions keep their order, so a nonce may be a count.
pub trait Records: Send {
    /// Takes the steps of the handshake that are possible: consumes from `input`, appends to `output`. `true` once records may
    /// flow; bytes of the peer's first record stay in `input`. Called once before anything was received.
    fn handshake(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> Result<bool, RecordError>;

    /// Bytes of the tag behind each record.
    fn tag_bytes(&self) -> usize;

    /// Encrypts `record` in place and fills `tag`.
    fn seal(&mut self, record: &mut [u8], tag: &mut [u8]);

    /// Checks `record` against `tag` and decrypts it in place.
    fn open(&mut self, record: &mut [u8], tag: &[u8]) -> Result<(), RecordError>;
}

/// The peer could not prove who it is, or a record is not what it sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record layer: {0}")]
pub struct RecordError(pub String);

/// No encryption: for loopback, and where the operator says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clear;

impl Records for Clear {
    fn handshake(&mut self, _: &mut BytesMut, _: &mut Vec<u8>) -> Result<bool, RecordError> {
        Ok(true)
    }

    fn tag_bytes(&self) -> usize {
        0
    }

    fn seal(&mut self, _: &mut [u8], _: &mut [u8]) {}

    fn open(&mut self, _: &mut [u8], _: &[u8]) -> Result<(), RecordError> {
        Ok(())
    }
}
