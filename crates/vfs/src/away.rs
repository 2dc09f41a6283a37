//! Answers that are with a server. Threads that serve others must not wait for them: there the operation fails with
//! [`Error::Away`], and whoever called it runs it again where it may wait. So the operations themselves are written once,
//! as plain calls.

use sluice_meta::{Error, Result};
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

/// Runs `operation` from a task: on the spot if it can, else waiting, while the runtime's other tasks go elsewhere.
pub(crate) fn from_task<T>(operation: impl Fn() -> Result<T>) -> Result<T> {
    match operation() {
        Err(Error::Away) => tokio::task::block_in_place(|| waiting(operation)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Result<u8> {
        if may_wait() { Ok(7) } else { Err(Error::Away) }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_gets_what_a_reactor_must_not_wait_for() {
        assert!(matches!(answer(), Err(Error::Away)));
        assert_eq!(from_task(answer).unwrap(), 7);
        assert!(!may_wait());
        assert!(std::panic::catch_unwind(|| waiting(|| panic!())).is_err());
        assert!(!may_wait());
    }
}
