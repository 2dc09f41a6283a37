//! A dump of a volume in use: its lines go to the asker as they are, and what came of it behind them.

use super::{Ask, Asker, Control, Server, Told};
use crate::dump::header;
use anyhow::{Context, bail};
use sluice_base::{Clock, SystemClock};
use sluice_meta::{
    Namespace,
    dump::{Dumped, dump},
};
use std::{
    io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write},
    os::unix::net::UnixStream,
    time::Duration,
};
use tokio::sync::Semaphore;

/// Dumps of a process at once: each has a thread, and some 100 MiB of tables that were current when it began.
const DUMPS_MAX: usize = 2;
static PLACES: Semaphore = Semaphore::const_new(DUMPS_MAX);
/// Between two looks whether the process is to end, while the asker does not read.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);
/// So long the asker may read nothing: his output may be a pager's.
const PATIENCE: Duration = Duration::from_secs(600);
/// What every line of a dump begins with, and no answer.
const LINE: &[u8] = b"{\"record\":";

pub async fn answer(server: &Server, mut asker: Asker) -> anyhow::Result<()> {
    let Some(namespace) = server.namespace.clone() else {
        let error = "the metadata is not on this host: dump the volume on its server's".into();
        return asker.tell(&Told::Failed { error }).await;
    };
    let Ok(_place) = PLACES.try_acquire() else {
        let error = format!("{DUMPS_MAX} dumps of this volume are under way: try again when one has ended");
        return asker.tell(&Told::Failed { error }).await;
    };
    let (server, stream) = (server.clone(), asker.into_std()?);
    tokio::task::spawn_blocking(move || send(&server, &namespace, stream)).await?
}

fn send(server: &Server, namespace: &Namespace, stream: UnixStream) -> anyhow::Result<()> {
    stream.set_write_timeout(Some(LOOK_INTERVAL))?;
    let mut out = Patient { stream: &stream, server };
    let header = header(&server.config, SystemClock::default().wall());
    let dumped = namespace.write_accesses().map_err(|error| error.to_string()).and_then(|()| {
        let out = BufWriter::with_capacity(256 << 10, &mut out);
        dump(namespace.store(), header, out, |_| {}).map_err(|error| error.to_string())
    });
    let told = match dumped {
        Ok(dumped) => Told::Dumped { dumped, elsewhere_bytes: server.elsewhere_bytes() },
        // Where a line was cut he finds this behind a part of it, which is no answer either.
        Err(error) => Told::Failed { error },
    };
    let mut line = serde_json::to_vec(&told)?;
    line.push(b'\n');
    Ok(out.write_all(&line)?)
}

/// The way to somebody who reads slowly, as long as the process is not to end.
struct Patient<'a> {
    stream: &'a UnixStream,
    server: &'a Server,
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let clock = SystemClock::default();
        let begun = clock.monotonic();
        loop {
            if self.server.is_ending() {
                return Err(io::Error::other("its process is about to end: try again when it has"));
            }
            match (&mut &*self.stream).write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && clock.monotonic() - begun < PATIENCE => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Control {
    /// Writes a dump of the volume that the process works on to `out`. `line` hears of each of its lines. Returns what came of it, and of a served
    /// volume the bytes that only mounts elsewhere have.
    pub fn dump(&mut self, mut out: impl Write, mut line: impl FnMut()) -> anyhow::Result<(Dumped, Option<u64>)> {
        let mut ask = serde_json::to_vec(&Ask::Dump)?;
        ask.push(b'\n');
        self.stream.write_all(&ask).context("asking the mount")?;
        let (mut stream, mut text) = (BufReader::with_capacity(256 << 10, &self.stream), Vec::new());
        loop {
            text.clear();
            stream.read_until(b'\n', &mut text).context("the mount's answer")?;
            if text.last() != Some(&b'\n') {
                bail!(
                    "process {} ended the connection before the dump was complete: it was told to end, waited for 10 minutes, or is of an older version",
                    self.pid
                );
            }
            if text.starts_with(LINE) {
                out.write_all(&text).context("writing the dump")?;
                line();
                continue;
            }
            match serde_json::from_slice(&text).context("the mount's answer")? {
                Told::Dumped { dumped, elsewhere_bytes } => {
                    out.flush().context("writing the dump")?;
                    return Ok((dumped, elsewhere_bytes));
                }
                Told::Failed { error } => bail!(error),
                _ => {}
            }
        }
    }
}
