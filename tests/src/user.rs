//! Doing things as another user.

use rustix::{
    process::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// The user that owns nothing: the same number on every Linux.
pub const NOBODY: u32 = 65534;

/// Runs `work` on a thread of its own as this user, group and list of further groups.
/// On Linux credentials belong to the thread: the rest of the test stays root.
///
/// # Panics
/// When the tests do not run as root, or when `work` panics.
#[track_caller]
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            set_thread_groups(&groups).expect("setgroups: the tests run as root");
            set_thread_res_gid(gid, gid, gid).expect("setresgid");
            set_thread_res_uid(uid, uid, uid).expect("setresuid");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
