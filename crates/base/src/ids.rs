//! Newtypes for every id that crosses a crate boundary.

use crate::Entropy;
use std::{fmt, str::FromStr};

/// Inode number. 1 is the root directory; 0 is never used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of a volume.
    pub const ROOT: Ino = Ino(1);
}

/// Position of a record in a volume's log: 1, 2, 3... in commit order. 0 means "before the first record".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Seq(pub u64);

/// A client of the metadata. Never reused within a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

macro_rules! plain_format {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, concat!(stringify!($name), "({})"), self.0) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    )*};
}
plain_format!(Ino, Seq, SessionId);

/// A 128-bit random id, shown as 32 hex digits.
macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// A fresh id. All-zero is reserved for "none" and never returned.
            pub fn random(entropy: &dyn Entropy) -> Self {
                loop {
                    let mut bytes = [0; 16];
                    entropy.fill(&mut bytes);
                    if bytes != [0; 16] {
                        return Self(bytes);
                    }
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let mut bytes = [0; 16];
                if text.len() != 32 || !text.is_ascii() {
                    return Err(InvalidId);
                }
                for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                    let pair = std::str::from_utf8(pair).map_err(|_| InvalidId)?;
                    *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidId)?;
                }
                Ok(Self(bytes))
            }
        }
    };
}

random_id! {
    /// An object: immutable once stored. The id is random and never reused, so it is also the version.
    ObjectId
}
random_id! {
    /// A volume.
    VolumeId
}

/// The text is not 32 hex digits.
#[derive(Debug, thiserror::Error)]
#[error("an id is 32 hexadecimal digits")]
pub struct InvalidId;
