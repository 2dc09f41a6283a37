//! A mount passes to another process of the same user: both ends of `up --takeover` and `mount --takeover`.
//!
//! The new process asks. The old one lets what is under way end, and tells the mount's state with the device beside it (SCM_RIGHTS). When
//! the new one has understood it, it says so with one byte; until then the old one can go on as if nothing had been asked. From then on it ends,
//! and the new one, which must not touch the volume before, waits for the end of its process. Whoever dies on the way: either the other one
//! goes on, or nobody does, and the kernel tells the programs (ENOTCONN).
//!
//! In a mount of a served volume the session at the server passes too ([`prepared`]): what was written is published first, then no push of the
//! server is taken any more, and when the mount rests nothing is asked any more. The new process resumes the session as after a lost connection.

use super::{Ask, Asker, Control, Server, Told};
use crate::{guard::Guards, takeover::are_one};
use anyhow::{Context, anyhow, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::{Errno, IoSlice, IoSliceMut},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg, sockopt::socket_peercred,
    },
    process::{Pid, PidfdFlags, geteuid, pidfd_open},
};
use sluice_base::{Clock, SystemClock};
use sluice_fuse::{CHANNELS_MAX, HAND_OVER_BYTES_MAX, HAND_OVER_FORMAT, HandOver, LeftMount, Paused, Session};
use sluice_join::{Callbacks, Deaf};
use sluice_store::CacheState;
use sluice_vfs::{
    OpenState,
    remote::{Remote, SessionState, Silent},
};
use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{runtime::Handle, time::timeout};

/// How long requests that are under way may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// How long the new process may take to receive the state and to understand it, while programs wait.
const WORD_LIMIT: Duration = Duration::from_secs(5);
/// How long the new process waits for the state: all limits together that the old one has until then.
const STATE_LIMIT: Duration = Duration::from_secs(40);
/// How long the end of a process that closed its connection may take.
const EXIT_LIMIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// A process that was killed is gone by then.
const AT_ONCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Longest line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// That the state is understood.
const UNDERSTOOD: u8 = b'+';

/// How long the server of a served volume may take to be told what it does not know.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// How long the kernel may take to hear of other mounts' changes, and what is asked in the background to have its answer.
const MOMENT_LIMIT: Duration = Duration::from_secs(3);

/// A mount that this process is to serve.
pub struct Taken {
    pub mount: LeftMount,
    /// What programs have open.
    pub open: OpenState,
    /// The session of a mount of a served volume.
    pub session: Option<SessionState>,
}

/// What belongs to a mount of a served volume.
pub struct Served {
    pub metadata: Arc<Remote>,
    pub callbacks: Arc<Callbacks>,
    pub guards: Guards,
}

/// The cache of who asks for the mount.
pub struct HeirCache {
    pub has_one: bool,
    /// Where it is, unless that is where the volume is.
    pub dir: Option<PathBuf>,
}

/// Who asks for the mount.
pub struct Heir {
    /// He reads states up to this format.
    pub format: u32,
    /// Where he sees the mount.
    pub mountpoint: String,
    pub cache: HeirCache,
}

/// Hands the mount on.
pub async fn give(server: &Server, asker: Asker, heir: Heir) -> anyhow::Result<()> {
    let (server, stream) = (server.clone(), asker.into_std()?);
    let given = tokio::task::spawn_blocking(move || hand_on(&server, stream, &heir)).await?;
    given.inspect_err(|error| tracing::warn!(%error, "the mount was not handed over and goes on here"))
}

fn hand_on(server: &Server, mut stream: UnixStream, heir: &Heir) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(WORD_LIMIT))?;
    stream.set_write_timeout(Some(WORD_LIMIT))?;
    let may = may_hand_on(server, &stream, heir);
    let prepared = may.and_then(|mount| Ok((mount, prepared(server, mount)?)));
    let (mount, prepared) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return tell(&mut stream, &Told::Failed { error: format!("{error:#}") }),
    };
    let Prepared { silence, paused } = &prepared;
    let served = silence.as_ref().map(|silence| silence.session.state().clone());
    let (parked, open) = (paused.parked().to_vec(), server.vfs.open_state());
    let state = HandOver { negotiated: mount.negotiated(), open, parked, served }.encode();
    if state.len() as u64 > HAND_OVER_BYTES_MAX {
        drop(prepared);
        return tell(&mut stream, &Told::Failed { error: "too many files are open, or too many names known".into() });
    }
    send_state(&stream, &state, &paused.devices(), WORD_LIMIT)?;
    prepared.leave();
    // Who has died since has the mount with him.
    let _ = tell(&mut stream, &Told::HandedOver);
    Ok(())
}

