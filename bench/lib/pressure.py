"""Writing when something else is wrong: while gigabytes drain, with a server that is killed, with a journal that is full. Each takes the
arguments and returns rows and every single value. Tier `journal`."""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

from cluster import Cluster
from far import link
from gateway import Gateway
from limits import MIB, by_turns, median, program
from link import Port
from process import Failed, await_true
from table import Row
from volumes import copy_data
from writes import CACHE, DRAINED_SECONDS_MAX, drained, numbers

# What issue 5 asks for.
DRAIN_GOAL_MS, DRAIN_LIMIT_SHARE, DRAIN_RATE_IOPS = 5, 3, 1000
SERVER_GOAL_S, WRITING_MOUNTS = 15, 2
# Two of sixteen segments of a journal are kept back, of the four fifths that are for data.
FULL_SHARE = 0.8
# A store that takes less than programs write.
SLOW_STORE_BYTES_PER_S, SLOW_STORE_ROUND_TRIP_S = 20_000_000, 0.010
BLOCK = os.urandom(4096)


@contextlib.contextmanager
def held(gateway):
    """The store answers nothing meanwhile, and refuses nothing."""
    pid = gateway.process.child.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stored_volume(*options, prefix_of=lambda cluster, gateway: contextlib.nullcontext([])):
    """A volume mounted by `sluice up`, its store a real S3 server."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch, contextlib.ExitStack() as ending:
        gateway = Gateway(scratch)
        ending.callback(gateway.kill)
        with Cluster(gateway) as cluster:
            cluster.format()
            with prefix_of(cluster, gateway) as prefix:
                yield cluster, cluster.up("mnt", *options, prefix=prefix), gateway


def writes_drain(args):
    """4 KiB reads of what is cached, at a rate that is easily had, while 4 GiB go to the store; the limit's while 4 GiB are copied."""
    mib, hot_mib, seconds = (64, 32, 1) if args.short else (4096, 256, 15)
    reads = ("4K", 1, 1, "randread", seconds)

    def of_product(_):
        with stored_volume(*CACHE) as (_cluster, mount, gateway):
            copy_data(mount.path / "hot", hot_mib)
            drained(mount)
            with held(gateway):
                copy_data(mount.path / "drains", mib)
            value = program("fioread", mount.path / "hot", *reads, RATE_IOPS=DRAIN_RATE_IOPS)
            return {**value, "unstored_bytes": numbers(mount)["dirty_bytes"]}

    def of_limit(_):
        with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch:
            source, target = pathlib.Path(scratch) / "source", pathlib.Path(scratch) / "target"
            copy_data(source, mib)
            command = f"while dd if={source} of={target} bs=4M conv=fsync status=none; do :; done"
            with subprocess.Popen(["sh", "-c", command], start_new_session=True) as copying:
                try:
                    return program("fuselimit", "filecopy", *reads, RATE_IOPS=DRAIN_RATE_IOPS)
                finally:
                    os.killpg(copying.pid, signal.SIGTERM)

    values = by_turns(args.rounds, {"limit": of_limit, "product": of_product})
    ms = {side: median(values, side, "p999_us") / 1000 for side in values}
    left = median(values, "product", "unstored_bytes") / MIB
    return [
        Row(f"cached 4 KiB reads while {mib / 1024:g} GiB drain, 999 of 1,000 within", "ms", ms["product"], None, max(DRAIN_GOAL_MS, DRAIN_LIMIT_SHARE * ms["limit"]), why=f"limit {ms['limit']:.2f} ms; {left:,.0f} MiB not stored at the end"),
        Row("the same, half of them within", "us", median(values, "product", "p50_us"), median(values, "limit", "p50_us")),
    ], values


