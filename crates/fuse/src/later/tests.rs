use super::*;
use crate::reply::Body;

struct Setup {
    runtime: tokio::runtime::Runtime,
    inbox: Arc<Inbox>,
    waiting: Arc<Waiting>,
}

impl Setup {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        Self { runtime, inbox: Arc::new(Inbox::new().unwrap()), waiting: Arc::default() }
    }

    fn spawn(&self, unique: u64, future: impl Future<Output = LateReply> + Send + 'static) {
        let route = (&self.inbox, &self.waiting);
        spawn(self.runtime.handle(), Box::pin(future), unique, route, Duration::from_millis(20));
    }

    fn attend(&self, unique: u64, future: impl Future<Output = LateReply> + Send + 'static) {
        let route = (&self.inbox, None, &self.waiting);
        attend(self.runtime.handle(), Box::pin(future), unique, route, Duration::from_millis(20));
    }

    /// The next completion, waiting as a reactor does.
    fn completion(&self) -> Completion {
        loop {
            let mut completions = Vec::new();
            self.inbox.drain(&mut completions);
            if let Some(completion) = completions.pop() {
                assert!(self.waiting.is_empty());
                return completion;
            }
            if self.inbox.fall_asleep() {
                let mut fds = [rustix::event::PollFd::new(&self.inbox.event, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut fds, None).unwrap();
                self.inbox.awake();
                self.inbox.lower();
            }
        }
    }
}

#[test]
fn outcomes_arrive() {
    let setup = Setup::new();
    setup.spawn(2, async { Ok(Body::from(b"x".to_vec())) });
    let done = setup.completion();
    assert_eq!((done.unique, done.outcome.unwrap().len()), (2, 1));
    setup.spawn(4, async { panic!("for the test") });
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EIO);
}

#[test]
fn outcomes_arrive_from_whoever_wakes() {
    let setup = Setup::new();
    setup.attend(2, async { Ok(Body::from(b"x".to_vec())) });
    assert_eq!(setup.completion().outcome.unwrap().len(), 1);
    let (tell, told) = oneshot::channel();
    setup.attend(4, async { told.await.map_err(|_| Errno::EIO) });
    let waker = std::thread::Builder::new().name("waker".into());
    let thread = waker.spawn(move || tell.send(Body::from(b"xy".to_vec()))).unwrap();
    let done = setup.completion();
    assert_eq!((done.unique, done.outcome.unwrap().len()), (4, 2));
    assert!(thread.join().unwrap().is_ok());
    setup.attend(6, async { panic!("for the test") });
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EIO);
    // What wakes itself while it is polled is polled again.
    setup.attend(8, async {
        tokio::task::yield_now().await;
        Err(Errno::EPERM)
    });
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EPERM);
}

#[test]
fn an_interrupt_ends_what_nobody_wakes() {
    let setup = Setup::new();
    setup.attend(2, std::future::pending());
    setup.waiting.interrupt(2);
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EINTR);
    setup.waiting.interrupt(4);
    setup.attend(4, std::future::pending());
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EINTR);
    // Within its grace it still has its outcome.
    let (tell, told) = oneshot::channel();
    setup.attend(6, async { told.await.map_err(|_| Errno::EIO) });
    setup.waiting.interrupt(6);
    tell.send(Body::empty()).unwrap();
    assert!(setup.completion().outcome.is_ok());
}

#[test]
fn an_interrupt_ends_what_outlasts_the_grace() {
    let setup = Setup::new();
    setup.spawn(2, std::future::pending());
    setup.waiting.interrupt(2);
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EINTR);
    // The interrupt may be read by another reactor before the request is known.
    setup.waiting.interrupt(4);
    setup.spawn(4, std::future::pending());
    assert_eq!(setup.completion().outcome.unwrap_err(), Errno::EINTR);
    setup.waiting.interrupt(6);
    setup.spawn(6, async { Ok(Body::empty()) });
    assert!(setup.completion().outcome.is_ok());
}

#[test]
fn a_runtime_that_is_gone_answers_with_an_error() {
    let Setup { runtime, inbox, waiting } = Setup::new();
    let handle = runtime.handle().clone();
    drop(runtime);
    spawn(&handle, Box::pin(std::future::pending()), 2, (&inbox, &waiting), Duration::ZERO);
    let mut completions = Vec::new();
    inbox.drain(&mut completions);
    assert_eq!(completions.pop().unwrap().outcome.unwrap_err(), Errno::EIO);
}

#[test]
fn what_is_interruptible_ends_by_itself() {
    let setup = Setup::new();
    let begin = |unique| {
        let wait: Interruptible = Box::new(|interrupted| {
            Box::pin(async move {
                interrupted.await;
                // Not dropped, however long it takes.
                tokio::time::sleep(Duration::from_millis(60)).await;
                Ok(Body::from(b"told".to_vec()))
            })
        });
        spawn_interruptible(setup.runtime.handle(), wait, unique, (&setup.inbox, &setup.waiting), || {
            panic!("nobody puts it aside")
        });
    };
    begin(2);
    setup.waiting.interrupt(2);
    assert_eq!(setup.completion().outcome.unwrap().len(), 4);
    setup.waiting.interrupt(4);
    begin(4);
    assert_eq!(setup.completion().outcome.unwrap().len(), 4);
}

#[test]
fn what_is_put_aside_is_dropped_and_not_answered() {
    let setup = Setup::new();
    let wait: Interruptible = Box::new(|_| Box::pin(std::future::pending()));
    let (park, is_parked) = std::sync::mpsc::channel();
    let route = (&setup.inbox, &setup.waiting);
    spawn_interruptible(setup.runtime.handle(), wait, 2, route, move || park.send(()).unwrap());
    setup.waiting.park(true);
    is_parked.recv_timeout(Duration::from_secs(60)).unwrap();
    let mut completions = Vec::new();
    setup.inbox.drain(&mut completions);
    assert!(completions.is_empty() && setup.waiting.is_empty());
}
