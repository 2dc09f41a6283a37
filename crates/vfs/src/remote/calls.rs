//! Calls to the server: numbers, retries, the lease, and going on with the session after a lost connection.

use super::{
    Remote,
    cache::Heard,
    refusal::Refusal,
    retained::{Kept, Retained},
    session,
};
use futures::future::BoxFuture;
use sluice_base::{Ino, SessionId};
use sluice_meta::{
    Error, Result,
    rpc::{
        Fault, client,
        message::{Call, CreateUnnamed, Effect, Hold, Invalidation, Method, Number, Release, Renew, Resume},
    },
};
use sluice_run::Bug;
use sluice_run::lock::Mutex;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// Before somebody looks again whether the session may ask.
const SILENT_INTERVAL: Duration = Duration::from_millis(100);
/// Of one call, without a pause.
const RESUMPTIONS_AT_ONCE: u32 = 3;

/// The way to the server. Calls block their thread; a call whose connection is lost waits for the next one, within its time.
pub trait Link: Send + Sync {
    /// Sends a request and waits for its answer.
    fn call(&self, method: u16, body: Vec<u8>) -> std::result::Result<Vec<u8>, LinkError>;

    /// As [`Link::call`] without a thread of its own, for an answer that may take as long as `within`. Dropped, it is cancelled.
    fn call_later(
        &self,
        method: u16,
        body: Vec<u8>,
        within: Duration,
    ) -> BoxFuture<'static, std::result::Result<Vec<u8>, LinkError>>;

    /// Waits a moment, before something is sent again that the server could not do for now.
    fn pause(&self);
}

/// No answer came.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nor will one: the request may have been done or not.
    #[error("no answer from the server: {0}")]
    Lost(String),
    /// The mount is being ended.
    #[error("the connection is closed")]
    Closed,
}

/// Resumptions of a session.
#[derive(Default)]
struct Resumptions {
    count: u64,
    /// The last one that was asked for has no answer. It may have been the one that made the server forget what this mount caches,
    /// and what the next answer says was kept is what came since.
    unanswered: bool,
}

/// Who the mount is for the server.
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// The last push before this process began.
    pub(super) pushes: u64,
    pub(super) epoch: AtomicU64,
    /// In nanoseconds, as the server said last.
    lease: AtomicU64,
    /// What the cache says may be believed until then, in nanoseconds of the monotonic clock.
    believed_until: AtomicU64,
    /// It has ended for good.
    pub(super) over: AtomicBool,
    /// Held while one is under way.
    resumed: Mutex<Resumptions>,
    numbers: Mutex<Numbers>,
    /// The run of the server that has all that an earlier one answered.
    pub(super) life: AtomicU32,
    /// The line of changes of the server when it answered first, or since somebody was told that it is another one.
    pub(super) line: AtomicU64,
    /// How often the server went on without what this mount had done. What waits for an answer over that fails.
    losses: AtomicU64,
    pub(super) refusal: Refusal,
    /// Changes up to this number that had no answer then are not done any more.
    barred: AtomicU64,
    pub(super) retained: Retained,
}

#[derive(Default)]
struct Numbers {
    last: u64,
    waiting: BTreeSet<u64>,
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        epoch: u32,
        lease: Duration,
        last_number: u64,
        pushes: u64,
        (life, line): (u32, u64),
    ) -> Self {
        Self {
            life: AtomicU32::new(life),
            line: AtomicU64::new(line),
            losses: AtomicU64::new(0),
            refusal: Refusal::default(),
            barred: AtomicU64::new(0),
            retained: Retained::new(life, last_number),
            id,
            pushes,
            epoch: AtomicU64::new(epoch.into()),
            lease: AtomicU64::new(lease.as_nanos() as u64),
            believed_until: AtomicU64::new(0),
            over: AtomicBool::new(false),
            resumed: Mutex::default(),
            numbers: Mutex::new(Numbers { last: last_number, waiting: BTreeSet::new() }),
        }
    }

    /// How long the server's answers may be believed.
    pub(super) fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease.load(SeqCst))
    }

    /// A number for a change; the answer to it is outstanding until [`Session::answered`].
    pub fn next_number(&self) -> u64 {
        let mut numbers = self.numbers.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.waiting.insert(number);
        number
    }

    /// A number that an earlier process gave, asked again.
    pub fn again(&self, number: u64) {
        let mut numbers = self.numbers.lock();
        numbers.last = numbers.last.max(number);
        numbers.waiting.insert(number);
    }

    /// The answer has come, or nobody waits for it.
    pub fn answered(&self, number: u64) {
        self.numbers.lock().waiting.remove(&number);
    }

    /// The last number that was given.
    pub(super) fn last_number(&self) -> u64 {
        self.numbers.lock().last
    }

    /// Changes up to this number get no answer but those that they had.
    pub(super) fn barred(&self) -> u64 {
        self.barred.load(SeqCst)
    }

    pub(super) fn number(&self, number: u64) -> Number {
        let numbers = self.numbers.lock();
        // In this order: what is answered is kept before it no longer waits.
        let waiting = numbers.waiting.first().copied();
        let first = self.retained.first().into_iter().chain(waiting).min();
        Number { number, seen_up_to: first.map_or(numbers.last, |first| first - 1), again: None }
    }
}

