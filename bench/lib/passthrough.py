"""What the kernel makes of a file that it reads by itself: the limit, and `up --passthrough` beside `up`. Takes the arguments and returns rows
and every single value."""

import contextlib

from cluster import Cluster
from features import missing
from limits import MIB, by_turns, measured, median, random_data
from table import Row, unmeasured
from wire import Load, seconds_of

LOADS = {
    f"{block} {how} x4": (Load(size, rw=rw, direct=direct), key, unit)
    for block, size, rw, key, unit in (("1 MiB", "1M", "read", "gbps", "GB/s"), ("4 KiB random", "4K", "randread", "iops", "IOPS"))
    for how, direct in (("buffered", 0), ("O_DIRECT", 1))
}
# The most that either way can give.
LIMITS = {"up": "filecopy", "up --passthrough": "passthrough"}
OPTIONS = ("--cache-size", "2G", "--verify=off")


@contextlib.contextmanager
def volume(*options):
    """A mount with one file, of which everything is here."""
    with Cluster() as cluster:
        mount = cluster.up("mnt", *OPTIONS, *options)
        with open(random_data(), "rb") as source, open(mount.path / "file0", "wb") as target:
            while piece := source.read(MIB):
                target.write(piece)
        # Kept open: the copy that the first open makes is not what is measured.
        with open(mount.path / "file0", "rb"):
            yield mount
        mount.stop()


def passthrough(args):
    why = missing("up", "--passthrough")
    if why:
        return [unmeasured("passthrough", "", None, why)], {}
    seconds, rows, raw = seconds_of(args), [], {}
    with volume() as plain, volume("--passthrough=1G") as through:
        mounts = {"up": plain, "up --passthrough": through}
        for name, (load, key, unit) in LOADS.items():
            sides = {}
            for side, mode in LIMITS.items():
                sides[mode] = lambda _, mode=mode: load.limit(mode, seconds)
                sides[side] = lambda _, mount=mounts[side]: measured(
                    {"mount": mount.process}, lambda: load.read(mount.path / "file0", seconds)
                )
            values = raw[name] = by_turns(args.rounds, sides)
            for side, mode in LIMITS.items():
                rows.append(Row(f"{name}: `{side}` ({mode})", unit, median(values, side, key), median(values, mode, key)))
    return rows, raw
