//! Who is asked when: the object's owner, and soon the next one too.

use super::{Group, link::LinkError};
use crate::{
    Member,
    message::{ReadSegments, Segment},
};
use sluice_run::time::timeout;
use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// An owner that has not answered by then is slow. On a network of 1 Gbit/s 4 MiB take 35 ms, a disk that turns 20 ms, and a
/// store answers within 100 ms mostly: beyond that it is worth one more request, to the next owner and for what it has.
pub(super) const HEDGE_AFTER: Duration = Duration::from_millis(200);
/// An owner that has not answered by then may be dead: the next one is asked for everything, though it may have to ask the store.
const REPLACE_AFTER: Duration = Duration::from_secs(1);

type Answer = Result<Vec<Segment>, LinkError>;

impl Group {
    /// The first good answer of an object's owners, who are asked in their order.
    pub(super) async fn ask_owners(&self, owners: &[&Member], ask: &ReadSegments) -> Answer {
        let ends = self.clock.monotonic() + self.options.try_time;
        let (first, rest) = owners.split_first().ok_or(LinkError::Avoided)?;
        let begun = Arc::new(AtomicBool::new(false));
        let mut owner = pin!(self.tried(first, ask, self.options.try_time, Some(&begun)));
        let next = rest.first().filter(|_| self.options.hedge);
        let mut outcome = match (timeout(HEDGE_AFTER, &mut owner).await, next) {
            (Ok(done), _) => done,
            (Err(_), None) => owner.await,
            (Err(_), Some(next)) => match self.hedged(owner, &begun, next, ask, ends).await {
                Won::Owner(done) => done,
                Won::Next(segments) => {
                    self.link(first).note_overtaken();
                    self.fallbacks.fetch_add(1, Relaxed);
                    return Ok(segments);
                }
                // It was asked already.
                Won::Nobody(error) => return Err(error),
            },
        };
        for next in rest {
            match outcome {
                Ok(_) | Err(LinkError::Gone) => break,
                Err(_) => outcome = self.tried(next, ask, ends.saturating_sub(self.clock.monotonic()), None).await,
            }
        }
        outcome
    }

    /// The owner is slow: the next one is asked beside it. Not at first if its answer has `begun` to come: to send the rest of it is
    /// less work than to send it twice.
    async fn hedged(
        &self,
        mut owner: Pin<&mut impl Future<Output = Answer>>,
        begun: &AtomicBool,
        next: &Member,
        ask: &ReadSegments,
        ends: Duration,
    ) -> Won {
        let left = || ends.saturating_sub(self.clock.monotonic());
        let what_it_has = ReadSegments { cached_only: true, ..ask.clone() };
        let has_begun = begun.load(Relaxed);
        let beside = async {
            if has_begun {
                return Won::Owner(owner.as_mut().await);
            }
            first_good(owner.as_mut(), self.ask(next, &what_it_has, left(), None), false).await
        };
        match timeout(REPLACE_AFTER - HEDGE_AFTER, beside).await {
            Ok(won) => won,
            Err(_) => first_good(owner, self.tried(next, ask, left(), None), true).await,
        }
    }

    /// As `ask`; a failure is noted as one.
    async fn tried(
        &self,
        member: &Member,
        ask: &ReadSegments,
        within: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Answer {
        let outcome = self.ask(member, ask, within, begun).await;
        if let Err(error) = &outcome
            && *error != LinkError::Gone
        {
            tracing::debug!(node = %member.name, object = %ask.object.id(), %error, "a node did not answer");
            self.fallbacks.fetch_add(1, Relaxed);
        }
        outcome
    }
}

/// How two requests for the same ended.
enum Won {
    /// The owner's answer, or how it failed while the next one was not asked for everything.
    Owner(Answer),
    Next(Vec<Segment>),
    /// Both failed, the owner with this.
    Nobody(LinkError),
}

/// The first good answer of two; a failure of the next one waits for the owner's answer, one of the owner for that of the next one
/// if `both` are asked for the same.
async fn first_good(
    mut owner: Pin<&mut impl Future<Output = Answer>>,
    next: impl Future<Output = Answer>,
    both: bool,
) -> Won {
    let mut next = pin!(next);
    tokio::select! {
        biased;
        done = owner.as_mut() => match done {
            Err(error) if both && error != LinkError::Gone => next.await.map_or(Won::Nobody(error), Won::Next),
            done => Won::Owner(done),
        },
        done = next.as_mut() => match done {
            Ok(segments) => Won::Next(segments),
            Err(_) => match owner.await {
                Err(error) if both && error != LinkError::Gone => Won::Nobody(error),
                done => Won::Owner(done),
            }
        }
    }
}
