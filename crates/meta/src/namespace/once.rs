//! Operations on behalf of a session: fenced by its epoch, and each numbered change done once. What is needed for that is read
//! and written in the operation's own transaction.

use super::Namespace;
use crate::{
    Error, Result, keys,
    records::{Reader as RecordReader, SessionRecord, Writer},
    rpc::{
        codec::{Wire, whole},
        message::Invalidation,
    },
    store::{Committed, MetaStore, Txn},
};
use sluice_base::{Ino, Seq, SessionId};
use sluice_run::Bug;
use sluice_run::lock::Mutex;
use std::{ops::Deref, ops::Range};

/// On whose behalf a change is made, and which of its changes it is.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    /// The session.
    pub session: SessionId,
    /// The epoch that it must still have at commit.
    pub epoch: u32,
    /// The change's number; without one its result is not kept.
    pub number: Option<u64>,
    /// Numbers whose results are forgotten with this change.
    pub forget: Range<u64>,
    /// It is done again after a power loss took it: the inode that it made the first time.
    pub again: Option<Ino>,
    /// It must not be done any more; done before, it is answered.
    pub barred: bool,
}

/// What a change did besides its value.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The bytes of what it touched and of its value: those of a [`crate::rpc::message::Changed`] without the directories.
    pub answer: Vec<u8>,
    /// What it touched; nothing when it was done before.
    pub touched: Vec<Invalidation>,
    /// It had been done before: the value is that of the first time.
    pub replayed: bool,
    /// Its record, or what it read at.
    pub seq: Seq,
    /// The session has another epoch by now, or has ended: nothing was done.
    pub fenced: bool,
    /// It had not been done, and was not done now, because it must not be any more.
    pub barred: bool,
}

/// Where a view keeps what its operation did.
pub(super) struct OnceState {
    once: Once,
    effects: Mutex<Effects>,
}

/// The namespace as a session changes it: for one operation.
pub(crate) struct InSession(Namespace);

impl Deref for InSession {
    type Target = Namespace;
    fn deref(&self) -> &Namespace {
        &self.0
    }
}

impl InSession {
    /// What the operation did.
    pub fn effects(self) -> Effects {
        self.0.once.map(|state| state.effects.into_inner()).unwrap_or_default()
    }
}

impl Namespace {
    /// A view for one operation of a session.
    pub(crate) fn in_session(&self, once: Once) -> InSession {
        let (store, clock, ids) = (self.store.clone(), self.clock.clone(), self.ids.clone());
        let state = OnceState { once, effects: Mutex::default() };
        InSession(Namespace { store, clock, ids, accesses: self.accesses.clone(), once: Some(Box::new(state)) })
    }
}

impl Namespace {
    /// The number of an inode that is about to be made; true when it was given before.
    pub(super) fn new_ino(&self) -> Result<(Ino, bool)> {
        match self.once.as_ref().and_then(|state| state.once.again) {
            Some(made) => Ok((made, true)),
            None => Ok((Ino(self.next_id()?), false)),
        }
    }
}

impl OnceState {
    /// [`MetaStore::transact`] with the session's part around `f`.
    pub(super) fn write<'a, R: for<'r> Wire<'r>>(
        &self,
        store: &MetaStore,
        mut f: impl FnMut(&mut Txn<'a>) -> Result<R>,
    ) -> Result<Committed<R>> {
        let done = store.transact(|txn| self.run(txn, &mut f))?;
        self.effects.lock().seq = done.seq;
        Ok(done)
    }

    fn run<'a, R: for<'r> Wire<'r>>(
        &self,
        txn: &mut Txn<'a>,
        f: &mut impl FnMut(&mut Txn<'a>) -> Result<R>,
    ) -> Result<R> {
        let Once { session, epoch, number, forget, again: _, barred } = &self.once;
        let record = txn.get(&keys::session(*session))?.map(|bytes| SessionRecord::decode(&bytes)).transpose()?;
        if record.is_none_or(|record| record.epoch != *epoch) {
            *self.effects.lock() = Effects { fenced: true, ..Effects::default() };
            return Err(Error::Stale);
        }
        let key = keys::result(*session, number.unwrap_or(0));
        if number.is_some()
            && !Bug::ChangeDoneAgain.is_planted()
            && let Some(stored) = txn.get(&key)?
        {
            let (answer, value) = stored_result(&stored)?;
            *self.effects.lock() = Effects { answer, replayed: true, ..Effects::default() };
            return Ok(value);
        }
        if *barred {
            *self.effects.lock() = Effects { barred: true, ..Effects::default() };
            return Err(Error::Stale);
        }
        let value = f(txn)?;
        let touched = touched(txn);
        let mut answer = Vec::new();
        touched.put(&mut answer);
        value.put(&mut answer);
        if number.is_some() {
            txn.put(&key, Writer::new(1 + answer.len()).bytes(&answer).0);
            forget.clone().for_each(|number| txn.delete(&keys::result(*session, number)));
        }
        *self.effects.lock() = Effects { answer, touched, ..Effects::default() };
        Ok(value)
    }
}

/// The bytes and the value of a kept result.
fn stored_result<R: for<'r> Wire<'r>>(stored: &[u8]) -> Result<(Vec<u8>, R)> {
    let parse = || {
        let answer = RecordReader::new(stored)?.rest();
        let (_, value): (Vec<Invalidation>, R) = whole(answer)?;
        Some((answer.to_vec(), value))
    };
    parse().ok_or(Error::Invalid("another change was asked for with this number"))
}

/// What the writes of a transaction make of what others may have read before: told by the keys, so that no operation can
/// forget to say it.
fn touched(txn: &Txn<'_>) -> Vec<Invalidation> {
    let mut all = Vec::new();
    txn.each_write(&mut |key, deleted| {
        let ino = Ino(keys::number_at(key, 1));
        all.extend(match (key[0], deleted) {
            (b'i', true) | (b'u', false) => Some(Invalidation::Unlinked(ino)),
            (b'i' | b's' | b'x', _) => Some(Invalidation::Attr(ino)),
            (b'b' | b'e', _) => Some(Invalidation::Data(ino)),
            (b'd', _) => Some(Invalidation::Entry(ino, key[9..].to_vec())),
            _ => None,
        });
    });
    all.sort_unstable();
    all.dedup();
    let covers = |other: &Invalidation, one: &Invalidation| other != one && other.covers(one);
    all.iter().filter(|one| !all.iter().any(|other| covers(other, one))).cloned().collect()
}
