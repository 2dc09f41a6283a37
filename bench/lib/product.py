"""What a measurement mounts, and the facts of the machine."""

import os
import platform
import subprocess
import time

from cluster import Cluster
from process import Failed

# Room for what the measurements write, so that nothing of it is evicted.
CACHE = "8G"


class Product:
    """A volume mounted by `sluice up` (or, `remote`, by way of a server on loopback) in a scratch directory. Ended and removed
    at the end."""

    def __init__(self, remote=False):
        self.remote, self.cluster = remote, Cluster()
        self.scratch = self.cluster.scratch

    def __enter__(self):
        try:
            if self.remote:
                self.cluster.serve("--cache-size", CACHE)
                self.mount = self.cluster.add_mount("mnt", journal="1G")
            else:
                self.mount = self.cluster.up("mnt", "--cache-size", CACHE)
        except Failed as failed:
            self.cluster.__exit__()
            raise SystemExit(f"the mount did not come up: {failed}") from None
        self.mountpoint = self.mount.path
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.mount.stop()
        finally:
            self.cluster.__exit__()

    def cpu_seconds(self):
        """User and system time of the mount since its start."""
        return self.mount.process.cpu_seconds()

    def rss_mib(self):
        """Resident memory of the mount now."""
        return self.mount.process.rss_mib()


def machine_facts(root):
    """What a reader needs to know to compare two runs."""

    def output(*command):
        return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.strip()

    cpu = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    memory_kib = int(next(l for l in open("/proc/meminfo") if l.startswith("MemTotal")).split()[1])
    scratch = os.environ.get("TMPDIR", "/tmp")
    return {
        "commit": output("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpu": cpu[0] if cpu else platform.machine(),
            "cores": os.cpu_count(),
            "memory_gib": round(memory_kib / 2**20, 1),
            "kernel": platform.release(),
            "scratch_filesystem": output("stat", "-f", "-c", "%T", scratch),
        },
    }
