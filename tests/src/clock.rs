//! Hosts whose wall clocks are wrong.

use crate::{Scratch, shell};
use std::{ffi::OsString, fs};

/// Goes before the C library's, and moves the wall clock by so many seconds; other clocks it leaves alone.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    const char *by = getenv("SLUICE_TEST_CLOCK");
    int done = syscall(SYS_clock_gettime, id, now);
    if (done == 0 && id == CLOCK_REALTIME && by) now->tv_sec += atoll(by);
    return done;
}
"#;

/// Moves the wall clocks of processes.
#[derive(Debug)]
pub struct WrongClock(Scratch);

impl WrongClock {
    /// Builds what does it.
    ///
    /// # Panics
    /// Without a C compiler.
    #[expect(clippy::new_without_default, reason = "it runs a compiler: not a default value")]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        fs::write(scratch.path().join("clock.c"), SOURCE).expect("a file");
        shell(scratch.path(), "cc -shared -fPIC -o clock.so clock.c");
        Self(scratch)
    }

    /// Variables of a process whose wall clock is wrong by so much.
    pub fn by(&self, seconds: i64) -> [(OsString, OsString); 2] {
        let library = self.0.path().join("clock.so");
        [("LD_PRELOAD".into(), library.into()), ("SLUICE_TEST_CLOCK".into(), seconds.to_string().into())]
    }
}
