//! Bugs that a simulation puts into the shipped code, to show that it finds such. Without the feature `simulated` there are none, and
//! the questions cost nothing.

/// One of them; the line that asks for it is in the code that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Bug {
    /// A mount acks a push and goes on believing.
    PushIgnored = 1,
    /// fsync returns at once.
    FsyncDoesNotSync,
    /// A change that is asked for again is done again.
    ChangeDoneAgain,
    /// close and fsync do not publish.
    CloseDoesNotPublish,
    /// The last segment of an object is not uploaded.
    LastSegmentForgotten,
    /// Replay leaves out the bytes in the journal.
    JournalDataForgotten,
    /// A mount that has lost track of what others did keeps its cache.
    CacheKeptWithoutTrack,
    /// After a restart a mount counts its changes from 1 again.
    NumbersStartAgain,
    /// The server tells nobody what others change.
    PushNotSent,
    /// A mount does not see what it has written and not published.
    OwnWritesUnseen,
    /// What nodes send is not checked.
    SegmentsUnchecked,
    /// A node says of what it does not have that there is nothing.
    MissIsAbsent,
    /// A node that the server has forgotten does not join again.
    NodeDoesNotJoinAgain,
    /// Mounts and nodes go on with the first list of members.
    MembersNotFollowed,
    /// A drained node that joins is no longer drained.
    DrainForgotten,
    /// Bytes that are moved to another object replace what was written meanwhile.
    MovedOverNewer,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::PushIgnored,
        Self::FsyncDoesNotSync,
        Self::ChangeDoneAgain,
        Self::CloseDoesNotPublish,
        Self::LastSegmentForgotten,
        Self::JournalDataForgotten,
        Self::CacheKeptWithoutTrack,
        Self::NumbersStartAgain,
        Self::PushNotSent,
        Self::OwnWritesUnseen,
        Self::SegmentsUnchecked,
        Self::MissIsAbsent,
        Self::NodeDoesNotJoinAgain,
        Self::MembersNotFollowed,
        Self::DrainForgotten,
        Self::MovedOverNewer,
    ];

    /// Whether this process has it.
    #[cfg(not(feature = "simulated"))]
    #[inline(always)]
    pub const fn is_planted(self) -> bool {
        false
    }

    /// Whether this process has it.
    #[cfg(feature = "simulated")]
    pub fn is_planted(self) -> bool {
        PLANTED.load(std::sync::atomic::Ordering::Relaxed) == self as u32
    }

    /// From now on this process has it.
    #[cfg(feature = "simulated")]
    pub fn plant(self) {
        PLANTED.store(self as u32, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(feature = "simulated")]
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
