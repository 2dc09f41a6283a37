"""The measurements: each takes a mounted volume, a Product, and the arguments, and returns rows and every single value."""

import json
import os
import subprocess
import tempfile

from cold import cold_slab
from durable import durable
from far import cold_store, latency
from group import crowd_read, group_crowd, group_share
from limits import MIB, in_turns, median, program
from memory import memory
from passthrough import passthrough
from pressure import writes_drain, writes_pressed, writes_recovery, writes_server
from raw import net, redis, tcp
from table import Row
from variants import variants
from wire import local, wire_128k, wire_1m, wire_4k, wire_buffered
from writes import writes_random, writes_sequential, writes_small, writes_sync

# Goals: the share of the limit that issue 2 asks for, and issue 3 of a mount by way of a server.
METADATA_GOALS = {"create": 0.5, "write": 0.5, "stat": 0.8, "read": 0.5, "unlink": 0.5}
REMOTE_GOALS = {"create": 0.25, "stat": 0.5, "open": 0.5, "unlink": None}
WRITE_GOAL = 0.6
IDLE_MIB_MAX = 48
MILLION_MIB_MAX = 512


def metadata_rows(product, args, files, goals, prefix=""):
    """mdops in the product and in fusemd by turns, with one thread and with four; a row for each operation in `goals`."""
    rows, raw = [], {}
    for threads in (1, 4):

        def of_product(round_number):
            folder = product.mountpoint / f"md-{threads}-{round_number}"
            folder.mkdir()
            return program("mdops", folder, files, threads)

        values = in_turns(args.rounds, lambda _: program("fusemd", files, threads), of_product)
        raw[f"{threads} threads"] = values
        for operation, goal in goals.items():
            limit, own = median(values, "limit", operation), median(values, "product", operation)
            rows.append(Row(f"{prefix}{operation}, {threads} threads", "per second", own, limit, goal))
    return rows, raw


def metadata(product, args):
    return metadata_rows(product, args, 200 if args.short else 5000, METADATA_GOALS)


def remote_metadata(product, args):
    """A mount of a server on this machine, under its lease: what is asked for was made by this mount, so it is known."""
    return metadata_rows(product, args, 50 if args.short else 1500, REMOTE_GOALS, "remote ")


def write_once(path, mib):
    """One fio run: sequential 1 MiB writes, fsync at the end, which counts."""
    with tempfile.NamedTemporaryFile() as out:
        command = ["fio", "--name=write", f"--filename={path}", "--rw=write", "--bs=1M", f"--size={mib}M"]
        command += ["--ioengine=psync", "--end_fsync=1", "--refill_buffers", "--output-format=json", f"--output={out.name}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        job = json.load(open(out.name))["jobs"][0]
    # The longer of the two: versions of fio differ in which of them has the final fsync in it.
    seconds = max(job["write"]["runtime"], job["job_runtime"]) / 1000
    os.unlink(path)
    return {"gbps": mib * MIB / seconds / 1e9}


def sequential_write(product, args):
    mib = 32 if args.short else 1024

    def of_product(_):
        before = product.cpu_seconds()
        value = write_once(product.mountpoint / "write", mib)
        value["cpu_s_per_gib"] = (product.cpu_seconds() - before) / (mib / 1024)
        return value

    values = in_turns(args.rounds, lambda _: write_once(product.scratch / "write", mib), of_product)
    own, limit = median(values, "product", "gbps"), median(values, "limit", "gbps")
    return [
        Row("sequential write, 1 MiB, fsync at the end", "GB/s", own, limit, WRITE_GOAL),
        Row("the same, CPU of the mount", "s/GiB", median(values, "product", "cpu_s_per_gib")),
    ], values


def idle_memory(product, _args):
    subprocess.run(["ls", str(product.mountpoint)], check=True)
    value = product.rss_mib()
    return [Row("memory of an idle mount", "MiB", value, None, IDLE_MIB_MAX)], value


def million_memory(product, args):
    """A million empty files, 1000 to a directory."""
    directories = 2 if args.short else 1000
    for directory in range(directories):
        folder = product.mountpoint / f"{directory}"
        folder.mkdir()
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for file in range(1000):
            os.close(os.open(f"{file}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=fd))
        os.close(fd)
    value = product.rss_mib()
    return [Row(f"memory after creating {directories * 1000:,} files", "MiB", value, None, MILLION_MIB_MAX)], value


# Those that make a cluster of their own, and take the arguments alone.
OWN = {
    "tcp": tcp,
    "redis": redis,
    "net": net,
    "local": local,
    "wire-1m": wire_1m,
    "wire-128k": wire_128k,
    "wire-4k": wire_4k,
    "wire-buffered": wire_buffered,
    "variants": variants,
    "passthrough": passthrough,
    "latency": latency,
    "cold-slab": cold_slab,
    "cold-store": cold_store,
    "durable": durable,
    "memory": memory,
    "writes-sync": writes_sync,
    "writes-small": writes_small,
    "writes-random": writes_random,
    "writes-sequential": writes_sequential,
    "writes-drain": writes_drain,
    "writes-server": writes_server,
    "writes-recovery": writes_recovery,
    "writes-pressed": writes_pressed,
    "group-share": group_share,
    "group-crowd": group_crowd,
    "crowd-read": crowd_read,
}
# Those that take long even for a moment: `make bench` leaves them out.
LONG = ("wire-128k", "variants", "passthrough", "cold-slab", "crowd-read", "writes-pressed")
# Those of a mount by way of a server.
REMOTE = {"remote-metadata"}
MEASUREMENTS = {
    "idle-memory": idle_memory,
    "metadata": metadata,
    "remote-metadata": remote_metadata,
    "sequential-write": sequential_write,
    "memory-million": million_memory,
    **OWN,
}
