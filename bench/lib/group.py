"""Measurements of a group of nodes. Each makes a cluster of its own, takes the arguments, and returns rows and every single value."""

import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from cluster import Cluster
from crowd import Crowd
from gateway import Gateway
from limits import MIB, limits_dir
from process import await_true
from table import Row
from volumes import KEEPS_NOTHING, volume_with

# What issues 3 and 4 ask for.
SHARE_MAX, STALL_SECONDS_MAX = 1.02, 1
SETTLE_SECONDS_MAX, IDLE_MIB_MAX = 10, 32


def readers(mounts, seconds):
    """Starts a reader of the whole set on each mount. It compares every byte."""
    program_path = pathlib.Path(__file__).resolve().parent / "reader.py"
    started = []
    for number, mount in enumerate(mounts):
        files = sorted(str(path) for path in mount.path.iterdir())
        # Each begins elsewhere, as four programs that do not know of each other do.
        cut = len(files) * number // len(mounts)
        compare = ["--data", str(limits_dir() / "data")]
        command = [sys.executable, str(program_path), *compare, str(seconds), *files[cut:], *files[:cut]]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return started


def results(started):
    """What the readers found; a read that failed ends the measurement."""
    found = []
    for process in started:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit("a read failed")
        found.append(json.loads(out))
    return found


def group_share(args):
    """Four mounts read one set at once from an empty group; then they read it again, and a node is killed under them."""
    file_mib, files, seconds = (16, 8, 3) if args.short else (128, 32, 12)
    set_bytes = file_mib * files * MIB
    with tempfile.TemporaryDirectory(prefix="sluice-bench.") as scratch:
        gateway = Gateway(scratch)
        try:
            with volume_with([file_mib] * files, 3, "4G", gateway) as cluster:
                mounts = [cluster.add_mount(f"reader{number}", *KEEPS_NOTHING) for number in range(4)]
                gateway.kill()
                gateway.start()
                cold = results(readers(mounts, 0))
                asked, cold_bytes = gateway.asked()
                total = lambda name: sum(node[name] for node in cluster.group().values())
                await_true("the nodes to hold the set", lambda: total("used_bytes") >= set_bytes)
                lost_bytes = cluster.group()["node0"]["used_bytes"]
                before = gateway.asked()[1]
                started = readers(mounts, seconds)
                # A quarter of the time is read undisturbed.
                time.sleep(seconds / 4)
                cluster.nodes[0].kill()
                hot = results(started)
                again_bytes = gateway.asked()[1] - before
        finally:
            gateway.kill()
    longest = max(result["longest_s"] for result in hot)
    values = {"cold": cold, "hot": hot, "set_bytes": set_bytes, "cold_bytes": cold_bytes, "asked": asked}
    values |= {"lost_bytes": lost_bytes, "again_bytes": again_bytes}
    return [
        Row("4 mounts read a set from an empty group: bytes of the store by the set", "times", cold_bytes / set_bytes, None, SHARE_MAX),
        Row("a node killed under them: longest read", "s", longest, None, STALL_SECONDS_MAX),
        Row("the same: bytes of the store by the share that was lost", "times", again_bytes / lost_bytes, None, SHARE_MAX),
        Row("the same: all four, cold", "GB/s", sum(r["bytes"] for r in cold) / max(r["seconds"] for r in cold) / 1e9),
    ], values


def start_together(cluster, count):
    """Starts so many nodes at once; seconds until all are members."""
    begin = time.monotonic()
    nodes = [cluster.new_node(f"node{number}", "64M") for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda node: node.start(), nodes))
    await_true(f"{count} nodes to be members", lambda: len(cluster.group()) == count)
    return time.monotonic() - begin


def largest_mib(nodes):
    return max(node.process.rss_mib() for node in nodes)


