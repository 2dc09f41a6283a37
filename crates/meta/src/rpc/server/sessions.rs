//! Requests about the session itself.

use super::{Event, Outcome, Reply, Server, State, ready};
use crate::rpc::{
    codec::Wire,
    fault::Fault,
    interest::{Grant, Noted},
    message::*,
    sessions::Peer,
    values::encode,
};
use sluice_base::{Ino, Seq};
use std::time::Duration;

impl Server {
    pub(super) fn begin(&self, now: Duration, begin: &Begin<'_>) -> Result<Outcome, Fault> {
        let name = &begin.name[..begin.name.len().min(Begin::NAME_BYTES_MAX)];
        let begun = self.names.begin_named_session(name)?;
        let mut state = self.state.lock();
        state.lapse(now);
        state.begin(begun.value, name, now);
        let peer = Peer { session: begun.value, epoch: 1 };
        let value = Begun { session: peer.session, epoch: peer.epoch, lease_ms: lease_ms(&state), line: state.line };
        Ok(bound(&state, peer, &value, begun.seq))
    }

    pub(super) fn resume(&self, now: Duration, resume: &Resume) -> Result<Outcome, Fault> {
        let mut peer = Peer { session: resume.session, epoch: resume.epoch };
        let (mut durable, mut fenced) = (self.adopt(now, peer)?, None);
        {
            let mut state = self.state.lock();
            state.lapse(now);
            // Whether it may be taken over is for the stored record to say.
            if resume.take_over.is_none() {
                state.sessions.known(peer)?;
            }
        }
        let stored = self.names.session(peer.session)?.ok_or(Fault::Ended)?;
        if let Some(claim) = resume.take_over {
            let taken = self.names.take_over_session(peer.session, peer.epoch, claim)?;
            fenced = Some(Peer { epoch: taken.value.ok_or(Fault::Fenced)?, ..peer });
            peer.epoch = claim.epoch;
            durable = taken.seq;
        }
        let kept = self.names.kept_numbers(peer.session)?;
        let mut state = self.state.lock();
        if let Some(fenced) = fenced {
            if state.sessions.exists(peer.session).is_err() {
                // Nobody had come for it for long.
                state.load(peer.session, stored, kept, now);
            }
            state.sessions.take_over(peer.session, peer.epoch);
            // The programs of the old incarnation are gone.
            state.locks.ended(peer.session);
            state.answer_locks();
            state.events.push(Event::Fenced(fenced));
            // What the old incarnation had answers to, it alone could send again.
            state.resent(peer.session, 0);
        }
        let before = state.sessions.resume(peer, now)?;
        let kept = before == Liveness::Live && fenced.is_none();
        if !kept {
            // The session serves nothing from its cache from when it asked until it is answered.
            state.forget_cached(peer.session);
            let held = state.interest.end(peer.session);
            state.hold(peer, &resume.uses)?;
            state.reclaim_unheld(held);
        }
        let client = state.clients.get_mut(&peer.session).ok_or(Fault::Ended)?;
        client.connected = false;
        client.outbox.disconnected();
        let pushes = client.outbox.stamp();
        let (lease_ms, numbers) = (lease_ms(&state), state.highest_number(peer.session));
        let value = Resumed { epoch: peer.epoch, lease_ms, kept, pushes, numbers, line: state.line };
        Ok(bound(&state, peer, &value, durable))
    }

    /// A session that only the server of the line before knows goes on, with no change that it made: the record from which on it does.
    fn adopt(&self, now: Duration, peer: Peer) -> Result<Seq, Fault> {
        let Some(adopted) = self.names.adopt_session(peer.session, peer.epoch)? else { return Ok(Seq(0)) };
        let kept = self.names.kept_numbers(peer.session)?;
        let mut state = self.state.lock();
        if state.sessions.exists(peer.session).is_err() {
            state.load(peer.session, adopted.value, kept, now);
            // Nobody kept others from them since this line is served.
            state.locks.lapsed(peer.session);
        }
        state.sessions.take_over(peer.session, peer.epoch);
        Ok(adopted.seq)
    }

    pub(super) fn of_session(&self, now: Duration, peer: Peer, request: &Request<'_>) -> Result<Outcome, Fault> {
        let mut state = self.state.lock();
        let renewed = state.admit(now, peer)?;
        if !matches!(request, Request::Resent(_) | Request::Hold(_) | Request::Release(_)) {
            // An idle session, too, is to send again what it keeps.
            state.check_resent(peer.session)?;
        }
        match request {
            Request::End(_) => state.ended(peer.session),
            Request::Release(Release { inos, cached }) => {
                for ino in inos {
                    if *cached && !state.orphans.contains(ino) {
                        state.interest.close(peer.session, *ino);
                    } else {
                        state.interest.release(peer.session, *ino);
                    }
                }
                state.reclaim_unheld(inos.clone());
            }
            Request::Hold(Hold { inos }) => state.hold(peer, inos)?,
            Request::Resent(Resent { barred }) => state.resent(peer.session, *barred),
            Request::SyncLog(SyncLog { life, record }) => {
                let is_ours = *life == state.life;
                let durable = if is_ours { Seq(*record).min(self.names.store().visible()) } else { Seq(0) };
                let body = state.head(peer.session, false, renewed).encode(Ok(&encode(&is_ours)));
                return Ok(Outcome::Reply(Reply { body, durable, stored: false, bind: None }));
            }
            Request::Ship(Ship { line }) => {
                if *line != state.line {
                    return Err(Fault::OtherLine(state.line));
                }
                let body = state.head(peer.session, false, renewed).encode(Ok(&[]));
                let durable = self.names.store().visible();
                return Ok(Outcome::Reply(Reply { body, durable, stored: true, bind: None }));
            }
            _ => {}
        }
        Ok(ready(state.head(peer.session, false, renewed).encode(Ok(&[]))))
    }

    /// All sessions that have not ended.
    pub fn sessions(&self, now: Duration) -> Vec<SessionStatus> {
        let mut state = self.state.lock();
        state.lapse(now);
        state
            .sessions
            .all()
            .map(|(id, session)| {
                let (inodes, open) = state.interest.counts(id);
                SessionStatus {
                    session: id,
                    epoch: session.epoch,
                    name: session.name.clone(),
                    state: session.state,
                    left_ms: session.until.saturating_sub(now).as_millis() as u64,
                    inodes: inodes as u64,
                    open: open as u64,
                    pushes: state.clients.get(&id).map_or(0, |client| client.outbox.unacked() as u64),
                }
            })
            .collect()
    }

    pub(super) fn list(&self, now: Duration) -> Outcome {
        ready(ReplyHead::default().encode(Ok(&encode(&self.sessions(now)))))
    }
}

impl State {
    fn hold(&mut self, peer: Peer, inos: &[Ino]) -> Result<(), Fault> {
        let uses: Vec<Grant> = inos.iter().map(|ino| Grant { ino: *ino, cached: 0, used: true }).collect();
        match self.interest.note(peer.session, &uses, u64::MAX) {
            Noted::Full => Err(Fault::TooManyOpen),
            _ => Ok(()),
        }
    }
}

fn lease_ms(state: &State) -> u32 {
    u32::try_from(state.settings.lease.as_millis()).unwrap_or(u32::MAX)
}

/// An answer that also says whose the connection is.
fn bound<'a>(state: &State, peer: Peer, value: &impl Wire<'a>, durable: Seq) -> Outcome {
    let head = ReplyHead { renewed: true, ..state.head(peer.session, false, true) };
    Outcome::Reply(Reply { body: head.encode(Ok(&encode(value))), durable, stored: false, bind: Some(peer) })
}
