//! fusermount3, the setuid helper of libfuse: it mounts and passes the open device back over a socket.

use super::{MountError, MountOptions, kernel_options};
use crate::device::Device;
use rustix::fd::OwnedFd;
use rustix::io::IoSliceMut;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const HELPER: &str = "fusermount3";

/// Mounts at `path`. The helper finds its end of the socket as standard input.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let failed = |what| move |source: io::Error| MountError::Io { what, source };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| failed("socketpair")(error.into()))?;
    let output = Command::new(HELPER)
        .args(["-o", &helper_options(options), "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output);
    check(output, path)?;
    let fd = receive(&ours).map_err(failed("receive the device from fusermount3"))?;
    Device::adopt(fd).map_err(failed("set up the device"))
}

/// Unmounts `path`.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let how: &[&str] = if lazy { &["-u", "-z", "--"] } else { &["-u", "--"] };
    check(Command::new(HELPER).args(how).arg(path).stdin(Stdio::null()).output(), path)
}

fn helper_options(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let access = if options.read_only { "ro" } else { "rw" };
    format!("{access},fsname={source},subtype=sluice{}", kernel_options(options))
}

fn check(output: io::Result<Output>, path: &Path) -> Result<(), MountError> {
    let output = output.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount,
        _ => MountError::Io { what: "run fusermount3", source },
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(if text.contains("busy") {
        MountError::Busy(path.into())
    } else if text.contains("not found in") {
        MountError::NotMounted(path.into())
    } else {
        MountError::Fusermount(text)
    })
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.flatten().next().ok_or_else(|| io::Error::other("fusermount3 passed no descriptor"))
}
