"""A real S3 server, versitygw over a directory of ours; its access log says what it was asked, the kernel what it sent."""

import collections
import contextlib
import pathlib
import re
import shutil
import socket
import urllib.error
import urllib.request

from process import Failed, Process, await_true

ACCESS, SECRET, BUCKET = "sluicedemo", "sluicedemo-secret", "bucket"
# Fields of a line of the log, which follows S3's server access log.
OPERATION, STATUS, OBJECT_BYTES = 6, 9, 12
# What requests of our own ask for.
MARK = "sluice-mark-"


def free_port():
    """One that was free a moment ago: versitygw cannot be handed a listening socket."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Gateway:
    """Started when made. `url` is the STORE of a volume, `env` what lets sluice in."""

    def __init__(self, scratch):
        tool = shutil.which("versitygw")
        if not tool:
            raise SystemExit("versitygw is missing: `make deps` installs it; then put its folder on PATH (scripts/tools.sh)")
        self.folder = pathlib.Path(scratch) / "s3"
        (self.folder / "buckets" / BUCKET).mkdir(parents=True)
        self.access_log, self.port, self.marks = self.folder / "access.log", free_port(), 0
        self.url = f"s3://{BUCKET}/volume?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"
        self.env = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        command = [tool, "--quiet", "--port", f"127.0.0.1:{self.port}", "--access", ACCESS, "--secret", SECRET]
        # As S3 does; by itself it closes a connection after each answer.
        command += ["--keep-alive", "--access-log", self.access_log, "posix", self.folder / "buckets"]
        self.process = Process(command, self.folder / "log", self._listens)
        self.start()

    def _listens(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        """As a failed machine would."""
        self.process.kill()

    def start(self):
        """Again, with everything that was stored before, at the same port. What it was asked is counted from here."""
        self.log_begin = self.access_log.stat().st_size if self.access_log.exists() else 0
        self.process.start()

    def asked(self):
        """Requests by kind ("GetObject"), and bytes that it has sent, headers included, since it was started."""
        # Bytes first: what the log says came before them.
        written_bytes = self._written_bytes()
        self._await_log()
        kinds, stored_bytes = collections.Counter(), 0
        log = self.access_log.read_bytes()[self.log_begin :]
        for line in log.decode().splitlines():
            if line.startswith("log starts ") or MARK in line:
                continue
            # The time, in brackets, has a space in it.
            fields = re.sub(r"\[.*?\]", "-", line, count=1).split()
            if len(fields) <= OBJECT_BYTES or not fields[OBJECT_BYTES].isdigit():
                raise Failed(f"{self.access_log} has a line that is no access: {line}")
            kind = fields[OPERATION].removeprefix("s3_")
            kinds[kind] += 1
            stored_bytes += int(fields[OBJECT_BYTES]) if kind == "PutObject" and fields[STATUS] == "200" else 0
        return kinds, max(0, written_bytes - stored_bytes - len(log))

    def _written_bytes(self):
        """What it gave to write(2) and sendfile(2): answers, files of objects, its log. The log says 0 of answers that it
        streams, and a proxy that counts would stand in the way of what is measured."""
        counts = pathlib.Path(f"/proc/{self.process.child.pid}/io").read_text()
        return int(re.search(r"^wchar: (\d+)", counts, re.MULTILINE)[1])

    def _await_log(self):
        """A line is written after its answer was sent: a request of ours, which it refuses, is behind all others."""
        self.marks += 1
        mark = f"{MARK}{self.marks}-"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{BUCKET}/{mark}").close()
        await_true("the store's access log", lambda: mark in self.access_log.read_text())
