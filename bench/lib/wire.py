"""Reads through one node and a mount that keeps nothing itself, hot, against /dev/fuse with a sender behind a socket. Each takes the
arguments and returns rows and every single value."""

import contextlib
import dataclasses
import os
import pathlib

from cluster import Cluster
from features import knows, missing
from limits import MIB, by_turns, measured, median, program
from process import Failed, await_true
from table import Row, unmeasured
from volumes import KEEPS_NOTHING, copy_data, read_whole, volume_with

# What issue 4 asks for: of the rate, and of the CPU of the limit's server.
VERIFY = {"full": ("sockcopy", 0.85, 1.35), "sampled": ("sockspl", 0.85, 1.25)}
LOCAL_GOAL = 0.85
BLOCK_128K_GOAL, RANDOM_GOAL, DEEP_GOAL, BUFFERED_GOAL, MAPPED_GOAL = 0.9, 0.8, 1.3, 0.85, 0.8


@dataclasses.dataclass(frozen=True)
class Load:
    """One fio job, the same for the limit and for the product."""

    block: str
    jobs: int = 4
    rw: str = "read"
    direct: int = 1
    engine: str = "psync"
    depth: int = 1
    passes: int = 0  # over the whole file, instead of seconds

    def _run(self, name, target, seconds, **environment):
        environment |= {"ENGINE": self.engine, "DEPTH": self.depth, "PASSES": self.passes or ""}
        return program(name, target, self.block, self.direct, self.jobs, self.rw, seconds, **environment)

    def limit(self, mode, seconds, **environment):
        return self._run("fuselimit", mode, seconds, **environment)

    def read(self, file, seconds):
        return self._run("fioread", file, seconds)


def seconds_of(args):
    return 1 if args.short else 4


@contextlib.contextmanager
def hot_node(args):
    """A served volume and a node that holds its one file."""
    mib = 64 if args.short else 512
    with volume_with([mib], 1, "2G") as cluster:
        with mounted(cluster, "warmer") as mount:
            read_whole(mount.path / "file0", direct=True)
            await_true("the node to hold the file", lambda: cluster.group()["node0"]["used_bytes"] >= mib * MIB)
        yield cluster


@contextlib.contextmanager
def mounted(cluster, name, *options, prefix=()):
    """A mount that keeps nothing and may not ask the store."""
    mount = cluster.add_mount(name, *KEEPS_NOTHING, *options, prefix=prefix)
    yield mount
    cluster.drop(mount)


def only_the_node(mount, before=0):
    """Ends the measurement when the mount had to ask the store: it was none of the node then."""
    fetches = mount.status()["numbers"]["fetches"] - before
    if fetches:
        raise Failed(f"the mount asked the store {fetches} times: this was no measurement of the node")


def in_turns_with(cluster, mount, load, mode, args):
    """Limit and mount by turns, each with its CPU and that of what sends to it."""
    file, seconds = mount.path / "file0", seconds_of(args)
    processes = {"mount": mount.process, "node": cluster.nodes[0].process}
    values = by_turns(args.rounds, {
        "limit": lambda _: load.limit(mode, seconds),
        "product": lambda _: measured(processes, lambda: load.read(file, seconds)),
    })
    only_the_node(mount)
    return values


def rate_row(name, unit, key, values, goal):
    return Row(name, unit, median(values, "product", key), median(values, "limit", key), goal)


def cpu_rows(values, mount_goal=None):
    """Of the mount against the limit's server, of the node against the limit's sender."""
    of = lambda side, key: median(values, side, f"{key}_s_per_gib")
    return [
        Row("the same, CPU of the mount", "s/GiB", of("product", "mount"), of("limit", "server"), mount_goal, at_most=True),
        Row("the same, CPU of the node", "s/GiB", of("product", "node"), of("limit", "sender")),
    ]


def wire_1m(args):
    """1 MiB O_DIRECT by four readers, every byte checked, and one part of the bytes checked."""
    rows, raw, load = [], {}, Load("1M")
    with hot_node(args) as cluster:
        for verify, (mode, goal, cpu_goal) in VERIFY.items():
            name = f"wire, 1 MiB O_DIRECT x4, verify {verify} ({mode})"
            options, why = verify_options("mount", verify)
            if why:
                rows.append(unmeasured(name, "GB/s", goal, why))
                rows.append(unmeasured("the same, CPU of the mount", "s/GiB", cpu_goal, why, at_most=True))
                continue
            with mounted(cluster, f"reader-{verify}", *options) as mount:
                raw[verify] = in_turns_with(cluster, mount, load, mode, args)
            rows += [rate_row(name, "GB/s", "gbps", raw[verify], goal), *cpu_rows(raw[verify], cpu_goal)]
    return rows, raw


def verify_options(command, verify):
    """The options that ask for it, or why it cannot be asked for."""
    why = missing(command, "--verify")
    if not why:
        return ("--verify", verify), ""
    # Before there was a choice every byte was checked.
    return (), "" if verify == "full" else why


def wire_128k(args):
    """128 KiB O_DIRECT by four readers."""
    with hot_node(args) as cluster, mounted(cluster, "reader") as mount:
        values = in_turns_with(cluster, mount, Load("128K"), "sockcopy", args)
    return [rate_row("wire, 128 KiB O_DIRECT x4", "GB/s", "gbps", values, BLOCK_128K_GOAL), *cpu_rows(values)], values


