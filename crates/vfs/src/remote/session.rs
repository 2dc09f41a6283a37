//! Which session the mount goes on with: that of the process before it, or a new one.
//!
//! A take-over raises the session's epoch at the server. Between that and the sync of the mount's own log the process may be killed
//! or the power lost, and then the log knows the epoch before. So what is asked for, the *claim*, is durable in the log before it is
//! sent, and a claim that was made once may be made again, for a further epoch.

use super::{
    Remote,
    calls::{Link, Session, failed},
    publish,
};
use sluice_base::{Entropy, SessionId};
use sluice_meta::{
    Error, Result,
    rpc::{
        Fault, client,
        message::{Begin, Call, Claim, End, Resume},
    },
    store::{MetaStore, Txn},
};
use sluice_run::Bug;
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

/// Where the mount's own store keeps its session: id, epoch, and the server's line of changes; and once a take-over from there was asked for,
/// epoch and secret of the last claim. docs/disk-format.md
const SESSION_KEY: &[u8] = b"msession";

/// The session as the mount's own store has it.
#[derive(Clone, Copy)]
struct Left {
    session: SessionId,
    epoch: u32,
    /// Of the server that it spoke with last.
    line: u64,
    claim: Option<Claim>,
}

impl Left {
    fn find(own: &MetaStore) -> Result<Option<Self>> {
        let found = own.snapshot().get(SESSION_KEY)?;
        let parsed =
            found.map(|bytes| Self::decode(&bytes).ok_or_else(|| Error::Corrupt("the mount's own log".into())));
        parsed.transpose()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let epoch = |word: u64| u32::try_from(word).ok();
        let (session, known, line, claim) = match *words {
            [session, known, line] => (session, known, line, None),
            [session, known, line, claimed, secret] => {
                (session, known, line, Some(Claim { epoch: epoch(claimed)?, secret }))
            }
            _ => return None,
        };
        rest.is_empty().then_some(Self { session: SessionId(session), epoch: epoch(known)?, line, claim })
    }

    fn encode(self) -> Vec<u8> {
        let claim = self.claim.map(|claim| [claim.epoch.into(), claim.secret]);
        let words = [self.session.0, self.epoch.into(), self.line].into_iter().chain(claim.into_iter().flatten());
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn keep(self, own: &MetaStore) -> Result<sluice_base::Seq> {
        let done = own.transact(|txn: &mut Txn<'_>| -> Result<()> {
            txn.put(SESSION_KEY, self.encode());
            Ok(())
        })?;
        Ok(done.seq)
    }

    /// The next claim: with the secret of the one before, unless that was answered.
    fn next_claim(&self, entropy: &dyn Entropy) -> Result<Claim> {
        let (before, secret) = match self.claim {
            Some(Claim { epoch, secret }) => (epoch, secret),
            None => {
                let mut secret = [0; 8];
                entropy.fill(&mut secret);
                (self.epoch, u64::from_le_bytes(secret))
            }
        };
        let epoch = before.checked_add(1).ok_or_else(|| Error::Corrupt("a session's epoch is at its end".into()))?;
        Ok(Claim { epoch, secret })
    }
}

/// The session that an earlier process of this mount left, taken over from it, or else a new one. No other process may use `own`.
pub fn take_up(link: &dyn Link, own: &MetaStore, name: &[u8], entropy: &dyn Entropy) -> Result<Session> {
    let left = match Left::find(own)? {
        Some(left) => take_over(link, own, left, entropy)?,
        None => None,
    };
    let (session, line) = match left {
        Some(found) => found,
        None => {
            // Numbers of a session that has ended say nothing in another: what was sent under them goes again.
            publish::forget_sent(own)?;
            let (life, begun) = asked(link, &Begin { name }).map_err(failed)?;
            let lease = Duration::from_millis(begun.lease_ms.into());
            (Session::new(begun.session, begun.epoch, lease, 0, 0, (life, begun.line)), begun.line)
        }
    };
    // In the log before any change of the session, so a power loss takes both or none.
    Left { session: session.id, epoch: session.epoch.load(SeqCst) as u32, line, claim: None }.keep(own)?;
    Ok(session)
}

/// With the line of before. `None` when the server has given the session up: nobody came for it for ten leases.
fn take_over(link: &dyn Link, own: &MetaStore, left: Left, entropy: &dyn Entropy) -> Result<Option<(Session, u64)>> {
    let Left { session, epoch, line, .. } = left;
    let claim = Some(left.next_claim(entropy)?);
    own.ensure_synced(Left { claim, ..left }.keep(own)?)?;
    match asked(link, &Resume { session, epoch, take_over: claim, uses: Vec::new() }) {
        Ok((life, answer)) => {
            let lease = Duration::from_millis(answer.lease_ms.into());
            let numbers = if Bug::NumbersStartAgain.is_planted() { 0 } else { answer.numbers };
            let session = Session::new(session, answer.epoch, lease, numbers, answer.pushes, (life, answer.line));
            Ok(Some((session, line)))
        }
        Err(Fault::Ended) => {
            tracing::warn!(%session, "the session had ended: another one begins, and what the journal holds is published");
            Ok(None)
        }
        Err(fault) => Err(Error::Server(fault.to_string())),
    }
}

/// The session of the mount's own store and its incarnation, as an earlier process has left it.
pub(super) fn left(own: &MetaStore) -> Result<Option<(SessionId, u32)>> {
    Ok(Left::find(own)?.map(|left| (left.session, left.epoch)))
}

/// Whether the server is of the line that the mount's own store has spoken with last.
pub(super) fn is_of_line(own: &MetaStore, line: u64) -> Result<bool> {
    Ok(Left::find(own)?.is_none_or(|left| left.line == line))
}

/// From now on it is: what could not be told to a server of this line is dropped.
pub(super) fn keep_line(own: &MetaStore, line: u64) -> Result<()> {
    match Left::find(own)? {
        Some(left) if left.line != line => Left { line, ..left }.keep(own).map(drop),
        _ => Ok(()),
    }
}

/// Whether the mount's own store is of this session in this epoch, which nobody is about to take over.
pub(super) fn is_of(own: &MetaStore, session: SessionId, epoch: u32) -> Result<bool> {
    let left = Left::find(own)?;
    Ok(left.is_some_and(|left| left.session == session && left.epoch == epoch && left.claim.is_none()))
}

/// Ends the session, of which nothing is left.
pub(super) fn end(remote: &Remote) -> Result<()> {
    let left = !remote.pending.files().is_empty() || !super::unstored(&remote.own)?.is_empty();
    if left {
        return Ok(());
    }
    remote.ask(&End {})?;
    remote.own.transact(|txn| -> Result<()> {
        txn.delete(SESSION_KEY);
        Ok(())
    })?;
    Ok(())
}

/// The answer, and the run of the server that gives it.
fn asked<'a, C: Call<'a>>(link: &dyn Link, call: &C) -> std::result::Result<(u32, C::Reply), Fault> {
    let body = link.call(C::METHOD.number(), client::request(call));
    let body = body.map_err(|error| Fault::Server(error.to_string()))?;
    let answer = client::reply::<C>(&body)?;
    Ok((answer.head.life, answer.answer?.value))
}
