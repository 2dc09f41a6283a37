"""A long or narrow link between a process and this host (limits/slow_link.c): programs started behind `prefix` meet the same addresses
of 127.0.0.1 further away."""

import dataclasses
import struct
import time

from limits import built
from process import POLL_SECONDS, Failed, Process

COUNTERS = struct.Struct("<4Q")


@dataclasses.dataclass(frozen=True)
class Port:
    """How far it is, and what goes through each way; no limit without a number."""

    address: str  # HOST:PORT
    round_trip_s: float = 0
    bytes_per_s: int = 0

    def __str__(self):
        return f"{self.address.rsplit(':', 1)[1]}:{self.round_trip_s * 1e6:.0f}:{self.bytes_per_s}"


class Link:
    """Started when made, ended by `end`; what runs behind `prefix` is ended before."""

    def __init__(self, scratch, *ports):
        self.ports, self.counters = ports, scratch / "link.counters"
        log = scratch / "link.log"
        said_ready = lambda: log.exists() and b"ready" in log.read_bytes()
        self.process = Process([built("slow_link"), self.counters, *ports], log, said_ready)
        self.process.start()

    @property
    def prefix(self):
        """A command that becomes the one behind it, at the far end."""
        return ["nsenter", f"--net=/proc/{self.process.child.pid}/ns/net", "--"]

    def passed(self, port):
        """Bytes that went to the port, and that came from it, so far."""
        at = self.ports.index(port) * COUNTERS.size
        sent, received, _, _ = COUNTERS.unpack_from(self.counters.read_bytes(), at)
        return sent, received

    def settled(self, port, seconds, seconds_max=30):
        """The same, once nothing has passed for so long: what a read has set off is over."""
        deadline = time.monotonic() + seconds_max
        last, since = self.passed(port), time.monotonic()
        while time.monotonic() - since < seconds:
            if time.monotonic() > deadline:
                raise Failed(f"bytes still pass to port {port} after {seconds_max} s")
            time.sleep(POLL_SECONDS)
            now = self.passed(port)
            if now != last:
                last, since = now, time.monotonic()
        return last

    def end(self):
        self.process.kill()