def wire_4k(args):
    """4 KiB O_DIRECT in random order by four readers, one read each in flight, and 64 each by io_uring."""
    one, deep = Load("4K", rw="randread"), Load("4K", rw="randread", engine="io_uring", depth=64)
    rows, raw = [], {}
    with hot_node(args) as cluster, mounted(cluster, "reader") as mount:
        for name, load, goal in (("one each in flight", one, RANDOM_GOAL), ("io_uring, 64 each in flight", deep, DEEP_GOAL)):
            raw[name] = in_turns_with(cluster, mount, load, "sockcopy", args)
            rows.append(rate_row(f"wire, 4 KiB random x4, {name}", "IOPS", "iops", raw[name], goal))
            p99 = [median(raw[name], side, "p99_us") for side in ("product", "limit")]
            rows += [Row("the same, 99 of 100 within", "us", *p99), *cpu_rows(raw[name])]
    return rows, raw


def read_ahead_kb(mountpoint):
    """What the kernel reads ahead of a buffered reader there, as the mount has set it."""
    device = os.stat(mountpoint).st_dev
    return int(pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text())


def one_by_one(load, count, file):
    """A pass each by processes of their own, and what they come to."""
    values = [load.read(file, 0) for _ in range(count)]
    read_bytes = sum(value["bytes"] for value in values)
    return {"bytes": read_bytes, "gbps": read_bytes / sum(value["bytes"] / value["gbps"] for value in values)}


def all_sent(cluster, before, read_bytes):
    """Ends the measurement when the kernel's page cache answered instead of the node."""
    sent = lambda: cluster.group()["node0"]["served_bytes"] - before
    await_true(f"the node to have sent the {read_bytes} bytes that were read", lambda: sent() >= read_bytes, seconds=10)


def wire_buffered(args):
    """A buffered reader against the limit from memory at the same read-ahead of the kernel, and a reader of mapped memory against the
    buffered one. Whole passes, and the page cache is dropped before each."""
    passes = 1 if args.short else 6
    buffered = Load("1M", jobs=1, direct=0, passes=passes)
    # A page at a time, as memory is used: memcpy of large aligned blocks may go backward, which no kernel reads ahead. fio keeps what
    # it has mapped until its end, and so in the page cache: each pass is a process.
    mapped = Load("4K", jobs=1, direct=0, engine="mmap", passes=1)
    with hot_node(args) as cluster, mounted(cluster, "reader") as mount:
        ahead, before, file = read_ahead_kb(mount.path), cluster.group()["node0"]["served_bytes"], mount.path / "file0"
        processes = {"mount": mount.process, "node": cluster.nodes[0].process}
        values = by_turns(args.rounds, {
            "limit": lambda _: buffered.limit("mem", 0, READ_AHEAD_KB=ahead),
            # What is left of that once the bytes have to come through a socket.
            "socket": lambda _: buffered.limit("sockcopy", 0, READ_AHEAD_KB=ahead),
            "product": lambda _: measured(processes, lambda: buffered.read(file, 0)),
            "mapped": lambda _: measured(processes, lambda: one_by_one(mapped, passes, file)),
        })
        only_the_node(mount)
        all_sent(cluster, before, sum(value["bytes"] for side in ("product", "mapped") for value in values[side]))
    rate, cpu = median(values, "product", "gbps"), median(values, "product", "mount_s_per_gib")
    return [
        rate_row(f"wire, 1 MiB buffered x1 (mem), kernel reads {ahead} KiB ahead", "GB/s", "gbps", values, BUFFERED_GOAL),
        Row("the same (sockcopy)", "GB/s", rate, median(values, "socket", "gbps")),
        Row("the same, CPU of the mount", "s/GiB", cpu, median(values, "limit", "server_s_per_gib")),
        Row("the same by mmap (buffered)", "GB/s", median(values, "mapped", "gbps"), rate, MAPPED_GOAL),
    ], values


def local(args):
    """1 MiB O_DIRECT by four readers of what the mount's own cache holds: checked against the copy from a file, unchecked against splice."""
    seconds, load, rows, raw = seconds_of(args), Load("1M"), [], {}
    for verify, mode in (("full", "filecopy"), ("off", "filespl")):
        name = f"local hit, 1 MiB O_DIRECT x4, verify {verify} ({mode})"
        # `up`, or a mount of a served volume where only that can be told.
        command = "up" if knows("up", "--verify") or not knows("mount", "--verify") else "mount"
        options, why = verify_options(command, verify)
        if why:
            rows.append(unmeasured(name, "GB/s", LOCAL_GOAL, why))
            continue
        with Cluster() as cluster:
            mount = own_cache(cluster, command, options)
            copy_data(mount.path / "file0", 64 if args.short else 512)
            read_whole(mount.path / "file0", direct=True)
            processes = {"mount": mount.process}
            values = raw[verify] = by_turns(args.rounds, {
                "limit": lambda _: load.limit(mode, seconds),
                "product": lambda _: measured(processes, lambda: load.read(mount.path / "file0", seconds)),
            })
            cluster.drop(mount)
        rows.append(rate_row(f"{name}, {command}", "GB/s", "gbps", values, LOCAL_GOAL))
        cpu = [median(values, *which) for which in (("product", "mount_s_per_gib"), ("limit", "server_s_per_gib"))]
        rows.append(Row("the same, CPU of the mount", "s/GiB", *cpu))
    return rows, raw


def own_cache(cluster, command, options):
    if command == "up":
        return cluster.up("mnt", "--cache-size", "8G", *options)
    cluster.serve()
    return cluster.add_mount("mnt", "--cache", f"{cluster.scratch / 'mnt.cache'}:8G", *options)
