"""Volumes that measurements read from."""

import contextlib
import os
import subprocess

from cluster import Cluster
from limits import random_data

DATA_MIB = 512
# Options of a mount that reads from its group alone.
KEEPS_NOTHING = ("--cache", "none")


def read_whole(path, direct=False):
    """Reads a file once, in order."""
    command = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"]
    subprocess.run(command + (["iflag=direct"] if direct else []), check=True)


def copy_data(target, mib, skip_mib=0):
    """Writes that much of the random data, from there on and around, and syncs it."""
    data, done = random_data(), 0
    while done < mib:
        skip = (skip_mib + done) % DATA_MIB
        count = min(mib - done, DATA_MIB - skip)
        where = [f"skip={skip}", f"seek={done}", f"count={count}"]
        command = ["dd", f"if={data}", f"of={target}", "bs=1M", *where, "conv=notrunc,fsync", "status=none"]
        subprocess.run(command, check=True)
        done += count


def without_page_cache(*paths):
    """Takes what the kernel keeps of these files, and of those below these folders, back to the disk alone."""
    for path in paths:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        for file in files:
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


@contextlib.contextmanager
def volume_with(files_mib, nodes, cache, gateway=None, prefix=()):
    """A served volume with files (`file0`...) in its store, each with other bytes than the one before, and so many nodes, all empty,
    which run behind `prefix`."""
    with Cluster(gateway) as cluster:
        cluster.serve()
        writer = cluster.add_mount("writer", "--cache", f"{cluster.scratch / 'writer.cache'}:1G", journal="256M")
        for number, mib in enumerate(files_mib):
            copy_data(writer.path / f"file{number}", mib, sum(files_mib[:number]))
        cluster.drop(writer)
        for number in range(nodes):
            cluster.add_node(f"node{number}", cache, prefix=prefix)
        yield cluster
