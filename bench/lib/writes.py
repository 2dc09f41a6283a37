"""What writing costs, against what the disk and /dev/fuse give without a file system. Each takes the arguments and returns rows and
every single value. Tier `journal` everywhere: what a row says of it stands beside it, with the bytes that were acked and not stored at
the end of the load."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from cluster import Cluster
from gateway import Gateway
from limits import GIB, MIB, by_turns, in_turns, median, program
from process import Failed, await_true
from slow_disk import slow_disk
from table import Row

# What issue 5 asks for.
SYNC_GOAL, MANY_THREADS, MANY_GOAL, MANY_SHARE_GOAL, SLOW_SYNC_US = 0.7, 16, 8, 0.6, 2000
MIX_GOAL, MIX_THREADS, SMALL_FILES, SMALL_BYTES, SMALL_OBJECTS_MAX, SMALL_READ_GOAL = 0.5, 4, 10_000, 8192, 60, 2000
RANDOM_GOAL, RANDOM_BYTES_PER_WRITE = 0.6, 4.2 * 1024
SEQUENTIAL_GOAL, SUSTAINED_GOAL = 0.8, 0.4
# Room for what is written, so that nothing waits for room in the cache but where that is measured.
CACHE = ("--cache-size", "8G")
DRAINED_SECONDS_MAX = 300


@contextlib.contextmanager
def volume(*options, scratch=None, gateway=None):
    """A fresh volume, mounted by `sluice up`."""
    with Cluster(gateway, scratch) as cluster:
        mount = cluster.up("mnt", *options)
        yield mount


def numbers(mount):
    return mount.status()["numbers"]


def drained(mount):
    """Waits until everything is stored."""
    await_true("everything to be stored", lambda: numbers(mount)["dirty_objects"] == 0, DRAINED_SECONDS_MAX)


def watched(mount, load):
    """What `load` returns, with what it cost the mount, what was read meanwhile, and what is not stored after it."""
    before, cpu = numbers(mount), mount.process.cpu_seconds()
    value = load()
    after = numbers(mount)
    value["cpu_s"] = mount.process.cpu_seconds() - cpu
    value["unstored_bytes"] = after["dirty_bytes"]
    value["fetches"] = after["fetches"] - before["fetches"]
    value["gets"] = after["store"]["gets"] - before["store"]["gets"]
    value["cached_read_bytes"] = after["read_cached_bytes"] - before["read_cached_bytes"]
    value["written_bytes"] = after["written_bytes"] - before["written_bytes"]
    return value


def beside(values, side, ops=None):
    """What stands beside a number of the product: what was acked and not stored, CPU by what was done."""
    unstored = statistics.median(value["unstored_bytes"] for value in values[side]) / MIB
    words = f"{unstored:,.0f} MiB not stored when the load ended"
    if ops:
        return f"{words}; {statistics.median(value['cpu_s'] * 1000 / value[ops] for value in values[side]):.2f} CPU s per 1,000"
    spent = [value["cpu_s"] / (value["written_bytes"] / GIB) for value in values[side] if value["written_bytes"]]
    return f"{words}; {statistics.median(spent):.2f} CPU s/GiB" if spent else words


def fio(*options):
    """One fio run, as JSON."""
    with tempfile.NamedTemporaryFile() as out:
        command = ["fio", "--name=load", "--ioengine=psync", "--group_reporting", *options, "--output-format=json", f"--output={out.name}"]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))["jobs"][0]


def writes_sync(args):
    """Small synced writes by one thread and by many, on this disk and on one whose syncs take 2 ms."""
    seconds = 1 if args.short else 8
    with volume(*CACHE) as mount:
        scratch = mount.path.parent
        own = lambda threads: lambda turn: watched(mount, lambda: program("syncwrite", mount.path / f"s{threads}-{turn}", threads, seconds))
        values = by_turns(args.rounds, {
            "limit": lambda _: program("fusesync", 1, seconds, JOURNAL=scratch / "null.journal"),
            "one": own(1),
            "at once": lambda _: program("fusesync", MANY_THREADS, seconds),
            "many": own(MANY_THREADS),
        })
    with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch, slow_disk(scratch, 8192, SLOW_SYNC_US) as folder:
        with volume("--cache-size", "2G", scratch=folder) as mount:
            own = lambda threads: lambda turn: watched(mount, lambda: program("syncwrite", mount.path / f"s{threads}-{turn}", threads, seconds))
            values |= by_turns(args.rounds, {"slow one": own(1), "slow many": own(MANY_THREADS)})
            mount.stop()
    rate = {side: median(values, side, "per_second") for side in values}
    lower = min(MANY_GOAL * rate["one"], MANY_SHARE_GOAL * rate["at once"])
    return [
        Row("one thread writes 4 KiB and syncs (null FUSE and one fdatasync)", "per second", rate["one"], rate["limit"], SYNC_GOAL, why=beside(values, "one", "count")),
        Row(f"{MANY_THREADS} threads, own files ({MANY_GOAL} x one, or {MANY_SHARE_GOAL} of null FUSE answering at once, {rate['at once']:,.0f}, if lower)", "per second", rate["many"], lower, 1, why=beside(values, "many", "count")),
        Row(f"disk whose syncs take {SLOW_SYNC_US // 1000} ms more: {MANY_THREADS} threads (one thread)", "per second", rate["slow many"], rate["slow one"], MANY_GOAL, why=beside(values, "slow many", "count")),
    ], values


def mix(rates):
    """Operations a second of files that are created, read, asked about and deleted, each as often."""
    return 4 / sum(1 / rates[name] for name in ("create", "read", "stat", "unlink"))


def in_threads(threads, work, items):
    """Each thread takes its share of the items, in order; how long that took."""
    shares = [items[number * len(items) // threads : (number + 1) * len(items) // threads] for number in range(threads)]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda share: [work(item) for item in share], shares))
    return time.monotonic() - began


def read_file(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        if len(os.read(fd, SMALL_BYTES + 1)) != SMALL_BYTES:
            raise Failed(f"{path} has another length")
    finally:
        os.close(fd)


def write_file(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, os.urandom(SMALL_BYTES))
    os.close(fd)


def packed(count):
    """Many small files into a real S3 server, and back by a mount whose cache is empty."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch, contextlib.ExitStack() as ending:
        gateway = Gateway(scratch)
        ending.callback(gateway.kill)
        with Cluster(gateway) as cluster:
            mount = cluster.up("mnt", *CACHE)
            before = gateway.asked()[0]["PutObject"]
            files = [mount.path / f"{number}" for number in range(count)]
            value = watched(mount, lambda: {"write_s": in_threads(MIX_THREADS, write_file, files)})
            drained(mount)
            value["puts"] = gateway.asked()[0]["PutObject"] - before
            cluster.drop(mount)
            value["puts_to_the_end"] = gateway.asked()[0]["PutObject"] - before
            value["objects"] = sum(file.is_file() for file in (gateway.folder / "buckets").rglob("*") if "meta" not in file.parts)
            shutil.rmtree(cluster.volume / "cache")
            mount = cluster.up("again", *CACHE)
            value["read_s"] = in_threads(MIX_THREADS, read_file, [mount.path / file.name for file in files])
            value["gets"] = numbers(mount)["store"]["gets"]
            cluster.drop(mount)
    return {**value, "write_per_second": count / value["write_s"], "read_per_second": count / value["read_s"]}


