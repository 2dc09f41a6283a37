"""The connections of many mounts, without the mounts: each says hello as a mount does and is let in (docs/protocol.md, "Frame" and
"Handshake"), one lane to the server, one of each class to every node."""

import resource
import select
import socket
import struct
import threading

from process import Failed, await_true

MOUNT, SMALL, BULK = 1, 1, 2
HELLO, WELCOME, REQUEST, REPLY, PING, PONG = 1, 2, 4, 5, 10, 11
MEMBERS = 213
HEADER_BYTES = 32
# Connections that are begun before their answers are looked for: less than a listening socket queues.
AT_ONCE = 256


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(kind, body=b"", method=0, number=0):
    # Format, kind, method, length; number; epoch, flags and time; CRC of the body.
    head = struct.pack("<BBHIQIII", 0xF5, kind, method, len(body), number, 0, 0, crc32c(body) if body else 0)
    return head + struct.pack("<I", crc32c(head)) + body


def hello(lane):
    body = struct.pack("<HHBBH16sQQII", 1, 1, MOUNT, lane, 0, bytes(16), 0, 0, 64, 16 << 20) + b"crowd"
    return frame(HELLO, body)


class Crowd:
    """`mounts` times the connections of a mount to `server` and `nodes`, addresses as HOST:PORT. Open until `close`."""

    def __init__(self, server, nodes, mounts):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = mounts * (1 + 2 * len(nodes)) + 100
        if soft < wanted:
            if hard < wanted:
                raise SystemExit(f"{wanted} open files are needed, {hard} are allowed: ulimit -n")
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self.poll, self.waiting, self.open, self.to_server = select.epoll(), {}, [], []
        self.keeper = None
        small, bulk = hello(SMALL), hello(BULK)
        for _ in range(mounts):
            self.to_server.append(self._begin(server, small))
            for node in nodes:
                self._begin(node, small)
                self._begin(node, bulk)
        self._finish(0)

    def _begin(self, address, words):
        host, port = address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=30)
        connection.sendall(words)
        self.poll.register(connection.fileno(), select.EPOLLIN)
        self.waiting[connection.fileno()] = connection
        self.open.append(connection)
        self._finish(AT_ONCE)
        return connection

    def _finish(self, left):
        """Takes answers until at most so many are awaited."""
        while len(self.waiting) > left:
            ready = self.poll.poll(30)
            if not ready:
                raise Failed(f"{len(self.waiting)} connections were not let in")
            for fd, _ in ready:
                connection = self.waiting.pop(fd)
                self.poll.unregister(fd)
                kind, _, _ = receive(connection)
                if kind != WELCOME:
                    raise Failed(f"a connection was answered with kind {kind}")

    def members(self):
        """How many members each mount is told of; the fewest."""
        fewest = None
        for connection in self.to_server:
            connection.sendall(frame(REQUEST, struct.pack("<I", 0), MEMBERS, self._next(connection)))
            kind = PING
            while kind != REPLY:
                kind, _, body = receive(connection)
                if kind == PING:
                    connection.sendall(frame(PONG))
            count = struct.unpack_from("<H", body, 2)[0]
            fewest = count if fewest is None else min(fewest, count)
        return fewest

    def _next(self, connection):
        self.numbers = getattr(self, "numbers", {})
        self.numbers[connection] = self.numbers.get(connection, 0) + 1
        return self.numbers[connection]

    def await_members(self, count):
        return await_true(f"every mount to be told of {count} nodes", lambda: self.members() == count)

    def keep(self):
        """From here on answers to pings, so that all stay connected; `members` may not be asked any more."""
        for connection in self.open:
            self.poll.register(connection.fileno(), select.EPOLLIN)
        by_fd, pong = {connection.fileno(): connection for connection in self.open}, frame(PONG)
        self.keeping = threading.Event()

        def answer():
            while self.keeping.wait(0) is False:
                for fd, _ in self.poll.poll(0.1):
                    try:
                        if receive(by_fd[fd])[0] == PING:
                            by_fd[fd].sendall(pong)
                    except (Failed, OSError):
                        # That node is gone.
                        self.poll.unregister(fd)

        self.keeper = threading.Thread(target=answer)
        self.keeper.start()

    def close(self):
        if self.keeper:
            self.keeping.set()
            self.keeper.join()
        for connection in self.open:
            connection.close()


def receive(connection):
    """One frame: its kind, number and body."""
    head = _exactly(connection, HEADER_BYTES)
    _, kind, _, length, number = struct.unpack_from("<BBHIQ", head)
    return kind, number, _exactly(connection, length)


def _exactly(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise Failed("a connection of the crowd was closed")
        data += piece
    return data
