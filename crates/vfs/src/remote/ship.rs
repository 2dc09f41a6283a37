//! The server's metadata in the store, for syncs of tier `object`.

use super::Remote;
use futures::future::{Either, select};
use sluice_meta::rpc::message::Ship;
use sluice_run::lock::Mutex;
use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};
use tokio::sync::{Semaphore, oneshot};

/// Questions under way at once: an answer lasts as long as a request to the store, and a peer may have 64 under way. Who comes meanwhile
/// shares the next one.
const QUESTIONS_MAX: usize = 8;
/// Time for an answer. Then it is asked again, however long the store is away: nothing less was asked for.
const ANSWER_TIME: Duration = Duration::from_secs(15);

/// That the store has it, or why it will not.
type Outcome = Result<(), String>;

/// Those who wait, and those who ask for them.
pub(super) struct Shared {
    waiting: Mutex<Vec<oneshot::Sender<Outcome>>>,
    asking: Semaphore,
}

impl Default for Shared {
    fn default() -> Self {
        Self { waiting: Mutex::default(), asking: Semaphore::new(QUESTIONS_MAX) }
    }
}

impl Shared {
    /// The outcome of an `ask` that began after this was called.
    async fn ask<F: Future<Output = Outcome>>(&self, ask: impl Fn() -> F) -> Outcome {
        loop {
            let (tell, mut told) = oneshot::channel();
            self.waiting.lock().push(tell);
            let outcome = match select(&mut told, pin!(self.asking.acquire())).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right((turn, _)) => {
                    let _turn = turn.map_err(|error| error.to_string())?;
                    // This one is among them, unless somebody took it along meanwhile.
                    let all = std::mem::take(&mut *self.waiting.lock());
                    if !all.is_empty() {
                        let outcome = ask().await;
                        all.into_iter().for_each(|waiting| drop(waiting.send(outcome.clone())));
                    }
                    told.await
                }
            };
            // An error where whoever asked for this one as well has given up.
            if let Ok(outcome) = outcome {
                return outcome;
            }
        }
    }
}

impl Remote {
    /// Resolves when the store has all that the server had answered when this was called, or with the reason why it will not.
    pub async fn shipped(self: Arc<Self>) -> Outcome {
        self.shipped.ask(|| self.ask_shipped()).await
    }

    async fn ask_shipped(self: &Arc<Self>) -> Outcome {
        // Of the server as it was: it may be recovered from its store while it is asked.
        let line = self.session.line.load(SeqCst);
        while self.ask_later(&Ship { line }, ANSWER_TIME).await.map_err(|error| error.to_string())?.is_none() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        cell::{Cell, RefCell},
        task::{Context, Poll, Waker},
    };

    /// Questions that are answered when a test says so.
    #[derive(Default)]
    struct Asked(RefCell<Vec<oneshot::Sender<Outcome>>>);

    impl Asked {
        fn ask(&self) -> impl Future<Output = Outcome> + use<> {
            let (tell, told) = oneshot::channel();
            self.0.borrow_mut().push(tell);
            async { told.await.expect("an answer") }
        }

        fn answer(&self, at: usize, outcome: Outcome) {
            self.0.borrow_mut().remove(at).send(outcome).expect("somebody waits");
        }

        fn len(&self) -> usize {
            self.0.borrow().len()
        }
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        match std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_comes_while_all_ask_shares_the_next_question() {
        let (shared, asked) = (Shared::default(), Asked::default());
        let mut all: Vec<_> = (0..100).map(|_| Box::pin(shared.ask(|| asked.ask()))).collect();
        assert!(all.iter_mut().all(|one| poll(one).is_none()));
        assert_eq!(asked.len(), QUESTIONS_MAX);
        asked.answer(3, Ok(()));
        assert_eq!(poll(&mut all[3]), Some(Ok(())));
        // The other questions began before the others came: their answers are not for them.
        assert!(all[QUESTIONS_MAX..].iter_mut().all(|one| poll(one).is_none()));
        assert_eq!(asked.len(), QUESTIONS_MAX, "one more, for all of them");
        asked.answer(QUESTIONS_MAX - 1, Err("no".into()));
        let done = Cell::new(0);
        for one in &mut all[QUESTIONS_MAX..] {
            done.set(done.get() + usize::from(poll(one) == Some(Err("no".into()))));
        }
        assert_eq!((done.get(), asked.len()), (100 - QUESTIONS_MAX, QUESTIONS_MAX - 1));
    }

    #[test]
    fn who_asked_for_others_may_give_up() {
        let (shared, asked) = (Shared::default(), Asked::default());
        let mut first: Vec<_> = (0..QUESTIONS_MAX).map(|_| Box::pin(shared.ask(|| asked.ask()))).collect();
        first.iter_mut().for_each(|one| assert!(poll(one).is_none()));
        let mut asks = Box::pin(shared.ask(|| asked.ask()));
        let mut shares = Box::pin(shared.ask(|| asked.ask()));
        assert!(poll(&mut asks).is_none() && poll(&mut shares).is_none());
        asked.answer(0, Ok(()));
        assert_eq!(poll(&mut first[0]), Some(Ok(())));
        assert!(poll(&mut asks).is_none());
        let questions = asked.len();
        drop(asks);
        assert!(poll(&mut shares).is_none());
        assert_eq!(asked.len(), questions + 1, "it asks by itself");
        asked.answer(questions, Ok(()));
        assert_eq!(poll(&mut shares), Some(Ok(())));
    }
}
