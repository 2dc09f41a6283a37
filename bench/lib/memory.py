"""How much memory a mount takes at most. Takes the arguments and returns rows and every single value."""

import pathlib
import subprocess
import sys

from features import missing
from process import Failed
from table import Row
from volumes import KEEPS_NOTHING, volume_with

# What issue 4 asks for: over what `--memory` allows.
BUDGET_MIB, OVER_MIB_MAX = 256, 64


def memory(args):
    """The most that a mount's process ever held, with many files open and many readers in order, through a node, nothing cached."""
    files, readers, mib, seconds = (200, 8, 4, 2) if args.short else (10_000, 64, 32, 15)
    why = missing("mount", "--memory")
    options = () if why else ("--memory", f"{BUDGET_MIB}M")
    with volume_with([mib] * readers, 1, "8G") as cluster:
        mount = cluster.add_mount("reader", *KEEPS_NOTHING, *options)
        idle = mount.process.rss_mib()
        program = pathlib.Path(__file__).resolve().parent / "open_files.py"
        command = [sys.executable, program, mount.path, str(files), str(readers), str(seconds)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if ran.returncode:
            raise Failed(f"open_files: {ran.stderr}")
        most = mount.process.rss_mib("VmHWM")
        cluster.drop(mount)
    values = {"idle_mib": idle, "most_mib": most, "budget_mib": None if why else BUDGET_MIB, "read": ran.stdout.strip()}
    name = f"{files:,} open files and {readers} readers in order: most memory of the mount"
    if why:
        return [Row(name, "MiB", most, why=f"not judged: {why}")], values
    return [Row(f"{name}, --memory {BUDGET_MIB}M", "MiB", most, None, BUDGET_MIB + OVER_MIB_MAX)], values
