//! What is told besides of a mount of a served volume: its session, and who waits for a lock.

use super::{handle, ino};
use crate::later::Parked;
use sluice_base::{Ino, SessionId, limits::NAME_BYTES_MAX};
use sluice_meta::rpc::{AssertedLock, LockKind, Reader, Wire};
use sluice_vfs::HandleId;
use sluice_vfs::remote::{BookState, KnownNames, LockedHandle, Losses, SessionState};
use zerocopy::byteorder::little_endian::U64;

/// The longest request that is put aside: those of locks have 88 bytes.
const REQUEST_BYTES_MAX: usize = 4096;

pub(super) fn encode(parked: &[Parked], served: Option<&SessionState>, out: &mut Vec<u8>) {
    put_list(parked, out, |parked, out| {
        parked.channel.put(out);
        parked.interrupted.put(out);
        parked.request.put(out);
    });
    served.is_some().put(out);
    if let Some(served) = served {
        put_session(served, out);
    }
}

/// What stands at the end of a state, whole.
pub(super) fn decode(bytes: &[u8]) -> Option<(Vec<Parked>, Option<SessionState>)> {
    let from = &mut Reader::new(bytes);
    let parked = take_list(from, |from| {
        let (channel, interrupted, request) = (u16::take(from)?, bool::take(from)?, <&[u8]>::take(from)?);
        (request.len() <= REQUEST_BYTES_MAX).then(|| Parked { channel, interrupted, request: request.to_vec() })
    })?;
    let served = if bool::take(from)? { Some(take_session(from)?) } else { None };
    from.is_empty().then_some((parked, served))
}

fn put_session(state: &SessionState, out: &mut Vec<u8>) {
    let SessionState {
        session,
        epoch,
        life,
        line,
        lease_ms,
        number,
        pushes,
        held,
        released,
        lost,
        dropped,
        locks,
        known,
    } = state;
    session.0.put(out);
    [*epoch, *life, *lease_ms].iter().for_each(|word| word.put(out));
    [*number, *pushes, *line].iter().for_each(|word| word.put(out));
    put_inos(held, out);
    put_inos(released, out);
    for losses in [lost, dropped] {
        put_inos(&losses.inos, out);
        losses.others.put(out);
    }
    locks.attempts.put(out);
    put_list(&locks.locks, out, |lock, out| lock.put(out));
    put_list(&locks.handles, out, |open, out| {
        open.handle.0.put(out);
        open.ino.0.put(out);
        open.closing.put(out);
        put_list(&open.owners, out, |(kind, owner), out| {
            kind.put(out);
            owner.put(out);
        });
    });
    put_list(&locks.lost, out, |handle, out| handle.0.put(out));
    put_list(known, out, |known, out| {
        known.ino.0.put(out);
        put_list(&known.names, out, |name, out| {
            (name.len() as u8).put(out);
            out.extend_from_slice(name);
        });
    });
}

fn take_session(from: &mut Reader<'_>) -> Option<SessionState> {
    Some(SessionState {
        session: SessionId(u64::take(from)?),
        epoch: Wire::take(from)?,
        life: Wire::take(from)?,
        lease_ms: Wire::take(from)?,
        number: Wire::take(from)?,
        pushes: Wire::take(from)?,
        line: Wire::take(from)?,
        held: take_inos(from)?,
        released: take_inos(from)?,
        lost: take_losses(from)?,
        dropped: take_losses(from)?,
        locks: take_locks(from)?,
        known: take_known(from)?,
    })
}

fn take_locks(from: &mut Reader<'_>) -> Option<BookState> {
    let attempts = Wire::take(from)?;
    let locks = take_list(from, |from| AssertedLock::take(from).filter(|lock| lock.ino.0 > 0))?;
    let handles = take_list(from, |from| {
        let (handle, ino, closing) = (take_handle(from)?, take_ino(from)?, bool::take(from)?);
        let owners = take_list(from, |from| Some((LockKind::take(from)?, u64::take(from)?)))?;
        Some(LockedHandle { handle, ino, closing, owners })
    })?;
    let lost = take_list(from, take_handle)?;
    let in_order = handles.is_sorted_by(|a, b| a.handle < b.handle) && lost.is_sorted_by(|a, b| a < b);
    in_order.then_some(BookState { locks, handles, lost, attempts })
}

fn take_known(from: &mut Reader<'_>) -> Option<Vec<KnownNames>> {
    let known = take_list(from, |from| {
        let ino = take_ino(from)?;
        let names = take_list(from, |from| {
            let len = usize::from(u8::take(from)?);
            let name = from.bytes(len).filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX)?;
            Some(Box::<[u8]>::from(name))
        })?;
        names.is_sorted_by(|a, b| a < b).then_some(KnownNames { ino, names })
    })?;
    known.is_sorted_by(|a, b| a.ino < b.ino).then_some(known)
}

fn take_losses(from: &mut Reader<'_>) -> Option<Losses> {
    Some(Losses { inos: take_inos(from)?, others: bool::take(from)? })
}

fn put_inos(inos: &[Ino], out: &mut Vec<u8>) {
    put_list(inos, out, |ino, out| ino.0.put(out));
}

fn take_inos(from: &mut Reader<'_>) -> Option<Vec<Ino>> {
    take_list(from, take_ino).filter(|inos| inos.is_sorted_by(|a, b| a < b))
}

fn take_ino(from: &mut Reader<'_>) -> Option<Ino> {
    ino(&U64::new(u64::take(from)?))
}

fn take_handle(from: &mut Reader<'_>) -> Option<HandleId> {
    handle(&U64::new(u64::take(from)?))
}

fn put_list<T>(items: &[T], out: &mut Vec<u8>, put: impl Fn(&T, &mut Vec<u8>)) {
    (items.len() as u64).put(out);
    items.iter().for_each(|item| put(item, out));
}

/// Grows as items are found, so a count that the bytes do not hold costs nothing.
fn take_list<'a, T>(from: &mut Reader<'a>, take: impl Fn(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
    let mut items = Vec::new();
    for _ in 0..u64::take(from)? {
        items.push(take(from)?);
    }
    Some(items)
}
