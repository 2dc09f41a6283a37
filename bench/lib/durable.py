"""What fsync costs where it waits for the store. Takes the arguments and returns rows and every single value."""

import contextlib
import os
import statistics
import tempfile
import threading
import time

from cluster import Cluster
from far import STORE_ROUND_TRIP_S, link
from gateway import Gateway
from limits import median
from link import Port
from table import Row

# What issue 5 asks for; published rivals: 13 to 18 a second.
THREADS, FILE_BYTES, CREATES_GOAL = 16, 8192, 300


def creates(folder, threads, seconds):
    """So many threads create files of 8 KiB and sync each: files a second, and how long one took."""
    folder.mkdir()
    data, until, took = os.urandom(FILE_BYTES), time.monotonic() + seconds, [[] for _ in range(threads)]

    def one(number):
        while (began := time.monotonic()) < until:
            fd = os.open(folder / f"{number}-{len(took[number])}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.write(fd, data)
            os.fsync(fd)
            os.close(fd)
            took[number].append(time.monotonic() - began)

    began = time.monotonic()
    running = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    all_took = sorted(second for thread in took for second in thread)
    return {
        "per_second": len(all_took) / (time.monotonic() - began),
        "p50_ms": statistics.median(all_took) * 1000,
        "p99_ms": all_took[len(all_took) * 99 // 100] * 1000,
        "count": len(all_took),
    }


def durable(args):
    """Tier object, with a real S3 server 30 ms away; tier journal on the same mount's disk beside it."""
    seconds = 1 if args.short else 10
    with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch, contextlib.ExitStack() as ending:
        gateway = Gateway(scratch)
        ending.callback(gateway.kill)
        with Cluster(gateway) as cluster:
            cluster.format()
            store = Port(f"127.0.0.1:{gateway.port}", STORE_ROUND_TRIP_S)
            with link(cluster.scratch, store) as far:
                values = {"object": [], "one": [], "journal": []}
                for tier, threads, name in [("object", THREADS, "object"), ("object", 1, "one"), ("journal", THREADS, "journal")] * args.rounds:
                    mount = cluster.up("mnt", "--durability", tier, prefix=far.prefix)
                    before = gateway.asked()[0]
                    value = creates(mount.path / f"{name}{len(values[name])}", threads, seconds)
                    value["puts_by_100_files"] = (gateway.asked()[0]["PutObject"] - before["PutObject"]) * 100 / value["count"]
                    values[name].append(value)
                    cluster.drop(mount)
    return [
        Row(f"tier object, store 30 ms away: files of 8 KiB created and synced, {THREADS} threads ({CREATES_GOAL})", "per second", median(values, "object", "per_second"), CREATES_GOAL, 1, tier="object"),
        Row("the same, half of them within", "ms", median(values, "object", "p50_ms"), tier="object"),
        Row("the same, 99 of 100 within", "ms", median(values, "object", "p99_ms"), tier="object"),
        Row("the same, PUTs for 100 files", "", median(values, "object", "puts_by_100_files"), tier="object"),
        Row("the same, one thread", "per second", median(values, "one", "per_second"), tier="object"),
        Row("tier journal, 16 threads", "per second", median(values, "journal", "per_second"), tier="journal"),
    ], values
