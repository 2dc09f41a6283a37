"""The same reads by mounts that are told different things, in turns with the limit: which strategy wins. Takes the arguments and returns
rows and every single value."""

import contextlib
import shlex

from features import knows
from limits import by_turns, measured, median
from table import Row, unmeasured
from kernel import consent
from volumes import KEEPS_NOTHING, read_whole
from wire import Load, hot_node, seconds_of

# What is compared unless --variant says otherwise, where the binary knows it; first the defaults.
VARIANTS = (
    "", "--io=copy", "--io=splice --verify=sampled", "--io=copy --verify=off", "--io=splice --verify=off", "--pin", "--reactors=2",
    "--fuse-transport=uring", "--fuse-transport=uring --pin", "--fuse-transport=uring --verify=off",
)
LOADS = {"1 MiB x4": (Load("1M"), "gbps", "GB/s"), "4 KiB random x4": (Load("4K", rw="randread"), "iops", "IOPS")}
# Through a node, and from the mount's own cache: the limit of each.
PLACES = {"through a node": "sockcopy", "own cache": "filecopy"}


def known(variant):
    return all(knows("mount", option.split("=")[0]) for option in shlex.split(variant))


@contextlib.contextmanager
def mounts_of(cluster, place, variants):
    """A mount for each variant: all at once, so that they can take turns."""
    mounts = {}
    for number, variant in enumerate(variants):
        name = f"variant{number}"
        cache = KEEPS_NOTHING if place == "through a node" else ("--cache", f"{cluster.scratch / f'{name}.cache'}:2G")
        mounts[variant] = cluster.add_mount(name, *cache, *shlex.split(variant))
        read_whole(mounts[variant].path / "file0", direct=True)
    yield mounts
    for mount in mounts.values():
        cluster.drop(mount)


def variants(args):
    seconds, rows, raw = seconds_of(args), [], {}
    chosen = args.variant or [variant for variant in VARIANTS if known(variant)]
    if len(chosen) < 2:
        return [unmeasured("variants of a mount", "", None, "this sluice knows none of them")], raw
    with consent(chosen), hot_node(args) as cluster:
        for place, mode in PLACES.items():
            with mounts_of(cluster, place, chosen) as mounts:
                for name, (load, key, unit) in LOADS.items():
                    sides = {"limit": lambda _: load.limit(mode, seconds)}
                    for variant, mount in mounts.items():
                        sides[variant] = lambda _, mount=mount: measured(
                            {"mount": mount.process}, lambda: load.read(mount.path / "file0", seconds)
                        )
                    values = raw[f"{place}, {name}"] = by_turns(args.rounds, sides)
                    for variant in mounts:
                        title = f"{name} O_DIRECT {place} ({mode}): `{variant or 'as it comes'}`"
                        cpu = [median(values, *which) for which in ((variant, "mount_s_per_gib"), ("limit", "server_s_per_gib"))]
                        rows.append(Row(title, unit, median(values, variant, key), median(values, "limit", key)))
                        rows.append(Row("the same, CPU of the mount", "s/GiB", *cpu))
    return rows, raw
