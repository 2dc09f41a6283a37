//! Faults around another backend, by seed or one by one, at run time.

use super::{Backend, ListEntry, PutMode, RequestKind};
use crate::{Denied, StoreError};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use parking_lot::Mutex;
use sluice_base::{Entropy, SeededEntropy};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// What befalls one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// Refused before anything is done, as "later".
    Unavailable,
    /// Refused before anything is done, for good.
    Denied(Denied),
    /// No room; puts only.
    Full,
    /// Done, but the answer is lost.
    LostAnswer,
    /// Never answered.
    Hang,
    /// Answered after this long.
    Delay(Duration),
    /// The body ends early; reads only.
    Truncated,
    /// One bit of the body is wrong; reads only.
    FlippedBit,
}

/// How often each fault befalls a request, in thousandths; the rest goes well.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// [`Fault::Unavailable`].
    pub unavailable: u32,
    /// [`Fault::LostAnswer`].
    pub lost_answer: u32,
    /// [`Fault::Truncated`].
    pub truncated: u32,
    /// [`Fault::FlippedBit`].
    pub flipped_bit: u32,
    /// [`Fault::Delay`] of up to [`Self::delay_max`].
    pub delay: u32,
    /// Longest delay.
    pub delay_max: Duration,
}

/// A backend that fails as told. A test prints its seed.
pub struct FaultyBackend<B> {
    inner: B,
    entropy: SeededEntropy,
    faults: Mutex<Faults>,
    planned: Mutex<VecDeque<(RequestKind, Fault)>>,
    down: AtomicBool,
    counts: [AtomicU64; RequestKind::ALL.len()],
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
}

impl<B> FaultyBackend<B> {
    /// Wraps `inner`; without faults until told.
    pub fn new(inner: B, seed: u64) -> Self {
        Self {
            inner,
            entropy: SeededEntropy::new(seed),
            faults: Mutex::default(),
            planned: Mutex::default(),
            down: AtomicBool::new(false),
            counts: Default::default(),
            in_flight: AtomicU64::new(0),
            in_flight_max: AtomicU64::new(0),
        }
    }

    /// The backend below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Faults by chance, from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    /// The next request of `kind` that has nothing planned yet suffers `fault`.
    pub fn plan(&self, kind: RequestKind, fault: Fault) {
        self.planned.lock().push_back((kind, fault));
    }

    /// What is planned does not happen.
    pub fn forget_plans(&self) {
        self.planned.lock().clear();
    }

    /// While down, every request fails at once.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Relaxed);
    }

    /// Requests of `kind` so far, failed ones included.
    pub fn count(&self, kind: RequestKind) -> u64 {
        self.counts[kind as usize].load(Relaxed)
    }

    /// Most requests that were in flight at once.
    pub fn in_flight_max(&self) -> u64 {
        self.in_flight_max.load(Relaxed)
    }

    fn number_below(&self, bound: u64) -> u64 {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes) % bound.max(1)
    }

    fn next_fault(&self, kind: RequestKind) -> Fault {
        let mut planned = self.planned.lock();
        if let Some(at) = planned.iter().position(|(of, _)| *of == kind) {
            return planned.remove(at).map_or(Fault::None, |(_, fault)| fault);
        }
        drop(planned);
        let faults = *self.faults.lock();
        let delay = || Fault::Delay(faults.delay_max.mul_f64(self.number_below(1001) as f64 / 1000.0));
        let mut dice = self.number_below(1000) as u32;
        for (share, fault) in [
            (faults.unavailable, Fault::Unavailable),
            (faults.lost_answer, Fault::LostAnswer),
            (faults.truncated, Fault::Truncated),
            (faults.flipped_bit, Fault::FlippedBit),
        ] {
            if dice < share {
                return fault;
            }
            dice -= share;
        }
        if dice < faults.delay { delay() } else { Fault::None }
    }

    /// Runs `request` with what befalls it; body damage is left to the caller.
    async fn suffer<T>(
        &self,
        kind: RequestKind,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<(T, Fault), StoreError> {
        self.counts[kind as usize].fetch_add(1, Relaxed);
        let _guard = InFlight::enter(self);
        let fault = self.next_fault(kind);
        if self.down.load(Relaxed) {
            return Err(StoreError::unavailable("down, as told"));
        }
        match fault {
            Fault::Unavailable => return Err(StoreError::unavailable("unavailable, as told")),
            Fault::Denied(reason) => return Err(StoreError::Denied { reason, detail: "as told".into() }),
            Fault::Full if kind == RequestKind::Put => return Err(StoreError::Full { detail: "as told".into() }),
            Fault::Hang => std::future::pending().await,
            Fault::Delay(time) => sluice_run::time::sleep(time).await,
            _ => {}
        }
        let answer = request.await?;
        if fault == Fault::LostAnswer {
            return Err(StoreError::unavailable("answer lost, as told"));
        }
        Ok((answer, fault))
    }

    fn damaged(&self, body: Bytes, fault: Fault) -> Bytes {
        match fault {
            Fault::Truncated => body.slice(..self.number_below(body.len() as u64) as usize),
            Fault::FlippedBit if !body.is_empty() => {
                let mut bytes = body.to_vec();
                let bit = self.number_below(bytes.len() as u64 * 8);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
                bytes.into()
            }
            _ => body,
        }
    }
}

/// Counts a request out also when its caller stops waiting.
struct InFlight<'a>(&'a AtomicU64);

impl<'a> InFlight<'a> {
    fn enter<B>(of: &'a FaultyBackend<B>) -> Self {
        let now = of.in_flight.fetch_add(1, Relaxed) + 1;
        of.in_flight_max.fetch_max(now, Relaxed);
        Self(&of.in_flight)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl<B: Backend> Backend for FaultyBackend<B> {
    fn has_connections(&self) -> bool {
        true
    }

    fn put<'a>(&'a self, key: &'a str, body: Vec<Bytes>, mode: PutMode) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { self.suffer(RequestKind::Put, self.inner.put(key, body, mode)).await.map(|_| ()) }.boxed()
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        async move {
            let (body, fault) = self.suffer(RequestKind::Get, self.inner.get_range(key, range)).await?;
            Ok(self.damaged(body, fault))
        }
        .boxed()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        async move {
            let (body, fault) = self.suffer(RequestKind::Get, self.inner.get(key)).await?;
            Ok(self.damaged(body, fault))
        }
        .boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move { Ok(self.suffer(RequestKind::Head, self.inner.head(key)).await?.0) }.boxed()
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { self.suffer(RequestKind::Delete, self.inner.delete(key)).await.map(|_| ()) }.boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListEntry, StoreError>> {
        let begin = async move {
            match self.suffer(RequestKind::List, async { Ok(()) }).await {
                Ok(_) => self.inner.list(prefix),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        };
        begin.flatten_stream().boxed()
    }
}
