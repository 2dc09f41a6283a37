//! What the server has answered is made durable there, or sent again after it may have lost it: see `retained.rs`.

use super::{
    Remote,
    calls::{LinkError, failed},
};
use sluice_base::Ino;
use sluice_meta::{
    Error, Result,
    rpc::{
        Fault, client,
        message::{Call, Number, Renew, ReplyHead, Resent, SyncLog},
    },
};
use std::sync::atomic::Ordering::SeqCst;

/// What became of a change that was sent again.
enum Outcome {
    /// It is there.
    Done(ReplyHead),
    /// It survived.
    Durable,
    /// Another one came between.
    Refused(Fault),
    /// There was no answer, or the session must be resumed once more.
    Lost,
}

impl Remote {
    /// A number for a new change, once there is room to keep it.
    pub(super) fn new_number(&self) -> Result<u64> {
        while self.session.retained.is_full() {
            self.sync_log()?;
        }
        Ok(self.session.next_number())
    }

    /// On return all that was answered before survives a loss of the server's power.
    pub(super) fn sync_log(&self) -> Result<()> {
        let retained = &self.session.retained;
        let Some((.., last)) = retained.wanted(None) else { return Ok(()) };
        while let Some((life, record, _)) = retained.wanted(Some(last)) {
            // False after a restart of the server: then the record is another one by now.
            if self.ask(&SyncLog { life, record })?.1 {
                retained.synced(life, record);
            }
        }
        Ok(())
    }

    /// As [`Remote::sync_log`]; fails when a change of `ino`, or of anything, was lost. While the server is away that is not known.
    pub(super) fn sync_for(&self, ino: Option<Ino>) -> Result<()> {
        let is_silent = self.silence.lock().is_some();
        if is_silent || !self.is_believed() {
            self.ask(&Renew {})?;
        }
        self.sync_log()?;
        if self.session.retained.take_lost(ino) {
            return Err(Error::Lost);
        }
        if self.dropped.lock().take(ino) {
            return Err(Error::LocksLost);
        }
        Ok(())
    }

    /// Sends all that an earlier run of the server answered again, in order, and says so. Nothing else is sent meanwhile. False when
    /// the connection was lost.
    pub(super) fn send_again(&self, life: u32) -> Result<bool> {
        let retained = &self.session.retained;
        retained.begin_life(life);
        for number in retained.numbers() {
            match self.again(number)? {
                Outcome::Done(head) => retained.sent_again(number, head),
                Outcome::Durable => retained.forget(number),
                Outcome::Lost => return Ok(false),
                Outcome::Refused(fault) => {
                    let inos = retained.get(number).map(|kept| kept.inos).unwrap_or_default();
                    tracing::warn!(
                        ?inos, number, reason = %fault,
                        "a change that the server had lost could not be made again: another mount's came between"
                    );
                    retained.lose(number);
                }
            }
        }
        match self.link.call(Resent::METHOD.number(), client::request(&Resent { barred: self.session.barred() })) {
            Err(LinkError::Closed) => return Err(Error::Fenced),
            Err(LinkError::Lost(_)) => return Ok(false),
            Ok(body) if !matches!(ReplyHead::outcome(&body), Ok((_, Ok(())))) => return Ok(false),
            Ok(_) => {}
        }
        self.session.life.store(life, SeqCst);
        Ok(true)
    }

    fn again(&self, number: u64) -> Result<Outcome> {
        let Some(kept) = self.session.retained.get(number) else { return Ok(Outcome::Durable) };
        // A server that goes on from far earlier learns which numbers are not missing there: up to the first one that is kept.
        let body = client::again(&kept.fields, Number { again: Some(kept.made), ..self.session.number(number) });
        let body = match self.link.call(kept.method, body) {
            Err(LinkError::Closed) => return Err(Error::Fenced),
            Err(LinkError::Lost(_)) => return Ok(Outcome::Lost),
            Ok(body) => body,
        };
        Ok(match ReplyHead::outcome(&body).map_err(failed)? {
            (head, Ok(())) => Outcome::Done(head),
            (_, Err(Fault::Forgotten)) => Outcome::Durable,
            (_, Err(fault)) if fault.is_of_session() || is_for_now(&fault) => {
                self.link.pause();
                Outcome::Lost
            }
            (_, Err(fault)) => Outcome::Refused(fault),
        })
    }
}

/// Whether the server can do it later.
fn is_for_now(fault: &Fault) -> bool {
    matches!(fault, Fault::Window | Fault::TooManyOpen | Fault::Server(_) | Fault::Meta(Error::Store(_)))
}