/// A change that has its answer, as it is kept.
fn kept<'a, C: Call<'a>>(call: &C, body: &[u8], inos: &[Ino], touched: &[Invalidation]) -> Kept {
    let made = match C::METHOD {
        // Both answer the attributes of what they made.
        Method::Create | Method::CreateUnnamed => {
            client::reply::<CreateUnnamed>(body).ok().and_then(|answer| Some(answer.answer.ok()?.value.ino))
        }
        _ => None,
    };
    let inos = inos.iter().copied().chain(touched.iter().filter_map(Invalidation::ino)).collect();
    Kept { method: C::METHOD.number(), fields: client::fields(call), made: made.unwrap_or(Ino(0)), inos }
}

/// What a fault is for the operation that met it.
pub(super) fn failed(fault: Fault) -> Error {
    match fault {
        Fault::Meta(error) => error,
        Fault::Fenced | Fault::Ended => Error::Fenced,
        Fault::LocksLost => Error::LocksLost,
        // Only of a publish that an earlier process had the answer to, which its log lost with the power: nothing is left to do.
        Fault::Forgotten => Error::Stale,
        other => Error::Server(other.to_string()),
    }
}

/// What waited while the server lost what this mount had done before: a program that reads and writes on would do so on what is not there.
pub(super) fn overtaken() -> Error {
    Error::Server("it was recovered from an earlier state of the volume meanwhile, and what was asked for before is not done there".into())
}

/// What is asked for while the mount passes to another process.
fn handed_over() -> Error {
    Error::Server("the mount is being handed over to another process".into())
}

impl Remote {
    fn now_ns(&self) -> u64 {
        self.clock.monotonic().as_nanos() as u64
    }

    /// Whether what is cached may be believed now.
    pub(super) fn is_believed(&self) -> bool {
        self.now_ns() < self.session.believed_until.load(SeqCst)
    }

    /// How long the kernel may believe what it is told now.
    pub fn valid(&self) -> Duration {
        Duration::from_nanos(self.session.believed_until.load(SeqCst).saturating_sub(self.now_ns()))
    }

    /// Asks what changes nothing that is cached.
    pub(super) fn ask<'a, C: Call<'a>>(&self, call: &C) -> Result<(Heard, C::Reply)> {
        self.ask_kept(call).map_err(|(_, error)| error)
    }

    /// As [`Remote::ask`]; that the answer is an error may be known from now on too.
    pub(super) fn ask_kept<'a, C: Call<'a>>(&self, call: &C) -> std::result::Result<(Heard, C::Reply), (Heard, Error)> {
        if !crate::may_wait() {
            return Err((Heard::default(), Error::Away));
        }
        self.call(call, None, &[], self.cache.begin(None))
    }

    /// Changes something about `inos`, which may be more than these where there are none.
    pub(super) fn change<'a, C: Call<'a>>(&self, call: &C, inos: &[Ino]) -> Result<(Heard, C::Reply)> {
        if !crate::may_wait() {
            return Err(Error::Away);
        }
        let numbered = C::METHOD.effect() == Effect::Change;
        let number = if numbered { Some(self.new_number()?) } else { None };
        let done = self.change_as(call, inos, number);
        number.iter().for_each(|number| self.session.answered(*number));
        done
    }

    /// As [`Remote::change`], under a number that was given before.
    pub(super) fn change_as<'a, C: Call<'a>>(
        &self,
        call: &C,
        inos: &[Ino],
        number: Option<u64>,
    ) -> Result<(Heard, C::Reply)> {
        let heard = self.cache.begin(Some(inos));
        let done = self.call(call, number, inos, heard);
        // Nothing, when it had its answer.
        self.cache.end(heard, std::iter::empty());
        done.map_err(|(_, error)| error)
    }

