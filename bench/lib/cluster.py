"""A volume's server, nodes that lend it a cache, and mounts, all on loopback; every process is ours and is ended at the end."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.request

from process import Failed, Process, await_true, binary, uninterrupted

# What the server, a node and a mount say once they are ready.
SERVES = re.compile(r"(?:is served at sluice://|listens at )(127\.0\.0\.1:\d+)")
MOUNTED = re.compile(r" is mounted at ")
# What one that was started with METRICS says before that.
METRICS = ("--metrics", "127.0.0.1:0")
METRICS_AT = re.compile(r"metrics at (http://127\.0\.0\.1:\d+/metrics)")


class Sluice:
    """One long-running sluice process with a log; it may be started again. `prefix` is a command that becomes it: where it runs."""

    def __init__(self, name, scratch, env, ready, prefix=()):
        self.name, self.scratch, self.env, self.ready, self.prefix = name, scratch, env, ready, prefix
        self.log, self.process = scratch / f"{name}.log", None

    def run(self, command):
        # What an earlier run said is not what this one says.
        begin = self.log.stat().st_size if self.log.exists() else 0

        def is_ready():
            return self.ready.search(self.log.read_bytes()[begin:].decode(errors="replace"))

        self.process = Process([*self.prefix, binary(), *command], self.log, is_ready, self.env)
        return self.process.start()

    def is_running(self):
        return self.process is not None and self.process.is_running()

    def metrics(self):
        """Name and labels -> number, of one that was started with METRICS (docs/monitoring.md)."""
        url = METRICS_AT.findall(self.log.read_text(errors="replace"))[-1]
        with urllib.request.urlopen(url, timeout=60) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def kill(self):
        """As a crash would."""
        if self.process:
            self.process.kill()


class Member(Sluice):
    """A `sluice serve`: of the volume, or a node. Its port is kept over a restart."""

    def __init__(self, name, meta, scratch, options, env, prefix=()):
        super().__init__(name, scratch, env, SERVES, prefix)
        self.meta, self.options, self.address = meta, options, None

    def start(self):
        found = self.run(["serve", self.meta, "--listen", self.address or "127.0.0.1:0", *self.options])
        self.address = found[1]
        return self

    def stop(self):
        self.process.stop()


class Mount(Sluice):
    """A `sluice mount`, or `sluice up`: `command` behind that word, with MOUNTPOINT where its place belongs."""

    def __init__(self, name, command, scratch, env, prefix=()):
        super().__init__(name, scratch, env, MOUNTED, prefix)
        self.path = scratch / name
        self.path.mkdir(exist_ok=True)
        self.command = [part if part != "MOUNTPOINT" else self.path for part in command]

    def start(self):
        self.run(self.command)
        return self

    def status(self):
        return status(self.path)

    def note_tier(self):
        """What a reader of the numbers has to know of it; a mount that does not answer is left out."""
        try:
            numbers = self.status()["numbers"]
        except (Failed, OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            return
        tier = numbers["tier"]
        Cluster.unstored_bytes[tier] = max(Cluster.unstored_bytes.get(tier, 0), numbers["dirty_bytes"])

    def stop(self):
        """Unmounts: returns when everything is stored and the process has ended."""
        self.note_tier()
        ran = subprocess.run([binary(), "umount", self.path], capture_output=True, text=True, timeout=600)
        if ran.returncode:
            raise Failed(f"umount of {self.path}: {ran.stderr}")
        self.process.child.wait()

    def detach(self):
        """Whatever state it is in. What a killed process leaves at its place is taken away by the next start, or by this."""
        self.kill()
        subprocess.run(["umount", "-l", self.path], capture_output=True)


def status(target):
    """What `sluice status TARGET --json` says."""
    ran = subprocess.run([binary(), "status", target, "--json"], capture_output=True, text=True, timeout=60)
    if ran.returncode:
        raise Failed(f"sluice status {target}: {ran.stderr}")
    return json.loads(ran.stdout)


class Cluster:
    """Nothing runs at first: `serve`, `add_node` and `add_mount` start what is wanted. `gateway`, if any, is the store."""

    # What every mount and every node is told besides.
    mount_options, node_options = (), ()
    # Of all mounts that were ended since this was reset: their tiers, and the most bytes that one of each had acked and not stored.
    unstored_bytes = {}

    def __init__(self, gateway=None, scratch=None):
        self.own = scratch is None
        self.scratch = pathlib.Path(scratch or tempfile.mkdtemp(prefix="sluice-cluster."))
        self.gateway, self.env = gateway, gateway.env if gateway else {}
        self.volume = self.scratch / "volume"
        self.server, self.nodes, self.mounts = None, [], []

    def __enter__(self):
        return self

    def __exit__(self, kind=None, *_):
        """Ends everything, those first that use the others; what does not end by itself is killed."""
        with uninterrupted():
            for mount in self.mounts:
                if kind is None and mount.is_running():
                    mount.note_tier()
                mount.detach()
            for member in [*self.nodes, *([self.server] if self.server else [])]:
                member.kill()
            if self.own:
                shutil.rmtree(self.scratch)

    def format(self):
        store = self.gateway.url if self.gateway else "file:objects"
        command = [binary(), "format", self.volume, "--store", store]
        ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.env}, timeout=60)
        if ran.returncode:
            raise Failed(f"sluice format: {ran.stderr}")

    def serve(self, *options):
        """Starts the volume's server; the volume is made when there is none."""
        if not self.volume.exists():
            self.format()
        self.server = Member("server", self.volume, self.scratch, options, self.env)
        return self.server.start()

    @property
    def meta(self):
        return f"sluice://{self.server.address}"

    def new_node(self, name, cache="1G", *options, prefix=()):
        """A node that is not started."""
        options = ["--name", name, "--cache", f"{self.scratch / f'{name}.cache'}:{cache}", *options, *self.node_options]
        self.nodes.append(Member(name, self.meta, self.scratch, options, self.env, prefix))
        return self.nodes[-1]

    def add_node(self, name, cache="1G", *options, prefix=()):
        """Starts a node and waits until it is a member."""
        node = self.new_node(name, cache, *options, prefix=prefix).start()
        await_true(f"{name} to be in the group", lambda: name in self.group())
        return node

    def add_mount(self, name, *options, journal="256M", prefix=()):
        """Mounts the served volume."""
        place = f"{self.scratch / f'{name}.journal'}:{journal}"
        command = ["mount", self.meta, "MOUNTPOINT", "--journal", place, *options]
        return self._mount(name, command, prefix)

    def up(self, name, *options, prefix=()):
        """Mounts the volume without a server."""
        store = ["--store", self.gateway.url] if self.gateway else []
        return self._mount(name, ["up", self.volume, "MOUNTPOINT", *store, *options], prefix)

    def _mount(self, name, command, prefix):
        mount = Mount(name, [*command, *self.mount_options], self.scratch, self.env, prefix)
        self.mounts.append(mount)
        return mount.start()

    def drop(self, mount):
        """Unmounts, and forgets the mount."""
        mount.stop()
        self.mounts.remove(mount)

    def group(self):
        """Name -> the node's numbers, as the server knows them."""
        return {node["name"]: node for node in status(self.meta)["nodes"]}
