"""A group of processes that together have only so much memory, page cache included (cgroup v1 or v2)."""

import os
import pathlib

from process import Failed, await_true, uninterrupted

ROOT = pathlib.Path("/sys/fs/cgroup")


def _place():
    """The folder where a group can be made, and the name of its limit."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
    enabled = ROOT / "cgroup.subtree_control"
    if enabled.exists() and "memory" in enabled.read_text().split():
        return ROOT, "memory.max"
    raise Failed("no cgroup with a limit of memory can be made here")


class MemoryGroup:
    """Removed at the end, once its processes have ended."""

    def __init__(self, limit_bytes):
        parent, limit = _place()
        self.path = parent / f"sluice-bench-{os.getpid()}"
        try:
            self.path.mkdir()
            (self.path / limit).write_text(str(limit_bytes))
        except OSError as error:
            raise Failed(f"{self.path}: {error}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with uninterrupted():
            await_true(f"{self.path} to be empty", self._remove)

    def _remove(self):
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True

    @property
    def prefix(self):
        """A command that becomes the one behind it, in the group."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path]
