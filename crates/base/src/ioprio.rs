//! I/O priority of a thread. The only unsafe corner of this crate: rustix has no such call.

#![allow(unsafe_code)]

use std::io;

/// ioprio_set(2): the thread's I/O waits for everybody else's, where the disk's scheduler heeds it (BFQ, mq-deadline).
pub fn set_idle() -> io::Result<()> {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3;
    const CLASS_SHIFT: libc::c_int = 13;
    // SAFETY: the call takes three numbers and touches no memory of ours; who = 0 is the calling thread.
    let outcome = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE << CLASS_SHIFT) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
