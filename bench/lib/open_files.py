"""Opens many files and keeps them open, while large ones are read in order by as many threads.

usage: open_files.py MOUNTPOINT FILES READERS SECONDS    (the large ones are MOUNTPOINT/file0 to READERS - 1). One JSON line."""

import json
import os
import pathlib
import resource
import sys
import threading
import time

PIECE = 128 << 10
SMALL = b"s" * 8192


def open_many(folder, count):
    """Files of 8 KiB: more than is kept inline, so that each has an object behind it. Each is read once."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}").write_bytes(SMALL)
    opened = []
    for number in range(count):
        fd = os.open(folder / f"{number}", os.O_RDONLY)
        if os.pread(fd, len(SMALL), 0) != SMALL:
            sys.exit(f"{folder / str(number)} has wrong bytes")
        opened.append(fd)
    return opened


def read_again_and_again(path, until, counts):
    """Buffered, in order; the page cache is dropped before each pass, so that the mount is asked."""
    fd, buffer, count = os.open(path, os.O_RDONLY), bytearray(PIECE), 0
    while time.monotonic() < until:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(fd, 0, os.SEEK_SET)
        while time.monotonic() < until and (done := os.readv(fd, [buffer])):
            count += done
    counts.append(count)


def main():
    mountpoint, files, readers, seconds = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
    wanted = files + readers + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    opened = open_many(mountpoint / "many", files)
    counts, until = [], time.monotonic() + seconds
    started = [
        threading.Thread(target=read_again_and_again, args=(mountpoint / f"file{number}", until, counts)) for number in range(readers)
    ]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if len(counts) < readers:
        sys.exit("a reader failed")
    print(json.dumps({"open": len(opened), "gbps": sum(counts) / seconds / 1e9}))


main()
