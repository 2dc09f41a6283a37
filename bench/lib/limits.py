"""Running the limit programs, and limit and product in turns."""

import functools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess

LIMITS = pathlib.Path(__file__).resolve().parent.parent / "limits"
MIB = 2**20
GIB = 2**30
# What fuse_limit says of itself at its end.
CPU = re.compile(r"(server|sender) user ([\d.]+) sys ([\d.]+)")


def limits_dir():
    """Where programs are built and the data is (limits/null_mount.sh)."""
    return pathlib.Path(os.environ.get("LIMITS_DIR", os.environ.get("TMPDIR", "/tmp") + "/sluice-limits"))


def built(name):
    """The program that limits/NAME.c makes."""
    source, target = LIMITS / f"{name}.c", limits_dir() / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-pthread", source, "-o", target], check=True)
    return target


@functools.cache
def random_data():
    """The file of random bytes that the limits read: 512 MiB."""
    program("fuselimit", "filecopy", "1M", 1, 4, "read", 1)
    return limits_dir() / "data"


def program(name, *arguments, prefix=(), **environment):
    """Runs one of the limit programs, behind the command `prefix`. Its first line is JSON; the CPU that a limit spent is added to it,
    by its bytes."""
    command = [*prefix, LIMITS / name, *arguments]
    env = {**os.environ, **{key: str(value) for key, value in environment.items()}}
    out, err = finish([str(part) for part in command], env)
    if not out.startswith("{"):
        raise SystemExit(f"{name} {arguments}: {out}{err}")
    value = json.loads(out.splitlines()[0])
    for side, user, system in CPU.findall(err):
        value[f"{side}_s_per_gib"] = (float(user) + float(system)) / (value["bytes"] / GIB)
    return value


def finish(command, env):
    """Output and errors of a command. When this is interrupted the command and what it started are told to end: a script unmounts."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, start_new_session=True, **pipes) as running:
        try:
            return running.communicate()
        except BaseException:
            os.killpg(running.pid, signal.SIGTERM)
            raise


def in_turns(rounds, limit, product):
    """A B A B: two lists of results."""
    return by_turns(rounds, {"limit": limit, "product": product})


def by_turns(rounds, sides):
    """The same with any number of sides: name -> list of results."""
    values = {name: [] for name in sides}
    for round_number in range(rounds):
        for name, side in sides.items():
            values[name].append(side(round_number))
    return values


def median(values, side, key):
    return statistics.median(value[key] for value in values[side])


def with_cpu(value, processes, before):
    """Adds what each process (name -> Process) has spent by GiB since `before` (name -> its CPU seconds then)."""
    for name, process in processes.items():
        value[f"{name}_s_per_gib"] = (process.cpu_seconds() - before[name]) / (value["bytes"] / GIB)
    return value


def measured(processes, load):
    """What `load` returns, with the CPU of these processes meanwhile."""
    before = {name: process.cpu_seconds() for name, process in processes.items()}
    return with_cpu(load(), processes, before)
