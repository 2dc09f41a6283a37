"""Measurements of a group of nodes. Each makes a cluster of its own, takes the arguments, and returns rows and every single value."""

import contextlib
import os
import pathlib
import subprocess

from cluster import Cluster
from limits import GIB, in_turns, median, program
from process import await_true
from table import Row

MIB = 2**20
# What issue 3 asks for.
READ_GOAL = 0.5
# A reader of the group keeps nothing itself.
READER = ("--cache", "none")


def random_data():
    """The file of random bytes that the limits read: 512 MiB."""
    program("fuselimit", "filecopy", "1M", 1, 4, "read", 1)
    return pathlib.Path(os.environ.get("LIMITS_DIR", os.environ.get("TMPDIR", "/tmp") + "/sluice-limits")) / "data"


def read_whole(path, direct=False):
    """Reads a file once, in order."""
    command = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"]
    subprocess.run(command + (["iflag=direct"] if direct else []), check=True)


@contextlib.contextmanager
def volume_with(files_mib, nodes, cache):
    """A served volume with files of random bytes in its store, and so many nodes, all empty."""
    data = random_data()
    with Cluster() as cluster:
        cluster.serve()
        writer = cluster.add_mount("writer", "--cache", f"{cluster.scratch / 'writer.cache'}:1G", journal="256M")
        for number, mib in enumerate(files_mib):
            copy = ["dd", f"if={data}", f"of={writer.path / f'file{number}'}", "bs=1M", f"count={mib}", "status=none"]
            subprocess.run(copy, check=True)
        cluster.drop(writer)
        for number in range(nodes):
            cluster.add_node(f"node{number}", cache)
        yield cluster


def group_read(args):
    """1 MiB O_DIRECT by 4 readers of a mount without a cache, of a file that a node has; the limit has a sender behind a socket."""
    mib, seconds = (64, 1) if args.short else (512, 4)
    with volume_with([mib], 1, "2G") as cluster:
        mount, node = cluster.add_mount("reader", *READER), cluster.nodes[0]
        file = mount.path / "file0"
        read_whole(file, direct=True)
        await_true("the node to hold the file", lambda: cluster.group()["node0"]["used_bytes"] >= mib * MIB)

        def of_product(_):
            before = [process.process.cpu_seconds() for process in (mount, node)]
            value = program("fioread", file, "1M", 1, 4, "read", seconds)
            spent = [process.process.cpu_seconds() - was for process, was in zip((mount, node), before)]
            value["mount_s_per_gib"], value["node_s_per_gib"] = [s / (value["gbps"] * 1e9 * seconds / GIB) for s in spent]
            return value

        def of_limit(_):
            return program("fuselimit", "sockcopy", "1M", 1, 4, "read", seconds)

        values = in_turns(args.rounds, of_limit, of_product)
        numbers = mount.status()["numbers"]
    if numbers["fetches"]:
        raise SystemExit(f"the mount asked the store {numbers['fetches']} times: this was no measurement of the node")
    own, limit = median(values, "product", "gbps"), median(values, "limit", "gbps")
    return [
        Row("hot read through a node, 1 MiB O_DIRECT x4", "GB/s", own, limit, READ_GOAL),
        Row("the same, CPU of the mount", "s/GiB", median(values, "product", "mount_s_per_gib")),
        Row("the same, CPU of the node", "s/GiB", median(values, "product", "node_s_per_gib")),
    ], values