def group_crowd(args):
    """Nodes and the connections of many mounts, all at once."""
    nodes, mounts = (4, 20) if args.short else (30, 200)
    with Cluster() as cluster:
        cluster.serve()
        joined = start_together(cluster, nodes)
        idle = largest_mib(cluster.nodes)
        begin = time.monotonic()
        crowd = Crowd(cluster.server.address, [node.address for node in cluster.nodes], mounts)
        crowd.await_members(nodes)
        connected = time.monotonic() - begin
        crowded = largest_mib(cluster.nodes)
        crowd.close()
    values = {"joined_s": joined, "connected_s": connected, "idle_mib": idle, "crowded_mib": crowded}
    return [
        Row(f"{nodes} nodes and the connections of {mounts} mounts settle", "s", joined + connected, None, SETTLE_SECONDS_MAX),
        Row("memory of an idle node", "MiB", idle, None, IDLE_MIB_MAX),
        Row(f"memory of a node with the connections of {mounts} mounts", "MiB", crowded),
    ], values


def connections_to(nodes):
    """Established ones that end at these nodes, as the kernel lists them."""
    ports = {int(node.address.rsplit(":", 1)[1]) for node in nodes}
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    established = "01"
    return sum(1 for line in lines if line.split()[3] == established and int(line.split()[1].split(":")[1], 16) in ports)


def settled_s(found, killed_at, listed_at):
    """From the kill until the list is right again and the last slow read has ended, of all readers."""
    ends = [end for result in found for end, _ in result["slow"] if end >= killed_at]
    return max([listed_at, *ends]) - killed_at


@contextlib.contextmanager
def made_up_to(cluster, wanted):
    """Connections beside those that mounts made, so that the nodes have so many together; gives how many the mounts made."""
    made, each = connections_to(cluster.nodes), 2 * len(cluster.nodes)
    crowd = Crowd(cluster.server.address, [node.address for node in cluster.nodes], max(0, -(-(wanted - made) // each)))
    crowd.keep()
    try:
        yield made
    finally:
        crowd.close()


def crowd_read(args):
    """A set of small files on many nodes, read by mounts that are connected to all of them; every byte is compared, and nodes are
    killed under the readers."""
    nodes, mounts, files, killed, wanted, seconds = (10, 2, 64, 2, 60, 9) if args.short else (100, 5, 512, 10, 1000, 25)
    with volume_with([1] * files, 0, "") as cluster:
        joined = start_together(cluster, nodes)
        idle = largest_mib(cluster.nodes)
        everyone = [cluster.add_mount(f"reader{number}", *KEEPS_NOTHING) for number in range(mounts)]
        first = results(readers(everyone, 0))
        with made_up_to(cluster, wanted) as made:
            connections = connections_to(cluster.nodes)
            started = readers(everyone, seconds)
            time.sleep(seconds / 8)
            killed_at = time.monotonic()
            for node in cluster.nodes[:killed]:
                node.kill()
            left = nodes - killed
            await_true(f"the list to have {left} nodes", lambda: len(cluster.group()) == left)
            listed_at = time.monotonic()
            found = results(started)
        after = largest_mib(cluster.nodes[killed:])
    settled, longest = settled_s(found, killed_at, listed_at), max(result["longest_s"] for result in found)
    values = {"joined_s": joined, "idle_mib": idle, "connections": connections, "of_mounts": made, "first": first, "hot": found}
    values |= {"settled_s": settled, "list_s": listed_at - killed_at, "after_mib": after}
    compared = f"{sum(result['bytes'] for result in first + found) / 1e9:.1f} GB compared"
    return [
        Row(f"{nodes} nodes: connections of {mounts} mounts, and as many more as make {wanted}", "", made, why=f"{connections} in all"),
        Row("the same: reads with wrong bytes or errors", "", 0, None, 0, why=compared),
        Row(f"the same, {killed} nodes killed: until it has settled", "s", settled, None, SETTLE_SECONDS_MAX),
        Row("the same: longest read", "s", longest),
        Row("memory of an idle node", "MiB", idle, None, IDLE_MIB_MAX),
        Row("memory of a node that has served this", "MiB", after),
    ], values
