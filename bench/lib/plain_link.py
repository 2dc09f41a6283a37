"""What a link carries with nothing but sockets at its ends: the limit of what is behind it."""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

from limits import random_data

PIECE = 1 << 20
BYTE, DATA = b"b", b"d"


class Source:
    """Sends its data, over and over, to whoever connects and says so with its first byte; else says each byte again. Ends with the
    process, or at `close`."""

    def __init__(self):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.data = open(random_data(), "rb")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while asked := connection.recv(1):
                connection.sendall(asked)
                while asked == DATA and os.sendfile(connection.fileno(), self.data.fileno(), 0, 64 * PIECE):
                    pass

    def rate(self, prefix, mib, connections):
        """GB/s of a receiver behind `prefix`, over so many connections."""
        return self._from(prefix, "rate", mib, connections)

    def round_trip(self, prefix):
        """Milliseconds for a byte and back, the median of a hundred, seen from behind `prefix`."""
        return self._from(prefix, "round-trip")

    def _from(self, prefix, *what):
        command = [*prefix, sys.executable, __file__, self.address, *map(str, what)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return json.loads(out)

    def close(self):
        self.listening.close()
        self.data.close()


def connected(address):
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(address, total, times):
    buffer, left = bytearray(PIECE), total
    with connected(address) as connection:
        connection.sendall(DATA)
        while left:
            left -= connection.recv_into(buffer, min(left, PIECE))
            times.append(time.monotonic())


def receive_all(address, mib, connections):
    times, share = [], mib * PIECE // connections
    threads = [threading.Thread(target=receive, args=(address, share, times)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # From the first bytes on: how long they took to come is another number.
    return {"gbps": share * connections / (max(times) - min(times)) / 1e9}


def there_and_back(address):
    took = []
    with connected(address) as connection:
        for _ in range(100):
            begin = time.monotonic()
            connection.sendall(BYTE)
            connection.recv(1)
            took.append(time.monotonic() - begin)
    return {"ms": statistics.median(took) * 1000}


def main():
    address, what = sys.argv[1:3]
    found = receive_all(address, *map(int, sys.argv[3:])) if what == "rate" else there_and_back(address)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