class Writer(multiprocessing.get_context("fork").Process):
    """Appends numbered blocks to a file and syncs each, until told to end. A process: one that starts the server must have no file of
    the mount open, as the start of a process closes them, which waits for the server."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path = path
        self._acked, self._longest_s, self.ended = multiprocessing.Value("Q"), multiprocessing.Value("d"), multiprocessing.Value("b")
        self.start()

    @property
    def acked(self):
        return self._acked.value

    @property
    def longest_s(self):
        return self._longest_s.value

    def run(self):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        while not self.ended.value:
            began = time.monotonic()
            os.write(fd, self.acked.to_bytes(8, "little") + BLOCK[8:])
            os.fsync(fd)
            self._acked.value += 1
            self._longest_s.value = max(self.longest_s, time.monotonic() - began)
        os.close(fd)

    def end(self):
        self.ended.value = True
        self.join()

    def check(self, path):
        """Everything that was acked is there."""
        data = path.read_bytes()
        if len(data) < self.acked * len(BLOCK):
            raise Failed(f"{path} has {len(data)} bytes of {self.acked} acked blocks")
        for number in range(self.acked):
            at = number * len(BLOCK)
            if data[at : at + len(BLOCK)] != number.to_bytes(8, "little") + BLOCK[8:]:
                raise Failed(f"block {number} of {path} is another")


def writes_server(args):
    """The server is killed under mounts that write, and started again at once."""
    seconds = 1 if args.short else 4

    def one(_):
        with Cluster() as cluster:
            cluster.serve()
            mounts = [cluster.add_mount(f"mnt{number}") for number in range(WRITING_MOUNTS)]
            writers = [Writer(mount.path / f"of{number}") for number, mount in enumerate(mounts)]
            time.sleep(seconds)
            began = time.monotonic()
            cluster.server.kill()
            cluster.server.start()
            started_s, before = time.monotonic() - began, [writer.acked for writer in writers]
            await_true("each mount to go on", lambda: all(writer.acked > acked for writer, acked in zip(writers, before)), 60)
            time.sleep(seconds)
            [writer.end() for writer in writers]
            [cluster.drop(mount) for mount in mounts]
            reader = cluster.add_mount("reader")
            [writer.check(reader.path / f"of{number}") for number, writer in enumerate(writers)]
            return {"pause_s": max(writer.longest_s for writer in writers), "started_s": started_s, "acked": sum(writer.acked for writer in writers)}

    values = by_turns(args.rounds, {"product": one})
    return [
        Row(f"server killed and started under {WRITING_MOUNTS} writing mounts: longest write and sync", "s", median(values, "product", "pause_s"), None, SERVER_GOAL_S, why=f"the server was back after {median(values, 'product', 'started_s'):.1f} s; {median(values, 'product', 'acked'):,.0f} acked writes compared"),
    ], values


class Filler(threading.Thread):
    """Writes 4 KiB at places of its own file, unsynced, and notes how long each took; ends when one fails or it is told to."""

    def __init__(self, path, mib):
        super().__init__(daemon=True)
        self.path, self.blocks, self.took, self.ended = path, mib * MIB // len(BLOCK), [], False
        self.start()

    def run(self):
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):
            while not self.ended:
                began = time.monotonic()
                os.pwrite(fd, BLOCK, self._place(len(self.took)))
                self.took.append((began, time.monotonic() - began))
        with contextlib.suppress(OSError):
            os.close(fd)

    def _place(self, turn):
        """Far from the last one: no two make one extent. Each block once."""
        return (turn * (self.blocks * 5 // 8 + 1)) % self.blocks * len(BLOCK)

    def check(self):
        """Everything that was acked is there."""
        fd = os.open(self.path, os.O_RDONLY)
        for turn in range(min(len(self.took), self.blocks)):
            if os.pread(fd, len(BLOCK), self._place(turn)) != BLOCK:
                raise Failed(f"write {turn} of {len(self.took)} to {self.path} is lost")
        os.close(fd)


def is_full(mount):
    """Whether the journal has what it takes: from there on writes come in one by one."""
    journal = numbers(mount)["journal"]
    return journal["used_bytes"] > FULL_SHARE * journal["data_capacity_bytes"]


def writes_recovery(args):
    """Killed with a journal as full as data makes it, while the store takes nothing: how long the next start takes."""
    journal = "64M" if args.short else "1G"

    def one(_):
        with stored_volume(*CACHE, "--journal-size", journal) as (cluster, mount, gateway):
            with held(gateway):
                fillers = [Filler(mount.path / f"file{number}", 1024) for number in range(4)]
                await_true("the journal to be full", lambda: is_full(mount), DRAINED_SECONDS_MAX)
                found = numbers(mount)
                mount.kill()
                mount.detach()
                [filler.join() for filler in fillers]
            began = time.monotonic()
            mount.start()
            took = time.monotonic() - began
            value = {"seconds": took, "cpu_s": mount.process.cpu_seconds()}
            [filler.check() for filler in fillers]
            return {**value, "journal_bytes": found["journal"]["used_bytes"], "records": found["journal"]["written_seq"], "unstored_bytes": found["dirty_bytes"]}

    def of_disk(_):
        with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch:
            path = pathlib.Path(scratch) / "file"
            copy_data(path, 64 if args.short else 820)
            began = time.monotonic()
            subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"], check=True)
            return {"seconds": time.monotonic() - began}

    values = by_turns(args.rounds, {"limit": of_disk, "product": one})
    found = lambda key: median(values, "product", key)
    return [
        Row(f"start after kill -9 with a full journal of {journal} (reading as much)", "s", found("seconds"), median(values, "limit", "seconds"), why=f"{found('records'):,.0f} records, {found('journal_bytes') / MIB:,.0f} MiB of journal, {found('unstored_bytes') / MIB:,.0f} MiB not stored; {found('cpu_s'):.1f} CPU s"),
    ], values


@contextlib.contextmanager
def slow_store(cluster, gateway):
    """What becomes a process behind a link to the store that is narrower than what programs write."""
    with link(cluster.scratch, Port(f"127.0.0.1:{gateway.port}", SLOW_STORE_ROUND_TRIP_S, SLOW_STORE_BYTES_PER_S)) as far:
        yield far.prefix


def writes_pressed(args):
    """Programs write more than a store takes: how evenly they are held back once the journal is full."""
    seconds, journal = (5, "16M") if args.short else (40, "128M")

    def one(_):
        with stored_volume("--journal-size", journal, prefix_of=slow_store) as (_cluster, mount, _gateway):
            fillers = [Filler(mount.path / f"file{number}", 1024) for number in range(4)]
            await_true("the journal to be full", lambda: is_full(mount), DRAINED_SECONDS_MAX)
            begin = time.monotonic()
            time.sleep(seconds)
            end = time.monotonic()
            found = numbers(mount)
            for filler in fillers:
                filler.ended = True
            [filler.join() for filler in fillers]
            inside = [(at, took) for filler in fillers for at, took in list(filler.took) if at + took >= begin and at < end]
            took = sorted(took for _, took in inside)
            ends = sorted(at + took for at, took in inside)
            gaps = [b - a for a, b in zip([begin, *ends], ends)]
            return {
                "per_second": len(took) / seconds,
                "p50_ms": took[len(took) // 2] * 1000,
                "p99_ms": took[len(took) * 99 // 100] * 1000,
                "max_s": took[-1],
                "silence_s": max(gaps),
                "unstored_bytes": found["dirty_bytes"],
            }

    values = by_turns(args.rounds, {"product": one})
    found = lambda key: median(values, "product", key)
    return [
        Row(f"journal of {journal} full, store of {SLOW_STORE_BYTES_PER_S // 10**6} MB/s: 4 KiB writes, 4 threads", "per second", found("per_second"), SLOW_STORE_BYTES_PER_S / len(BLOCK), why=f"{found('unstored_bytes') / MIB:,.0f} MiB not stored"),
        Row("the same: half of them within", "ms", found("p50_ms")),
        Row("the same: 99 of 100 within", "ms", found("p99_ms")),
        Row("the same: the longest", "s", found("max_s")),
        Row("the same: the longest time without any", "s", found("silence_s")),
    ], values