def writes_small(args):
    """Small files: the mix, and how they are packed."""
    files = 200 if args.short else 5000
    with volume(*CACHE) as mount:

        def of_product(turn):
            folder = mount.path / f"md-{turn}"
            folder.mkdir()
            value = watched(mount, lambda: program("mdops", folder, files, MIX_THREADS))
            return {**value, "mix": mix(value), "ops": 6 * files * MIX_THREADS}

        def of_limit(_):
            value = program("fusemd", files, MIX_THREADS)
            return {**value, "mix": mix(value)}

        values = in_turns(args.rounds, of_limit, of_product)
    count = 1000 if args.short else SMALL_FILES
    values["packed"] = [packed(count) for _ in range(args.rounds)]
    rows = [Row(f"small files: create, read, stat, unlink, {MIX_THREADS} threads", "per second", median(values, "product", "mix"), median(values, "limit", "mix"), MIX_GOAL, why=beside(values, "product", "ops"))]
    for name in ("create", "write", "stat", "read", "unlink"):
        rows.append(Row(f"of these, {name}", "per second", median(values, "product", name), median(values, "limit", name)))
    found = lambda key: median(values, "packed", key)
    return rows + [
        Row(f"{count:,} files of 8 KiB: objects", "", found("objects"), None, SMALL_OBJECTS_MAX),
        Row("the same: PUTs until all is stored, of metadata too", "", found("puts"), None, SMALL_OBJECTS_MAX, why=f"{found('puts_to_the_end'):.0f} with umount"),
        Row(f"the same: written, {MIX_THREADS} threads", "files/s", found("write_per_second"), why=beside(values, "packed")),
        Row(f"the same: read back from an empty cache, {MIX_THREADS} threads ({SMALL_READ_GOAL})", "files/s", found("read_per_second"), SMALL_READ_GOAL, 1, why=f"{found('gets'):.0f} GETs"),
    ], values


