//! Mounting and unmounting: mount(2) for root, fusermount3 for everybody else.

mod connection;
mod fusermount;

pub use connection::Connection;

use crate::device::Device;
use crate::mountinfo;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

/// The type that mounts of ours show in /proc/self/mountinfo.
pub const FS_TYPE: &str = "fuse.sluice";

/// How a mount looks and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What mount(8) and df show as device, for example `local:/dir`.
    pub source: String,
    /// Other users than the one who mounts may use it. Without root, /etc/fuse.conf must permit it.
    pub allow_other: bool,
    /// The kernel checks permissions from the attributes; the handler then sees permitted requests only.
    pub default_permissions: bool,
    /// No writing.
    pub read_only: bool,
    /// Setuid programs and device files count. Needs root.
    pub suid_and_devices: bool,
    /// Largest READ in bytes.
    pub max_read: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "sluice".into(),
            allow_other: rustix::process::geteuid().is_root(),
            default_permissions: true,
            read_only: false,
            suid_and_devices: false,
            max_read: crate::init::TRANSFER_MAX,
        }
    }
}

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum MountError {
    #[error("mount point {0} does not exist: create the directory first")]
    Missing(PathBuf),
    #[error("mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    #[error("{0} is mounted already: unmount it first, or choose another directory")]
    AlreadyMounted(PathBuf),
    #[error("{0} holds a mount whose server is gone: run `umount -l {0}`")]
    Dead(PathBuf),
    #[error("{0} is busy: end the programs that use it, or unmount lazily")]
    Busy(PathBuf),
    #[error("{0} is not mounted")]
    NotMounted(PathBuf),
    #[error("not permitted to mount or unmount {0}")]
    Permission(PathBuf),
    #[error("/dev/fuse is missing: load the kernel module with `modprobe fuse`, or pass the device to the container")]
    NoDevice,
    #[error("fusermount3 is not installed: install the package fuse3, or run as root")]
    NoFusermount,
    #[error("fusermount3 failed: {0}")]
    Fusermount(String),
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

/// A fresh mount that nobody serves yet.
pub(crate) struct Mounted {
    pub(crate) device: Device,
    pub(crate) path: PathBuf,
}

/// Mounts at `mountpoint`.
pub(crate) fn mount(mountpoint: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let path = check(mountpoint)?;
    if !rustix::process::geteuid().is_root() {
        let device = fusermount::mount(&path, options)?;
        return Ok(Mounted { device, path });
    }
    let device = Device::open().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoDevice,
        io::ErrorKind::PermissionDenied => MountError::Permission("/dev/fuse".into()),
        _ => MountError::Io { what: "open /dev/fuse", source: error },
    })?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}{}",
        device.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        kernel_options(options),
    );
    // Digits and fixed words hold no NUL.
    let data = CString::new(data).unwrap_or_default();
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID | MountFlags::NODEV, !options.suid_and_devices);
    match rustix::mount::mount(options.source.as_str(), &path, FS_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(Mounted { device, path }),
        Err(error) => Err(from_errno(error, &path, "mount")),
    }
}

/// Options that mount(2) and fusermount3 take alike, each with a comma before it.
fn kernel_options(options: &MountOptions) -> String {
    let mut text = format!(",max_read={}", options.max_read);
    for (wanted, name) in [(options.default_permissions, "default_permissions"), (options.allow_other, "allow_other")] {
        if wanted {
            text.push(',');
            text.push_str(name);
        }
    }
    text
}

/// The mount point as absolute path, if it can be mounted on.
fn check(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let explain = |error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => MountError::Missing(mountpoint.into()),
        Some(Errno::NOTDIR) => MountError::NotADirectory(mountpoint.into()),
        Some(Errno::NOTCONN) => MountError::Dead(mountpoint.into()),
        Some(Errno::ACCESS) => MountError::Permission(mountpoint.into()),
        _ => MountError::Io { what: "look at the mount point", source: error },
    };
    let path = mountpoint.canonicalize().map_err(explain)?;
    let mounted = mountinfo::find(&path).map_err(|source| MountError::Io { what: "read mountinfo", source })?;
    if mounted.is_some_and(|mount| mount.kind == FS_TYPE) {
        let dead = path.metadata().is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::NOTCONN));
        return Err(if dead { MountError::Dead(path) } else { MountError::AlreadyMounted(path) });
    }
    if !path.metadata().map_err(explain)?.is_dir() {
        return Err(MountError::NotADirectory(path));
    }
    Ok(path)
}

/// Unmounts `mountpoint`. Lazily, it leaves the tree at once and ends when its last user does; otherwise it must be
/// unused.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return fusermount::unmount(mountpoint, lazy);
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW)
        .map_err(|error| from_errno(error, mountpoint, "umount"))
}

/// Ends the connection whatever is open, as far as the user may, and takes the mount out of the tree.
pub(crate) fn force(mountpoint: &Path) {
    if rustix::process::geteuid().is_root() {
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let _ = rustix::mount::unmount(mountpoint, flags);
    } else {
        let _ = fusermount::unmount(mountpoint, true);
    }
}

/// Raises the readahead of the mount's device to `kib`; the kernel starts with 128 KiB whatever INIT says. Needs root.
pub fn raise_read_ahead(mountpoint: &Path, kib: u32) -> io::Result<()> {
    let mount = mountinfo::find(mountpoint)?.ok_or(io::ErrorKind::NotFound)?;
    std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", mount.device), kib.to_string())
}

fn from_errno(error: Errno, path: &Path, what: &'static str) -> MountError {
    match error {
        Errno::BUSY => MountError::Busy(path.into()),
        Errno::NOENT => MountError::Missing(path.into()),
        Errno::INVAL if what == "umount" => MountError::NotMounted(path.into()),
        Errno::PERM | Errno::ACCESS => MountError::Permission(path.into()),
        Errno::NODEV => MountError::NoDevice,
        _ => MountError::Io { what, source: error.into() },
    }
}
