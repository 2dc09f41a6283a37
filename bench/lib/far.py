"""What is far away: a node 5 ms from its mount, a store 30 ms from it behind 300 MB/s. Each takes the arguments and returns rows and
every single value."""

import contextlib
import json
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from gateway import Gateway
from limits import GIB, MIB, by_turns, measured, median
from link import Link, Port
from plain_link import Source
from process import Failed
from table import Row
from volumes import volume_with
from wire import Load, hot_node, mounted, only_the_node, seconds_of

# What issue 4 asks for.
NODE_ROUND_TRIP_S, IN_FLIGHT, WAITING_THREADS, LATENCY_GOAL = 0.005, 256, 8, 10
STORE_ROUND_TRIP_S, STORE_BYTES_PER_S = 0.030, 300_000_000
COLD_GOAL, FIRST_ROUND_TRIPS_MAX, COLD_READ_KIB_MAX = 0.9, 2, 128
# In the store's terms: reads in different ones share nothing.
OBJECT_BYTES = 4 * MIB
BLOCK = 4096


@contextlib.contextmanager
def link(scratch, *ports):
    running = Link(scratch, *ports)
    try:
        yield running
    finally:
        running.end()


@contextlib.contextmanager
def in_flight_max(mountpoint, count):
    """How many of its programs' asynchronous requests the kernel hands to the mount at once."""
    connection = os.minor(os.stat(mountpoint).st_dev)
    with tempfile.TemporaryDirectory(prefix="sluice-fusectl.") as control:
        # Of our own: where nobody mounts it at its usual place it is not there.
        subprocess.run(["mount", "-t", "fusectl", "fusectl", control], check=True)
        try:
            setting = pathlib.Path(control) / str(connection) / "max_background"
            before = setting.read_text()
            setting.write_text(f"{count}\n")
            yield
            setting.write_text(before)
        finally:
            subprocess.run(["umount", control], check=True)


