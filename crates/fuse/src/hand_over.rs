//! A mount that passes from one process to another: what the one has to know that the other one knows. docs/disk-format.md has
//! the layout.
//!
//! The kernel's side of a mount lives as long as a descriptor of its device does, whoever has it. The kernel asks by inode number and
//! handle, keeps locks, pages and names itself, and waits for its answers in silence: so it is enough that no request is under way
//! ([`crate::Session::pause`]), and that the next process knows what INIT agreed on and what the handles mean. Where others mount the volume too, it
//! goes on with the session at their server, and asks again what waits for others' locks.

mod served;

use crate::init::{Negotiated, TRANSFER_MAX};
use crate::later::Parked;
use sluice_base::Ino;
use sluice_vfs::remote::SessionState;
use sluice_vfs::{HandleId, OpenDir, OpenFile, OpenState, Orphan};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the next process has to know besides the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// What INIT agreed on.
    pub negotiated: Negotiated,
    /// What programs have open.
    pub open: OpenState,
    /// Requests that wait for locks.
    pub parked: Vec<Parked>,
    /// The session of a mount of a served volume.
    pub served: Option<SessionState>,
}

/// Bytes that are no state of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// Another layout.
    #[error(
        "the state of the mount is in format {found}, this binary knows {FORMAT}: `sluice umount` it, then mount it again"
    )]
    Format {
        /// Of the bytes.
        found: u32,
    },
    /// No state at all.
    #[error("the state of the mount is damaged")]
    Damaged,
}

/// The layout, which is written and read.
pub const FORMAT: u32 = 3;
/// The longest state: 3.9 million open files, or some 2 million names that the kernel knows.
pub const BYTES_MAX: u64 = 64 << 20;

const MAGIC: [u8; 4] = *b"SLHO";

macro_rules! layout {
    ($($name:ident { $($field:ident: $type:ty),* })*) => {$(
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        struct $name { $($field: $type),* }
    )*};
}
layout! {
    Prefix { magic: [u8; 4], format: U32 }
    Header {
        minor: U32, max_write: U32, max_readahead: U32, lost: U32, flags: U64, files: U64, dirs: U64, orphans: U64
    }
    FileWire { handle: U64, ino: U64, flags: u8 }
    DirWire { handle: U64, ino: U64, until: U64 }
    OrphanWire { ino: U64, forgotten: u8 }
}

/// Flags of an open file.
const ATIME_DUE: u8 = 1;
const OWES_LOSS: u8 = 2;

impl HandOver {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Self { negotiated, open, parked, served } = self;
        let count = |len: usize| U64::new(len as u64);
        let header = Header {
            minor: negotiated.minor.into(),
            max_write: negotiated.max_write.into(),
            max_readahead: negotiated.max_readahead.into(),
            lost: u32::from(open.lost).into(),
            flags: negotiated.flags.into(),
            files: count(open.files.len()),
            dirs: count(open.dirs.len()),
            orphans: count(open.orphans.len()),
        };
        let mut out = Prefix { magic: MAGIC, format: FORMAT.into() }.as_bytes().to_vec();
        out.extend_from_slice(header.as_bytes());
        for OpenFile { handle, ino, atime_due, owes_loss } in &open.files {
            let flags = if *atime_due { ATIME_DUE } else { 0 } | if *owes_loss { OWES_LOSS } else { 0 };
            let file = FileWire { handle: handle.0.into(), ino: ino.0.into(), flags };
            out.extend_from_slice(file.as_bytes());
        }
        for OpenDir { handle, ino, until } in &open.dirs {
            let dir = DirWire { handle: handle.0.into(), ino: ino.0.into(), until: (*until).into() };
            out.extend_from_slice(dir.as_bytes());
        }
        for Orphan { ino, forgotten } in &open.orphans {
            out.extend_from_slice(OrphanWire { ino: ino.0.into(), forgotten: u8::from(*forgotten) }.as_bytes());
        }
        served::encode(parked, served.as_ref(), &mut out);
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandOverError> {
        let (prefix, rest) = Prefix::ref_from_prefix(bytes).map_err(|_| HandOverError::Damaged)?;
        match (prefix.magic, prefix.format.get()) {
            (MAGIC, FORMAT) => decode_3(rest).ok_or(HandOverError::Damaged),
            (MAGIC, found) => Err(HandOverError::Format { found }),
            _ => Err(HandOverError::Damaged),
        }
    }
}