def sequential(path, mib):
    """1 MiB at a time, with the fsync at the end."""
    job = fio("--rw=write", "--bs=1M", f"--size={mib}M", "--end_fsync=1", "--refill_buffers", f"--filename={path}")
    # The longer of the two: versions of fio differ in which of them has the final fsync in it.
    seconds = max(job["write"]["runtime"], job["job_runtime"]) / 1000
    return {"gbps": mib * MIB / seconds / 1e9, "seconds": seconds}


def sequential_of_disk(path, mib):
    value = sequential(path, mib)
    path.unlink()
    return value


def writes_random(args):
    """4 KiB at any place of a file of 1 GiB, four threads."""
    seconds, mib = (2, 64) if args.short else (60, 1024)

    def of_product(_):
        with volume(*CACHE) as mount:
            sequential(mount.path / "file", mib)
            drained(mount)
            value = watched(mount, lambda: program("fioread", mount.path / "file", "4K", 0, 4, "randwrite", seconds))
            return {**value, "count": value["bytes"] / 4096}

    def of_disk(_):
        with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch:
            return sequential_of_disk(pathlib.Path(scratch) / "file", mib)

    values = by_turns(args.rounds, {
        "fuse": lambda _: program("fuselimit", "mem", "4K", 0, 4, "randwrite", min(seconds, 10)),
        "disk": of_disk,
        "product": of_product,
    })
    of_fuse, of_bytes = median(values, "fuse", "iops"), median(values, "disk", "gbps") * 1e9 / RANDOM_BYTES_PER_WRITE
    reads = max(value["fetches"] + value["gets"] + value["cached_read_bytes"] for value in values["product"])
    return [
        Row(f"4 KiB random writes x4 over 1 GiB, {seconds} s (of null FUSE {of_fuse:,.0f}, of the disk's bytes {of_bytes:,.0f}: the lower)", "IOPS", median(values, "product", "iops"), min(of_fuse, of_bytes), RANDOM_GOAL, why=beside(values, "product", "count")),
        Row("the same: reads from store and cache meanwhile", "", reads, None, 0),
        Row("the same: 99 of 100 within", "us", median(values, "product", "p99_us"), median(values, "fuse", "p99_us")),
    ], values


def writes_sequential(args):
    """1 MiB in order: what fits, and ten times what the journal and the cache hold."""
    mib, small = (64, 32) if args.short else (2048, 512)
    rows, values = [], {}
    cases = [("2 GiB", CACHE, mib, SEQUENTIAL_GOAL), (f"ten times journal and cache of {small} MiB, drained meanwhile", ("--cache-size", f"{small}M", "--journal-size", f"{small}M"), 10 * small, SUSTAINED_GOAL)]
    for name, options, size, goal in cases:
        with volume(*options) as mount:
            scratch = mount.path.parent

            def of_product(turn):
                value = watched(mount, lambda: sequential(mount.path / f"file{turn}", size))
                (mount.path / f"file{turn}").unlink()
                drained(mount)
                return value

            found = in_turns(args.rounds, lambda _: sequential_of_disk(scratch / "file", size), of_product)
        rows.append(Row(f"sequential 1 MiB writes with fsync at the end, {name}", "GB/s", median(found, "product", "gbps"), median(found, "limit", "gbps"), goal, why=beside(found, "product")))
        values[name] = found
    return rows, values