/// A mount that rests, and can go on here when this is dropped.
struct Prepared<'a> {
    silence: Option<Silence<'a>>,
    paused: Paused<'a>,
}

/// The session of a served volume at rest.
struct Silence<'a> {
    session: Silent<'a>,
    _deaf: Deaf,
    _guard: GuardAway<'a>,
}

impl Prepared<'_> {
    /// Ends the mount here: what rests must not go on.
    fn leave(self) {
        let Self { silence, paused } = self;
        std::mem::forget(silence);
        paused.leave();
    }
}

/// The guard of a mount that is about to pass on: it would end the mount with this process.
struct GuardAway<'a>(&'a Guards);

impl Drop for GuardAway<'_> {
    fn drop(&mut self) {
        self.0.call_back();
    }
}

/// Brings a mount to rest, and with it its session at the server.
fn prepared<'a>(server: &'a Server, mount: &'a Session) -> anyhow::Result<Prepared<'a>> {
    let pause = || mount.pause(END_LIMIT).map_err(|error| explained(error, server));
    let Some(served) = &server.served else { return Ok(Prepared { silence: None, paused: pause()? }) };
    let runtime = Handle::current();
    // Most of it while programs go on.
    settle(&runtime, served)?;
    let telling = || anyhow!("the kernel has to be told of changes by other mounts; try again");
    let within = |limit, what| runtime.block_on(async move { timeout(limit, what).await.ok() });
    let deaf = within(MOMENT_LIMIT, served.callbacks.fall_deaf()).ok_or_else(telling)?;
    let notifier = mount.notifier();
    runtime.block_on(async { timeout(MOMENT_LIMIT, notifier.flush()).await }).map_err(|_| telling())?.ok();
    let paused = pause()?;
    settle(&runtime, served)?;
    let session =
        served.metadata.fall_silent(MOMENT_LIMIT).context("the server is still being asked something; try again")?;
    // A session that had to be resumed meanwhile has lost track, and the kernel is to drop what it believes.
    if !paused.is_settled() {
        return Err(telling());
    }
    let guard = GuardAway(&served.guards);
    // Here, where nobody is in the kernel who would need it.
    let is_away = runtime.block_on(async { timeout(MOMENT_LIMIT, served.guards.send_away()).await });
    is_away.context("the process that watches over the mount does not end; try again")?;
    Ok(Prepared { silence: Some(Silence { session, _deaf: deaf, _guard: guard }), paused })
}

/// Has the server told all that it does not know yet.
fn settle(runtime: &Handle, served: &Served) -> anyhow::Result<()> {
    let metadata = served.metadata.clone();
    let settled = tokio::task::spawn_blocking(move || sluice_vfs::waiting(|| metadata.settle_all()));
    let silent = "the volume's server does not answer, and has to be told first what was written; try again";
    let settled = runtime.block_on(async { timeout(SETTLE_LIMIT, settled).await });
    let settled = settled.map_err(|_| anyhow!(silent))??;
    settled.context("telling the volume's server what was written")
}

/// The mount, if it may be handed on at all.
fn may_hand_on<'a>(server: &'a Server, stream: &UnixStream, heir: &Heir) -> anyhow::Result<&'a sluice_fuse::Session> {
    let own = geteuid();
    if socket_peercred(stream)?.uid != own {
        bail!("the mount is of user {own}: run this as that user, who has the volume's files");
    }
    let Some((mount, at)) = server.mount.as_ref().filter(|_| server.service.is_none()) else {
        bail!("only a mount can be taken over: end this process and start it again");
    };
    if heir.format < HAND_OVER_FORMAT {
        bail!(
            "the mount's process is newer (it tells its state in format {HAND_OVER_FORMAT}, this one reads {}): take a newer binary",
            heir.format
        );
    }
    if heir.mountpoint != at.to_string_lossy() {
        bail!(
            "the volume is mounted at {}; the mount at {} is one that its process left behind, or leads to another: take it away with umount -l",
            at.display(),
            heir.mountpoint
        );
    }
    if let Some(cache) = server.vfs.cache() {
        let dir = &server.cache_dir;
        match &heir.cache {
            HeirCache { has_one: false, .. } if server.served.is_some() => {
                bail!("what is not stored yet may lie in the cache {}: leave --cache none out", dir.display())
            }
            HeirCache { has_one: false, .. } => {
                bail!("what is not stored yet may lie in the cache: leave --cache-size 0 out")
            }
            HeirCache { dir: Some(other), .. } if !are_one(dir, other) => bail!(
                "what is not stored yet may lie in the cache {}, not in {}: say --cache {}:SIZE",
                dir.display(),
                other.display(),
                dir.display()
            ),
            _ => {}
        }
        // Only this process knows that the disk has lost bytes: to the next one it would say that it has synced them.
        if cache.stats().state == CacheState::Failed {
            bail!("the cache disk has failed: `sluice umount` stores what is left, then look at the disk");
        }
    }
    if server.state() != "mounted" {
        bail!("the mount is ending");
    }
    Ok(mount)
}

