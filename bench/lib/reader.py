"""One reader of a measurement, a process of its own: reads files in order, 1 MiB O_DIRECT, and says how long the longest read took.

usage: reader.py SECONDS FILE...    (0 seconds: once)"""

import json
import mmap
import os
import sys
import time

BYTES = 1 << 20


def main():
    seconds, files = float(sys.argv[1]), sys.argv[2:]
    buffer = mmap.mmap(-1, BYTES)
    read_bytes, longest, begin = 0, 0.0, time.monotonic()
    while True:
        for name in files:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
            at, size = 0, os.fstat(fd).st_size
            while at < size:
                before = time.monotonic()
                done = os.preadv(fd, [buffer], at)
                now = time.monotonic()
                if done == 0:
                    raise SystemExit(f"{name} ends at {at}, not at {size}")
                longest, at, read_bytes = max(longest, now - before), at + done, read_bytes + done
                if seconds and now - begin >= seconds:
                    break
            os.close(fd)
        if time.monotonic() - begin >= seconds:
            break
    print(json.dumps({"bytes": read_bytes, "longest_s": longest, "seconds": time.monotonic() - begin}))


main()
