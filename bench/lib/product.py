"""A mounted volume for a measurement, and the facts of the machine."""

import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 30
STOP_SECONDS_MAX = 600


class Product:
    """`sluice up` in a scratch directory, in the foreground: its pid is ours to look at. Ended and removed at the end."""

    def __init__(self):
        self.binary = os.environ.get("SLUICE_BIN", str(ROOT / "target/release/sluice"))
        if not os.access(self.binary, os.X_OK):
            raise SystemExit(f"{self.binary} is missing: run `make build` first, or set SLUICE_BIN")
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="sluice-bench."))
        self.mountpoint = self.scratch / "mnt"
        self.mountpoint.mkdir()
        self.process = None

    def __enter__(self):
        self.log = open(self.scratch / "log", "w")
        command = [self.binary, "up", str(self.scratch / "volume"), str(self.mountpoint), "--cache-size", "8G"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        before = self.scratch.stat().st_dev
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.mountpoint.stat().st_dev == before:
            if self.process.poll() is not None or time.monotonic() > deadline:
                text = (self.scratch / "log").read_text()
                self.__exit__()
                raise SystemExit(f"the mount did not come up: {text}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            ran = subprocess.run([self.binary, "umount", str(self.mountpoint)], timeout=STOP_SECONDS_MAX)
            if ran.returncode:
                subprocess.run(["umount", "-l", str(self.mountpoint)])
                self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.scratch)

    def cpu_seconds(self):
        """User and system time of the process since its start."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self):
        """Resident memory now."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise SystemExit("no VmRSS")


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