fn explained(error: sluice_fuse::PauseError, server: &Server) -> anyhow::Error {
    use sluice_fuse::PauseError::{Passthrough, Ring};
    let dir = crate::units::quoted(&server.dir);
    match error {
        Ring | Passthrough => match &server.server {
            Some(server) => anyhow!("{error}: `sluice umount` it and `sluice mount {server}` again"),
            None => anyhow!("{error}: `sluice umount` it and `sluice up {dir}` again"),
        },
        other => anyhow!("{other}"),
    }
}

fn line(told: &Told) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    Ok(line)
}

fn tell(stream: &mut UnixStream, told: &Told) -> anyhow::Result<()> {
    Ok(stream.write_all(&line(told)?)?)
}

/// Sends the state with the devices, and hears that it was understood: within `limit` in all, as programs wait meanwhile.
fn send_state(stream: &UnixStream, state: &[u8], devices: &[BorrowedFd<'_>], limit: Duration) -> anyhow::Result<()> {
    let mut within = Within { stream, clock: SystemClock::default(), limit };
    let head = line(&Told::HandingOver { bytes: state.len() as u64 })?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CHANNELS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(devices)) {
        bail!("the mount has too many channels");
    }
    let sent = sendmsg(stream, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
    within.write_all(&head[sent..])?;
    within.write_all(state)?;
    let mut word = [0];
    within.read_exact(&mut word)?;
    if word != [UNDERSTOOD] {
        bail!("the other process did not take it");
    }
    Ok(())
}

/// A stream that fails once `limit` has passed, however often the other end takes or gives a little.
struct Within<'a> {
    stream: &'a UnixStream,
    clock: SystemClock,
    limit: Duration,
}

