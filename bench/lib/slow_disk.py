"""A disk whose syncs take long (limits/slow_disk.c), with ext4 on it."""

import contextlib
import pathlib
import subprocess

from limits import built
from process import Process, uninterrupted

MIB = 2**20


@contextlib.contextmanager
def slow_disk(scratch, mib, sync_us):
    """A directory on a disk of that size, each sync of which takes so long. Nothing of it stays: not the mounts, not the loop device."""
    scratch = pathlib.Path(scratch)
    image, below, folder = scratch / "slow.image", scratch / "slow.disk", scratch / "slow"
    with open(image, "wb") as file:
        file.truncate(mib * MIB)
    below.mkdir()
    folder.mkdir()
    log = scratch / "slow.log"
    disk = Process([built("slow_disk"), image, below, sync_us], log, lambda: log.exists() and b"ready" in log.read_bytes())
    try:
        disk.start()
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", below / "disk"], check=True)
        subprocess.run(["mount", "-o", "loop,noatime", below / "disk", folder], check=True)
        yield folder
    finally:
        with uninterrupted():
            # The kernel lets go of the loop device with the mount.
            for path in (folder, below):
                unmount(path)
            disk.kill()
            image.unlink()


def unmount(path):
    """If it is mounted; what something still uses goes when that does."""
    if path.is_mount() and subprocess.run(["umount", path], capture_output=True).returncode:
        subprocess.run(["umount", "-l", path], check=True)
