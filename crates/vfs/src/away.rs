//! Answers that are with a server. Threads that serve others must not wait for them: there the operation fails with
//! [`Away`](sluice_meta::Error::Away), and whoever called it runs it again where it may wait. So the operations themselves are written once,
//! as plain calls.
//!
//! The tasks of the runtime carry the network, so one that waits for it on its thread may wait for itself; so may one that waits
//! for a lock whose holder waits for the network. They hand the operation to a thread of the blocking pool.

use std::cell::Cell;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may wait for the network.
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Runs `operation` on this thread, which serves nobody else, with leave to wait for the network.
pub fn waiting<T>(operation: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MAY_WAIT.set(self.0);
        }
    }
    let _restore = Restore(MAY_WAIT.replace(true));
    operation()
}

/// Runs `operation` for a task, on a thread that may wait. `None` if it panicked. Those that wait for a thread are as many as
/// later answers may be.
pub(crate) async fn on_thread<T: Send + 'static>(operation: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    sluice_run::task::spawn_blocking(move || waiting(operation)).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_meta::{Error, Result};

    fn answer() -> Result<u8> {
        if may_wait() { Ok(7) } else { Err(Error::Away) }
    }

    #[tokio::test]
    async fn a_task_gets_what_a_reactor_must_not_wait_for() {
        assert!(matches!(answer(), Err(Error::Away)));
        assert_eq!(on_thread(answer).await.unwrap().unwrap(), 7);
        assert!(!may_wait());
        assert!(std::panic::catch_unwind(|| waiting(|| panic!())).is_err());
        assert!(!may_wait());
        assert_eq!(on_thread::<()>(|| panic!()).await, None);
    }
}