    /// Sends again after every lost connection. Waits.
    fn call<'a, C: Call<'a>>(
        &self,
        call: &C,
        number: Option<u64>,
        inos: &[Ino],
        mut heard: Heard,
    ) -> std::result::Result<(Heard, C::Reply), (Heard, Error)> {
        let never = Heard::default();
        let Some(_passage) = self.gate.pass() else { return Err((never, handed_over())) };
        let mut faults = 0;
        let losses = self.session.losses.load(SeqCst);
        loop {
            if self.session.over.load(SeqCst) {
                return Err((never, Error::Fenced));
            }
            if self.session.losses.load(SeqCst) != losses || (number.is_some() && self.session.refusal.refuses()) {
                return Err((never, overtaken()));
            }
            let resumed = self.session.resumed.lock().count;
            let sent = self.now_ns();
            let body = match number {
                Some(number) => client::change(call, self.session.number(number)),
                None => client::request(call),
            };
            let body = match self.link.call(C::METHOD.number(), body) {
                Err(LinkError::Closed) => return Err((never, Error::Fenced)),
                Err(LinkError::Lost(why)) => {
                    self.silent(why);
                    continue;
                }
                Ok(body) => body,
            };
            let answer = client::reply::<C>(&body).map_err(|fault| (never, failed(fault)))?;
            self.session.retained.synced(answer.head.life, answer.head.synced);
            *self.silence.lock() = None;
            if answer.head.renewed {
                self.session.believed_until.fetch_max(sent + self.session.lease.load(SeqCst), SeqCst);
            }
            match answer.answer {
                Ok(changed) => {
                    if let Some(number) = number {
                        let kept = || kept(call, &body, inos, &changed.touched);
                        if !self.session.retained.keep(number, answer.head, kept) {
                            continue;
                        }
                    }
                    changed.touched.iter().for_each(|what| self.cache.drop_own(what));
                    self.cache.end(heard, changed.touched.iter().filter_map(Invalidation::ino));
                    heard.head = answer.head;
                    heard.entries |= !changed.dirs.is_empty();
                    for attr in changed.dirs {
                        self.cache.enter(heard, attr.ino, |known| known.attr = Some(attr.clone()));
                    }
                    return Ok((heard, changed.value));
                }
                Err(fault) if fault.is_of_session() => {
                    faults += 1;
                    if faults > RESUMPTIONS_AT_ONCE {
                        // A server that refuses whatever is done is not to be asked all the time.
                        self.link.pause();
                    }
                    self.resume(resumed, &fault).map_err(|error| (never, error))?;
                }
                Err(Fault::Window) => {}
                Err(Fault::Forgotten) if number.is_some_and(|number| number <= self.session.barred()) => {
                    return Err((never, overtaken()));
                }
                Err(fault) => {
                    heard.head = answer.head;
                    return Err((heard, failed(fault)));
                }
            }
        }
    }

    /// The server did not answer.
    pub(super) fn silent(&self, why: String) {
        let now = self.clock.monotonic();
        let mut silence = self.silence.lock();
        let since = silence.as_ref().map_or(now, |(since, _)| *since);
        if silence.is_none() {
            tracing::warn!(why, "the server does not answer; what needs it waits");
        }
        *silence = Some((since, why));
    }

    /// What a server of another line than before lacks of this session is lost, unless it can get all of it; and so is what was done after that.
    fn look_at_line(&self, life: u32, line: u64, numbers: u64) -> Result<()> {
        if self.session.line.load(SeqCst) == line {
            return Ok(());
        }
        if self.session.retained.is_ahead_of(numbers) {
            let written = self.drop_unfounded(numbers)?;
            self.session.barred.store(self.session.last_number(), SeqCst);
            self.session.refusal.begin();
            self.session.losses.fetch_add(1, SeqCst);
            let held: Vec<Ino> = self.held.lock().iter().chain(&written).copied().collect();
            let kept = self.session.retained.lose_all(numbers, held.into_iter());
            tracing::error!(
                kept,
                written = written.len(),
                "the server goes on from an earlier state of the volume: what this mount did in the last seconds before it was recovered from \
                 its store is lost; what waits for it, and all changes for a moment, fail, and so do the writes and closes of each file that was open until a sync has told it once"
            );
            self.tell_lost(written.into_iter().map(Invalidation::Data).collect());
        }
        self.session.retained.begin_life(life);
        if let Err(error) = session::keep_line(&self.own, line) {
            // What would be dropped at the next start is dropped already.
            tracing::warn!(%error, "the journal does not note that the server is of another line");
        }
        self.session.line.store(line, SeqCst);
        Ok(())
    }