impl Within<'_> {
    /// What the kernel takes without a second wait in one call.
    const PIECE_BYTES: usize = 16 << 10;

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.limit.saturating_sub(self.clock.monotonic());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Write for Within<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(&bytes[..bytes.len().min(Self::PIECE_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Within<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Control {
    /// Takes the mount of the process at the other end over, with a cache or without; returns when that process has ended. An error says who
    /// has the mount now.
    pub fn take_over(mut self, mountpoint: &Path, cache: HeirCache) -> anyhow::Result<Taken> {
        let pid = self.pid();
        let process = Pid::from_raw(pid as i32).ok_or_else(|| anyhow!("the mount's process is not known"))?;
        // Before the question, so that it cannot be another one by the time of the wait.
        let process = pidfd_open(process, PidfdFlags::empty()).with_context(|| format!("watching process {pid}"))?;
        self.stream.set_read_timeout(Some(STATE_LIMIT))?;
        let (format, mountpoint) = (HAND_OVER_FORMAT, mountpoint.to_string_lossy().into());
        let mut ask =
            serde_json::to_vec(&Ask::TakeOver { format, mountpoint, has_cache: cache.has_one, cache_dir: cache.dir })?;
        ask.push(b'\n');
        self.stream.write_all(&ask).context("asking the mount")?;
        let mut incoming = Incoming { stream: &self.stream, bytes: Vec::new(), devices: Vec::new() };
        let received = incoming.state().with_context(|| match has_ended(&process, Some(&AT_ONCE)) {
            true => format!("the mount's process, pid {pid}, has ended: `sluice status` tells whether another one has taken the mount over; if none has, run this without --takeover"),
            false => format!("the mount's process, pid {pid}, serves it still"),
        });
        let (state, devices) = received?;
        // To who is gone it cannot be sent, nor does it have to be.
        let _ = (&self.stream).write_all(&[UNDERSTOOD]);
        // Without its word it may have given up and gone on before it ended, and what it told is old.
        if !matches!(incoming.line(), Ok(Some(Told::HandedOver))) {
            match has_ended(&process, Some(&EXIT_LIMIT)) {
                true => bail!(
                    "the mount's process, pid {pid}, has ended before it gave the mount away; run this without --takeover"
                ),
                false => bail!("the mount's process, pid {pid}, waited no longer and serves it still; try again"),
            }
        }
        has_ended(&process, None);
        let HandOver { negotiated, open, parked, served } = state;
        Ok(Taken { mount: LeftMount { devices, negotiated, parked }, open, session: served })
    }
}

/// Whether a process has ended, or does within `limit`.
fn has_ended(process: &OwnedFd, limit: Option<&Timespec>) -> bool {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], limit) {
            Err(Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

/// What comes from the old process: a line, then bytes; the device comes with some of them.
struct Incoming<'a> {
    stream: &'a UnixStream,
    bytes: Vec<u8>,
    devices: Vec<OwnedFd>,
}

impl Incoming<'_> {
    /// The state of the mount and its channels, or why the process at the other end gives none.
    fn state(&mut self) -> anyhow::Result<(HandOver, Vec<OwnedFd>)> {
        let len = match self.line()? {
            Some(Told::HandingOver { bytes }) if bytes <= HAND_OVER_BYTES_MAX => bytes as usize,
            Some(Told::Failed { error }) => bail!(error),
            _ => bail!(
                "it gave no answer: it was killed, or is of a version without --takeover, to be ended with `sluice umount`"
            ),
        };
        while self.bytes.len() < len && self.more()? {}
        let state = HandOver::decode(&self.bytes)?;
        self.bytes.clear();
        let devices = std::mem::take(&mut self.devices);
        if state.parked.iter().any(|parked| usize::from(parked.channel) >= devices.len()) || devices.is_empty() {
            bail!("the device did not come with the state");
        }
        Ok((state, devices))
    }

    /// Waits for more; false at the end.
    fn more(&mut self) -> anyhow::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CHANNELS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut chunk = [0; 16 << 10];
        let got = loop {
            match recvmsg(
                self.stream.as_fd(),
                &mut [IoSliceMut::new(&mut chunk)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => bail!("it does not answer"),
                // It was killed before it had read what was sent.
                Err(Errno::CONNRESET) => return Ok(false),
                other => break other?.bytes,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.devices.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&chunk[..got]);
        Ok(got > 0)
    }

    /// The next line, taken off; `None` at the end, or when it is none of ours.
    fn line(&mut self) -> anyhow::Result<Option<Told>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
                let told = serde_json::from_slice(&self.bytes[..end]).context("the mount's answer")?;
                self.bytes.drain(..=end);
                return Ok(Some(told));
            }
            if self.bytes.len() > LINE_BYTES_MAX || !self.more()? {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To be survived: who asks for the mount reads its state byte by byte, and says nothing.
    #[test]
    fn who_reads_slowly_is_not_waited_for() {
        let (old, new) = UnixStream::pair().unwrap();
        let reader = std::thread::Builder::new().spawn(move || {
            let mut some = [0; 4 << 10];
            // As long as the other end is there, a little at a time.
            while (&new).read(&mut some).is_ok_and(|got| got > 0) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        let (clock, state) = (SystemClock::default(), vec![7; 32 << 20]);
        let limit = Duration::from_millis(300);
        old.set_write_timeout(Some(limit)).unwrap();
        let sent = send_state(&old, &state, &[std::fs::File::open("/dev/null").unwrap().as_fd()], limit);
        assert!(sent.is_err());
        assert!(clock.monotonic() < Duration::from_secs(5), "{:?}", clock.monotonic());
        drop(old);
        reader.unwrap().join().unwrap();
    }

    #[test]
    fn the_word_is_awaited() {
        for (word, is_taken) in [(&b"+"[..], true), (b"-", false), (b"", false)] {
            let (old, mut new) = UnixStream::pair().unwrap();
            let state = vec![7; 1 << 20];
            let len = state.len();
            let heir = std::thread::Builder::new().spawn(move || {
                let mut incoming = Incoming { stream: &new, bytes: Vec::new(), devices: Vec::new() };
                assert!(matches!(incoming.line(), Ok(Some(Told::HandingOver { bytes })) if bytes == len as u64));
                while incoming.bytes.len() < len && incoming.more().unwrap() {}
                assert!(incoming.devices.len() == 1 && incoming.bytes.iter().all(|byte| *byte == 7));
                new.write_all(word).unwrap();
            });
            let device = std::fs::File::open("/dev/null").unwrap();
            let sent = send_state(&old, &state, &[device.as_fd()], Duration::from_secs(20));
            heir.unwrap().join().unwrap();
            assert_eq!(sent.is_ok(), is_taken);
        }
    }
}