fn decode_3(bytes: &[u8]) -> Option<HandOver> {
    let (header, rest) = Header::ref_from_prefix(bytes).ok()?;
    let negotiated = Negotiated {
        minor: header.minor.get(),
        flags: header.flags.get(),
        max_write: header.max_write.get(),
        max_readahead: header.max_readahead.get(),
    };
    if !(4096..=TRANSFER_MAX).contains(&negotiated.max_write) {
        return None;
    }
    let (files, rest) = list(rest, &header.files, |file: &FileWire| {
        let (atime_due, owes_loss) = (file.flags & ATIME_DUE != 0, file.flags & OWES_LOSS != 0);
        let open = OpenFile { handle: handle(&file.handle)?, ino: ino(&file.ino)?, atime_due, owes_loss };
        (file.flags & !(ATIME_DUE | OWES_LOSS) == 0).then_some(open)
    })?;
    let (dirs, rest) = list(rest, &header.dirs, |dir: &DirWire| {
        Some(OpenDir { handle: handle(&dir.handle)?, ino: ino(&dir.ino)?, until: dir.until.get() })
    })?;
    let (orphans, rest) = list(rest, &header.orphans, |orphan: &OrphanWire| {
        Some(Orphan { ino: ino(&orphan.ino)?, forgotten: truth(orphan.forgotten.into())? })
    })?;
    let in_order = files.is_sorted_by(|a, b| a.handle < b.handle)
        && dirs.is_sorted_by(|a, b| a.handle < b.handle)
        && orphans.is_sorted_by(|a, b| a.ino < b.ino);
    let open = OpenState { files, dirs, orphans, lost: truth(header.lost.get())? };
    let (parked, served) = served::decode(rest)?;
    in_order.then_some(HandOver { negotiated, open, parked, served })
}

/// The next `count` values, and what is behind them.
fn list<'a, W: FromBytes + KnownLayout + Immutable + 'a, T>(
    bytes: &'a [u8],
    count: &U64,
    value: impl Fn(&W) -> Option<T>,
) -> Option<(Vec<T>, &'a [u8])> {
    let count = usize::try_from(count.get()).ok()?;
    let (items, rest) = <[W]>::ref_from_prefix_with_elems(bytes, count).ok()?;
    Some((items.iter().map(value).collect::<Option<_>>()?, rest))
}

/// Neither numbers of handles nor of inodes are ever 0.
fn handle(number: &U64) -> Option<HandleId> {
    (number.get() > 0).then_some(HandleId(number.get()))
}

fn ino(number: &U64) -> Option<Ino> {
    (number.get() > 0).then_some(Ino(number.get()))
}

fn truth(number: u32) -> Option<bool> {
    (number < 2).then_some(number == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_base::SessionId;
    use sluice_meta::rpc::{AssertedLock, LockKind, LockMode, LockRange};
    use sluice_vfs::remote::{BookState, KnownNames, LockedHandle, Losses};

    fn session() -> SessionState {
        let lock = AssertedLock {
            ino: Ino(9),
            kind: LockKind::Flock,
            owner: u64::MAX,
            range: LockRange::WHOLE,
            mode: LockMode::Shared,
            pid: 3,
        };
        let handle = LockedHandle {
            handle: HandleId(3),
            ino: Ino(9),
            closing: true,
            owners: vec![(LockKind::Record, 5), (LockKind::Flock, u64::MAX)],
        };
        SessionState {
            session: SessionId(4),
            epoch: 2,
            life: 3,
            line: 79,
            lease_ms: 15_000,
            number: 77,
            pushes: 78,
            held: vec![Ino(1), Ino(9)],
            released: vec![Ino(8)],
            lost: Losses { inos: vec![Ino(5)], others: true },
            dropped: Losses::default(),
            locks: BookState { locks: vec![lock], handles: vec![handle], lost: vec![HandleId(1)], attempts: 12 },
            known: vec![
                KnownNames { ino: Ino(1), names: vec![b"a".as_slice().into(), b"b".as_slice().into()] },
                KnownNames { ino: Ino(2), names: Vec::new() },
            ],
        }
    }

    fn state() -> HandOver {
        let negotiated = Negotiated { minor: 45, flags: u64::MAX, max_write: 1 << 20, max_readahead: 7 };
        let file = |handle, ino| OpenFile {
            handle: HandleId(handle),
            ino: Ino(ino),
            atime_due: handle == 3,
            owes_loss: ino == 5,
        };
        let open = OpenState {
            files: vec![file(1, 9), file(3, 9)],
            dirs: vec![OpenDir { handle: HandleId(2), ino: Ino(1), until: 77 }],
            orphans: vec![Orphan { ino: Ino(9), forgotten: false }, Orphan { ino: Ino(12), forgotten: true }],
            lost: true,
        };
        let parked = vec![Parked { channel: 1, interrupted: true, request: vec![7; 88] }];
        HandOver { negotiated, open, parked, served: Some(session()) }
    }

    #[test]
    fn what_is_written_is_read() {
        let empty = HandOver { open: OpenState::default(), ..state() };
        let alone = HandOver { served: None, parked: Vec::new(), ..state() };
        for state in [state(), empty, alone] {
            assert_eq!(HandOver::decode(&state.encode()), Ok(state));
        }
    }

    #[test]
    fn what_nobody_writes_is_refused() {
        let bytes = state().encode();
        (0..bytes.len()).for_each(|len| assert_eq!(HandOver::decode(&bytes[..len]), Err(HandOverError::Damaged)));
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(HandOver::decode(&longer), Err(HandOverError::Damaged));
        let mut newer = bytes.clone();
        newer[4] = 4;
        assert_eq!(HandOver::decode(&newer), Err(HandOverError::Format { found: 4 }));
        let mut unordered = state();
        unordered.open.files.swap(0, 1);
        assert_eq!(HandOver::decode(&unordered.encode()), Err(HandOverError::Damaged));
        // More files than bytes.
        let mut many = bytes;
        many[size_of::<Prefix>() + 24..][..8].fill(0xff);
        assert_eq!(HandOver::decode(&many), Err(HandOverError::Damaged));
    }
}
