//! A host of its own for the test: mounts that nobody else sees, a boot id that changes, ext4 on a disk that can lose its power.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::{
    mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount},
    thread::{UnshareFlags, unshare_unsafe},
};
use sluice_tests::{Scratch, eventually, run};

use crate::{
    disk::{Disk, Image},
    drive::Drives,
};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Formatting and mounting a small disk.
const LIMIT: Duration = Duration::from_secs(60);
/// Room for the volume of the workload; what was never written takes no memory.
const DISK_BYTES: u64 = 512 << 20;

pub struct Host {
    drives: Drives,
    scratch: Scratch,
    boots: std::cell::Cell<u32>,
    _keeper: Keeper,
}

/// Mounts that were copied with the namespace: theirs could not be unmounted as long as this process lives.
fn forget_others() {
    let found = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let of_sluice = found.lines().filter(|line| line.contains(" - fuse.sluice "));
    // Names with blanks, which are escaped there, are not tests'.
    of_sluice.filter_map(|line| line.split(' ').nth(4)).for_each(|at| {
        let _ = unmount(at, UnmountFlags::DETACH);
    });
}

impl Host {
    /// Moves the calling thread, and what it starts from now on, into a mount namespace. The kernel ends every mount in it, and lets
    /// go of every loop device, when the last process in it ends, also where the test is killed.
    pub fn new() -> Self {
        for tool in ["mkfs.ext4", "e2fsck", "mount", "umount", "losetup"] {
            let found = run(Command::new("which").arg(tool), LIMIT).code == Some(0);
            assert!(found, "{tool} is missing: `make deps` installs what the tests use (packages e2fsprogs, mount)");
        }
        let loops = Path::new("/dev/loop-control").exists();
        assert!(loops, "/dev/loop-control is missing: load the kernel module `loop`, or give the container the device");
        // SAFETY: no table of file descriptors is unshared, only mounts and the working directory.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("a mount namespace: run this test as root");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).expect("private mounts");
        forget_others();
        let keeper = Keeper::new();
        let scratch = Scratch::new();
        let drives = scratch.path().join("drives");
        fs::create_dir(&drives).expect("mkdir");
        let host = Self { drives: Drives::new(&drives), scratch, boots: Default::default(), _keeper: keeper };
        host.boot();
        mount_bind(host.boot_id(), BOOT_ID).expect("a boot id of its own");
        host
    }

    fn boot_id(&self) -> PathBuf {
        self.scratch.path().join("boot_id")
    }

    /// From now on processes see that the host was started again.
    pub fn boot(&self) {
        let number = self.boots.get() + 1;
        self.boots.set(number);
        // The tag of a boot in the journal is the first half of this.
        fs::write(self.boot_id(), format!("{number:08x}-0000-4000-8000-5105ce000000\n")).expect("the boot id");
    }

    /// A freshly formatted disk.
    pub fn format(&self) -> Image {
        let disk = Arc::new(Disk::new(DISK_BYTES, Image::default()));
        let file = self.drives.insert(&disk);
        // Nothing is left for the kernel to do in the background, which would make the recording longer.
        let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-b", "4096", "-J", "size=8", "-N", "4096", "-m", "0", "-E", options]).arg(file);
        run(&mut mkfs, LIMIT).ok();
        disk.image()
    }

    /// Mounts the file system of `image` at `path`, and records what happens to its disk.
    pub fn mount(&self, image: Image, path: &Path) -> Mounted {
        let disk = Arc::new(Disk::new(DISK_BYTES, image));
        let file = self.drives.insert(&disk);
        fs::create_dir_all(path).expect("mkdir");
        let mount = || {
            let mut command = Command::new("mount");
            command.args(["-t", "ext4", "-o", "loop,noatime,nodiscard"]).arg(&file).arg(path);
            run(&mut command, LIMIT)
        };
        if mount().code != Some(0) {
            // ext4 writes its superblock in place, and a torn one is mended from its copies, as hosts do when they start.
            let mended = run(Command::new("e2fsck").args(["-f", "-y"]).arg(&file), LIMIT);
            assert!(matches!(mended.code, Some(0..=2)), "{mended:#?}");
            mount().ok();
        }
        Mounted { disk, path: path.to_owned() }
    }
}

/// A process that has the namespace for as long as the test lives. When the test is killed the mounts are ended by this one, not by the
/// test itself, which would wait for its own drives: ext4 writes to them for the last time.
struct Keeper(Child);

impl Keeper {
    fn new() -> Self {
        // Its input ends when the test does. In a group of its own, so that what kills the test's group leaves it alone.
        let mut cat = Command::new("cat");
        cat.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        Self(cat.spawn().expect("cat"))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = unmount(BOOT_ID, UnmountFlags::DETACH);
    }
}

/// A file system on a recorded disk. Dropping it unmounts, which also lets go of the loop device.
pub struct Mounted {
    pub disk: Arc<Disk>,
    path: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Processes that were killed may take a moment to let go of their files.
        let gone = eventually(Duration::from_secs(10), || unmount(&self.path, UnmountFlags::empty()).is_ok());
        if !gone {
            eprintln!("{} stays busy: detached", self.path.display());
            let _ = unmount(&self.path, UnmountFlags::DETACH);
        }
    }
}
