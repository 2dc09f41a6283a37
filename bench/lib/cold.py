"""Cold slabs: four times as many bytes as the page cache may hold. Takes the arguments and returns rows and every single value."""

import concurrent.futures
import contextlib

from cgroup import MemoryGroup
from cluster import Cluster
from limits import MIB, by_turns, median, program
from process import Failed, await_true
from table import Row, unmeasured
from volumes import copy_data, read_whole, volume_with, without_page_cache
from wire import mounted, only_the_node

# What issue 4 asks for.
RATE_GOAL, RESIDENT_P99_MS_MAX, TIMES_MEMORY = 0.8, 5, 4
# Of the reader of what stays resident: enough to be judged by, and too few to be in the way.
RESIDENT_IOPS = 500


def both(cold, resident, direct, seconds, prefix=()):
    """1 MiB in random order by four readers of `cold` and, at the same time, 4 KiB by one of `resident`; each with O_DIRECT or not."""
    large = ("1M", direct[0], 4, "randread", seconds)
    small = ("4K", direct[1], 1, "randread", seconds)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        reads = pool.submit(program, "fioread", cold, *large, prefix=prefix)
        small = pool.submit(program, "fioread", resident, *small, prefix=prefix, RATE_IOPS=RESIDENT_IOPS)
        return {**reads.result(), "resident_p99_ms": small.result()["p99_us"] / 1000}


@contextlib.contextmanager
def of_node(group, cold_mib, hot_mib):
    """The files behind a node in the group, and the folder that has its slabs."""
    with volume_with([cold_mib, hot_mib], 1, "8G", prefix=group.prefix) as cluster, mounted(cluster, "reader") as mount:
        read_whole(mount.path / "file0", direct=True)
        read_whole(mount.path / "file1", direct=True)
        await_true("the node to hold the files", lambda: cluster.group()["node0"]["used_bytes"] >= (cold_mib + hot_mib) * MIB)
        fetches = mount.status()["numbers"]["fetches"]
        yield mount, cluster.scratch / "node0.cache"
        only_the_node(mount, fetches)


@contextlib.contextmanager
def of_mount(group, cold_mib, hot_mib):
    """The files in the own cache of a mount in the group."""
    with Cluster() as cluster:
        mount = cluster.up("mnt", "--cache-size", "8G", prefix=group.prefix)
        copy_data(mount.path / "file0", cold_mib)
        copy_data(mount.path / "file1", hot_mib)
        yield mount, cluster.volume / "cache"
        cluster.drop(mount)


def cold_slab(args):
    """Through a node, and from a mount's own cache, against fio on a file of that disk; both have the memory of the group."""
    limit_mib, hot_mib, seconds = (64, 4, 1) if args.short else (512, 16, 5)
    rows, raw = [], {}
    for name, place in (("through a node", of_node), ("own cache", of_mount)):
        title = f"cold slab, {TIMES_MEMORY} times the page cache, 1 MiB random x4, {name}"
        try:
            group = MemoryGroup(limit_mib * MIB)
        except Failed as failed:
            rows.append(unmeasured(title, "GB/s", RATE_GOAL, str(failed)))
            continue
        with group, place(group, TIMES_MEMORY * limit_mib, hot_mib) as (mount, slabs):
            plain = slabs.parent / "plain"
            plain.mkdir()
            copy_data(plain / "cold", TIMES_MEMORY * limit_mib)
            copy_data(plain / "hot", hot_mib)

            def of_limit(direct):
                without_page_cache(plain)
                read_whole(plain / "hot")
                return both(plain / "cold", plain / "hot", (direct, 0), seconds, group.prefix)

            def of_product(_):
                without_page_cache(slabs)
                read_whole(mount.path / "file1", direct=True)
                return both(mount.path / "file0", mount.path / "file1", (1, 1), seconds)

            sides = {"limit": lambda _: of_limit(0), "product": of_product, "direct": lambda _: of_limit(1)}
            values = raw[name] = by_turns(args.rounds, sides)
        rate = median(values, "product", "gbps")
        rows.append(Row(f"{title} (fio by way of the page cache)", "GB/s", rate, median(values, "limit", "gbps"), RATE_GOAL))
        rows.append(Row("the same (fio with O_DIRECT)", "GB/s", rate, median(values, "direct", "gbps"), RATE_GOAL))
        worst = max(value["resident_p99_ms"] for value in values["product"])
        rows.append(Row("the same, resident 4 KiB reads, 99 of 100 within", "ms", worst, None, RESIDENT_P99_MS_MAX))
    return rows, raw
