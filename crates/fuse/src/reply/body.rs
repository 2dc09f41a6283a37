//! A body that owns its bytes.

use super::Reply;
use bytes::Bytes;

/// What a later answer carries; built by the methods of [`Reply`], or from bytes that exist already, which are not
/// copied before the kernel takes them.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pieces: Vec<Bytes>,
}

impl Body {
    /// The empty success.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A body that `build` fills: `Body::with(|reply| reply.entry(&entry))`.
    pub fn with(build: impl FnOnce(&mut Self)) -> Self {
        let mut body = Self::default();
        build(&mut body);
        body
    }

    /// Bytes in several pieces, sent one after the other.
    pub fn pieces(pieces: Vec<Bytes>) -> Self {
        Self { pieces }
    }

    /// The pieces, in order.
    pub fn as_pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Reply for Body {
    fn put(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.pieces.push(Bytes::copy_from_slice(bytes));
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self { pieces: vec![bytes.into()] }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self { pieces: vec![bytes] }
    }
}
