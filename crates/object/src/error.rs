//! What may go wrong between a caller and a store.

use crate::format::FormatError;
use std::fmt;

/// An operation on a store failed. Texts name what failed and on what; they never hold keys, tokens or signatures.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing is stored under the key.
    #[error("{key}: not in the store")]
    NotFound {
        /// Key inside the store's prefix.
        key: String,
    },
    /// Conditional creation found something else under the key.
    #[error("{key}: already in the store, with other bytes")]
    Exists {
        /// Key inside the store's prefix.
        key: String,
    },
    /// The store answers, but not to us. Only the operator can change that.
    #[error("the store refuses: {reason} ({detail})")]
    Denied {
        /// Which part of the configuration is wrong.
        reason: Denied,
        /// The store's own words.
        detail: String,
    },
    /// The stored bytes fail their checksum, also when read again.
    #[error("{key}: corrupt in the store: {detail}")]
    Corrupt {
        /// Key inside the store's prefix.
        key: String,
        /// Which part, and how it differs.
        detail: String,
    },
    /// Written by a newer version of this program.
    #[error("{key}: {detail}")]
    Newer {
        /// Key inside the store's prefix.
        key: String,
        /// The versions, and what to do.
        detail: String,
    },
    /// No answer, or one that means "later". A write may have been done nevertheless.
    #[error("the store is unavailable: {detail}")]
    Unavailable {
        /// What was tried and the last cause.
        detail: String,
        /// What the system said, where it was the system.
        #[source]
        cause: Option<std::io::Error>,
    },
    /// No room in the store.
    #[error("the store is full: {detail}")]
    Full {
        /// The system's or store's own words.
        detail: String,
    },
    /// The request itself is wrong: no retry and no other configuration of the store helps.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what would be right.
        what: String,
    },
}

/// Which part of a store's configuration is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// No credentials were found.
    NoCredentials,
    /// The store does not know the access key id, or the session token is wrong.
    AccessKey,
    /// The signature does not match: the secret key is wrong.
    SecretKey,
    /// The credentials have expired.
    Expired,
    /// The clocks of host and store differ too much for signed requests.
    Clock,
    /// The credentials are valid but may not do this.
    Permission,
    /// There is no such bucket.
    Bucket,
    /// The bucket is in another region.
    Region,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCredentials => "no credentials",
            Self::AccessKey => "the access key id is not known there; check AWS_ACCESS_KEY_ID or the profile",
            Self::SecretKey => "the secret key does not belong to the access key id; check AWS_SECRET_ACCESS_KEY",
            Self::Expired => "the credentials have expired; renew them",
            Self::Clock => "this host's clock is wrong; set the time",
            Self::Permission => "no permission; the keys need Get, Put, Delete and List on the bucket's prefix",
            Self::Bucket => "no such bucket; check its name or create it",
            Self::Region => "the bucket is in another region; set region=",
        })
    }
}

impl StoreError {
    /// Whether the same call may succeed later with nothing changed but the store's state.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Full { .. })
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::Unavailable { detail: detail.into(), cause: None }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    pub(crate) fn format(key: &str, error: FormatError) -> Self {
        match error {
            FormatError::Newer { .. } => Self::Newer { key: key.into(), detail: error.to_string() },
            other => Self::Corrupt { key: key.into(), detail: other.to_string() },
        }
    }
}