def latency(args):
    """4 KiB in random order, 256 reads in flight, from a node that is a round trip of 5 ms away; and the same while the kernel gives
    the mount 8 requests at a time. That is what a mount with 8 threads, each of which waits for its request, would have of them."""
    seconds, jobs = seconds_of(args), 4
    load = Load("4K", jobs=jobs, rw="randread", engine="io_uring", depth=IN_FLIGHT // jobs)
    with hot_node(args) as cluster, contextlib.closing(Source()) as source:
        node, raw = Port(cluster.nodes[0].address, NODE_ROUND_TRIP_S), Port(source.address, NODE_ROUND_TRIP_S)
        with link(cluster.scratch, Port(cluster.server.address), node, raw) as far, mounted(cluster, "far", prefix=far.prefix) as mount:
            def waiting(_):
                with in_flight_max(mount.path, WAITING_THREADS):
                    return load.read(mount.path / "file0", seconds)

            values = by_turns(args.rounds, {
                "limit": waiting,
                "product": lambda _: measured({"link": far.process}, lambda: load.read(mount.path / "file0", seconds)),
                "link": lambda _: source.round_trip(far.prefix),
            })
            only_the_node(mount)
            received = far.passed(node)[1]
    if received < sum(value.get("bytes", 0) for side in values.values() for value in side):
        raise Failed("the bytes did not come over the link")
    link_cores = statistics.median(value["link_s_per_gib"] * value["bytes"] / GIB / seconds for value in values["product"])
    name = f"4 KiB random from a node 5 ms away, {IN_FLIGHT} in flight ({WAITING_THREADS} at a time)"
    return [
        Row(name, "IOPS", median(values, "product", "iops"), median(values, "limit", "iops"), LATENCY_GOAL),
        Row("the same, 99 of 100 within", "us", median(values, "product", "p99_us"), median(values, "limit", "p99_us")),
        Row("the same, CPU of the link, which has one thread", "cores", link_cores),
        Row("a byte there and back over the link, nothing else under way", "ms", None, median(values, "link", "ms")),
    ], values


def read_in_order(file):
    """One buffered reader, from its open on."""
    reader = pathlib.Path(__file__).resolve().parent / "reader.py"
    out = subprocess.run([sys.executable, reader, "--buffered", "0", file], check=True, capture_output=True, text=True).stdout
    value = json.loads(out)
    return {"gbps": value["bytes"] / value["seconds"] / 1e9, "first_s": value["first_s"]}


def first_byte(file):
    """Seconds from the open of a file to its first byte, by way of the page cache."""
    begin = time.monotonic()
    fd = os.open(file, os.O_RDONLY)
    try:
        os.pread(fd, 1, 0)
        return time.monotonic() - begin
    finally:
        os.close(fd)


def single_reads(far, store, file, count):
    """What each of so many 4 KiB reads of cold objects moved, half of them by way of the page cache: bytes from the store, all that
    it set off included."""
    size, moved = file.stat().st_size, []
    chosen = random.Random(1)
    objects = chosen.sample(range(size // OBJECT_BYTES), count)
    buffer = mmap.mmap(-1, BLOCK)
    for turn, number in enumerate(objects):
        before = far.settled(store, 3 * STORE_ROUND_TRIP_S)[1]
        fd = os.open(file, os.O_RDONLY | (os.O_DIRECT if turn % 2 else 0))
        try:
            os.preadv(fd, [buffer], number * OBJECT_BYTES + chosen.randrange(1, OBJECT_BYTES // BLOCK) * BLOCK)
        finally:
            os.close(fd)
        moved.append(far.settled(store, 10 * STORE_ROUND_TRIP_S)[1] - before)
    return moved


def cold_store(args):
    """A mount with an empty cache, whose store is a real S3 server at the end of the link; the limit is what the link carries."""
    mib, reads = (32, 4) if args.short else (512, 10)
    with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch, contextlib.ExitStack() as ending:
        gateway = Gateway(scratch)
        ending.callback(gateway.kill)
        source = ending.enter_context(contextlib.closing(Source()))
        with volume_with([mib, mib], 0, "", gateway) as cluster:
            narrow = lambda address: Port(address, STORE_ROUND_TRIP_S, STORE_BYTES_PER_S)
            store, raw = narrow(f"127.0.0.1:{gateway.port}"), narrow(source.address)
            with link(cluster.scratch, Port(cluster.server.address), store, raw) as far:
                def cold(round_number):
                    name = f"cold{round_number}"
                    cache = f"{cluster.scratch / f'{name}.cache'}:4G"
                    mount = cluster.add_mount(name, "--cache", cache, prefix=far.prefix)
                    # A mount opens connections to its store when it starts.
                    far.settled(store, 10 * STORE_ROUND_TRIP_S)
                    first_byte_s = first_byte(mount.path / "file1")
                    value = {**read_in_order(mount.path / "file0"), "first_byte_s": first_byte_s}
                    value["moved"] = single_reads(far, store, mount.path / "file1", reads)
                    cluster.drop(mount)
                    return value

                values = by_turns(args.rounds, {
                    "limit": lambda _: source.rate(far.prefix, mib, 4),
                    "one": lambda _: source.rate(far.prefix, mib, 1),
                    "many": lambda _: source.rate(far.prefix, mib, 16),
                    "product": cold,
                })
    moved = [bytes_moved for value in values["product"] for bytes_moved in value["moved"]]
    trips = lambda key: median(values, "product", key) / STORE_ROUND_TRIP_S
    return [
        Row("cold store 30 ms away behind 300 MB/s, in order", "GB/s", median(values, "product", "gbps"), median(values, "limit", "gbps"), COLD_GOAL),
        Row("the link with 1 connection, 0.3 GB/s wide", "GB/s", None, median(values, "one", "gbps")),
        Row("the link with 16 connections", "GB/s", None, median(values, "many", "gbps")),
        Row("the first byte of a cold file, by a mount that is up", "round trips", trips("first_byte_s"), None, FIRST_ROUND_TRIPS_MAX),
        Row("the first MiB of a cold file, in order", "round trips", trips("first_s")),
        Row("a cold 4 KiB read moves at most", "KiB", max(moved) / 1024, None, COLD_READ_KIB_MAX),
    ], values