    /// Goes on with the session, unless somebody else did since resumption `seen`.
    fn resume(&self, seen: u64, why: &Fault) -> Result<()> {
        let mut resumed = self.session.resumed.lock();
        if resumed.count != seen {
            return Ok(());
        }
        tracing::info!(%why, session = %self.session.id, "resuming");
        self.session.believed_until.store(0, SeqCst);
        let doubted = self.locks.doubt();
        let mut uses: Vec<Ino> = self.held.lock().iter().copied().collect();
        let rest = uses.split_off(uses.len().min(Release::INOS_MAX));
        let epoch = self.session.epoch.load(SeqCst) as u32;
        let call = Resume { session: self.session.id, epoch, take_over: None, uses };
        let sent = self.now_ns();
        let unanswered = std::mem::replace(&mut resumed.unanswered, true);
        let body = match self.link.call(Resume::METHOD.number(), client::request(&call)) {
            // The caller asks again, and comes back here.
            Err(LinkError::Lost(_)) => return Ok(()),
            Err(LinkError::Closed) => return Err(Error::Fenced),
            Ok(body) => body,
        };
        match client::reply::<Resume>(&body).and_then(|answer| Ok((answer.head.life, answer.answer?))) {
            Ok((life, answer)) => {
                let answer = answer.value;
                self.session.epoch.store(answer.epoch.into(), SeqCst);
                if (!answer.kept || unanswered) && !Bug::CacheKeptWithoutTrack.is_planted() {
                    self.lost_track(answer.pushes);
                } else if !doubted {
                    self.locks.trust();
                }
                resumed.unanswered = false;
                self.look_at_line(life, answer.line, answer.numbers)?;
                if self.session.life.load(SeqCst) != life && !self.send_again(life)? {
                    return Ok(());
                }
                resumed.count += 1;
                drop(resumed);
                let lease = Duration::from_millis(answer.lease_ms.into()).as_nanos() as u64;
                self.session.lease.store(lease, SeqCst);
                self.session.believed_until.store(sent + lease, SeqCst);
                for inos in rest.chunks(Release::INOS_MAX) {
                    let hold = Hold { inos: inos.to_vec() };
                    let _ = self.link.call(Hold::METHOD.number(), client::request(&hold));
                }
                Ok(())
            }
            Err(Fault::Fenced | Fault::Ended) => {
                self.session.over.store(true, SeqCst);
                tracing::error!(session = %self.session.id, "the session has ended: open files fail from now on");
                Err(Error::Fenced)
            }
            Err(other) => Err(failed(other)),
        }
    }
}

impl Remote {
    /// Asks from a task, once; `None` when there was no answer, or none before the session was resumed: ask again.
    pub(super) async fn ask_later<'a, C: Call<'a>>(
        self: &Arc<Self>,
        call: &C,
        within: Duration,
    ) -> Result<Option<C::Reply>> {
        if self.session.over.load(SeqCst) {
            return Err(Error::Fenced);
        }
        if self.gate.is_closed() {
            sluice_run::time::sleep(SILENT_INTERVAL).await;
            return Ok(None);
        }
        let sent = self.now_ns();
        let body = match self.link.call_later(C::METHOD.number(), client::request(call), within).await {
            Ok(body) => body,
            Err(LinkError::Closed) => return Err(Error::Fenced),
            Err(LinkError::Lost(_)) => return Ok(None),
        };
        let answer = client::reply::<C>(&body).map_err(failed)?;
        if answer.head.renewed {
            self.session.believed_until.fetch_max(sent + self.session.lease.load(SeqCst), SeqCst);
        }
        match answer.answer {
            Ok(changed) => Ok(Some(changed.value)),
            Err(fault) if fault.is_of_session() => {
                // Any call that may wait resumes it.
                self.on_a_thread(|remote| remote.ask(&Renew {}).map(drop)).await?;
                Ok(None)
            }
            Err(fault) => {
                if let Fault::OtherLine(line) = fault {
                    // This is told once: what is written from now on is of that line.
                    self.session.line.store(line, SeqCst);
                }
                Err(failed(fault))
            }
        }
    }

    /// Whether the session has ended for good.
    pub fn is_over(&self) -> bool {
        self.session.over.load(SeqCst)
    }

    /// Whether the server says anything within this time.
    pub async fn is_answered(&self, within: Duration) -> bool {
        self.link.call_later(Renew::METHOD.number(), client::request(&Renew {}), within).await.is_ok()
    }

    /// Runs what may wait for the server, from a task.
    pub(super) async fn on_a_thread<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce(&Remote) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let remote = self.clone();
        let done = sluice_run::task::spawn_blocking(move || crate::waiting(|| operation(&remote))).await;
        done.unwrap_or_else(|error| Err(Error::Server(error.to_string())))
    }
}
