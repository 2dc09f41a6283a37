"""One process of ours in the foreground: started, awaited, looked at, ended."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 30
STOP_SECONDS_MAX = 600
# A condition of another process can only be asked again: often enough not to be seen in a measurement.
POLL_SECONDS = 0.02


class Failed(Exception):
    """A process did not do what it was started for; the text has its last words."""


def binary():
    """The sluice to run: SLUICE_BIN, or the release build."""
    path = os.environ.get("SLUICE_BIN", str(ROOT / "target/release/sluice"))
    if not os.access(path, os.X_OK):
        raise SystemExit(f"{path} is missing: run `make build` first, or set SLUICE_BIN")
    return path


@contextlib.contextmanager
def uninterrupted():
    """A signal that ends the run waits until this is over: what was started is ended whole."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def await_true(what, condition, seconds=START_SECONDS_MAX):
    """Asks until the condition gives something true, which is returned."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds} s in vain for {what}")
        time.sleep(POLL_SECONDS)


class Process:
    """A command whose output goes to a file. `ready` is asked until it gives something true, or the process ends."""

    def __init__(self, command, log, ready, env=None):
        self.command = [str(part) for part in command]
        self.log, self.env = pathlib.Path(log), {**os.environ, **(env or {})}
        self.ready, self.child = ready, None

    def start(self):
        with open(self.log, "ab") as out:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env)
        try:
            return await_true(f"`{self.name()}` to be ready", self._is_ready)
        except Failed:
            self.kill()
            raise

    def _is_ready(self):
        code = self.child.poll()
        if code is not None:
            raise Failed(f"`{self.name()}` ended with status {code}: {self.words()}")
        return self.ready()

    def name(self):
        return " ".join([os.path.basename(self.command[0]), *self.command[1:3]])

    def words(self):
        """What it has printed, the end of it."""
        return self.log.read_text(errors="replace")[-2000:].strip() if self.log.exists() else ""

    def is_running(self):
        return self.child is not None and self.child.poll() is None

    def kill(self):
        """As a crash would; returns when the kernel has torn it down."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def stop(self, seconds=STOP_SECONDS_MAX):
        """As an operator would; killed when it takes longer than that."""
        if not self.is_running():
            return
        self.child.send_signal(signal.SIGTERM)
        try:
            code = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"`{self.name()}` did not end in {seconds} s: {self.words()}") from None
        if code:
            raise Failed(f"`{self.name()}` ended with status {code}: {self.words()}")

    def cpu_seconds(self):
        """User and system time since the start."""
        fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self, field="VmRSS"):
        """Resident memory now; the most that it has been, with `VmHWM`."""
        for line in pathlib.Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise Failed(f"no {field} of `{self.name()}`")
