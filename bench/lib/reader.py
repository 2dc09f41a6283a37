"""One reader of a measurement, a process of its own: reads files in order, 1 MiB at a time, and says how long reads took.

usage: reader.py [--buffered] [--data FILE] [--slow SECONDS] SECONDS FILE...    (0 seconds: once)

--data: each file is a piece of that one; every byte is compared. One JSON line: bytes, seconds, first_s (open and the first byte),
longest_s, and `slow`: when each read that took longer than --slow ended (by the clock that all processes share), and how long it took."""

import argparse
import ctypes
import json
import mmap
import os
import sys
import time

BYTES = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--buffered", action="store_true")
    parser.add_argument("--data", help="what the files are pieces of; file K of them is FILE[K * its size:]")
    parser.add_argument("--slow", type=float, default=0.2)
    parser.add_argument("seconds", type=float)
    parser.add_argument("files", nargs="+")
    return parser.parse_args()


class Comparison:
    """Of what was read into `buffer` with what the file `fileK` must hold there: one look at each byte, no copy."""

    def __init__(self, path, buffer):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        address = lambda memory: ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.data_at, self.buffer_at = address(self.data), address(buffer)
        self.memcmp = ctypes.CDLL(None).memcmp
        self.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def holds(self, name, size, at, count):
        number = int("".join(filter(str.isdigit, os.path.basename(name))))
        begin = (number * size + at) % len(self.data)
        return begin + count <= len(self.data) and self.memcmp(self.data_at + begin, self.buffer_at, count) == 0


def main():
    args = arguments()
    buffer = mmap.mmap(-1, BYTES)
    right = Comparison(args.data, buffer).holds if args.data else lambda *_: True
    flags = os.O_RDONLY | (0 if args.buffered else os.O_DIRECT)
    read_bytes, longest, first, slow, begin = 0, 0.0, None, [], time.monotonic()
    over = lambda: args.seconds and time.monotonic() - begin >= args.seconds
    while True:
        for name in args.files:
            before = time.monotonic()
            fd = os.open(name, flags)
            at, size = 0, os.fstat(fd).st_size
            while at < size and not over():
                done = os.preadv(fd, [buffer], at)
                now = time.monotonic()
                if done == 0:
                    sys.exit(f"{name} ends at {at}, not at {size}")
                if not right(name, size, at, done):
                    sys.exit(f"{name} has wrong bytes between {at} and {at + done}")
                first, longest = now - begin if first is None else first, max(longest, now - before)
                if now - before > args.slow:
                    slow.append((now, now - before))
                at, read_bytes, before = at + done, read_bytes + done, time.monotonic()
            os.close(fd)
            if over():
                break
        if time.monotonic() - begin >= args.seconds:
            break
    seconds = time.monotonic() - begin
    print(json.dumps({"bytes": read_bytes, "longest_s": longest, "seconds": seconds, "first_s": first, "slow": slow}))


main()
