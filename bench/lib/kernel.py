"""Settings of the whole host, as long as a measurement needs them."""

import contextlib
import pathlib

from process import Failed

ENABLE_URING = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
PIPE_MAX_SIZE = pathlib.Path("/proc/sys/fs/pipe-max-size")
# A reply of 1 MiB with its header takes 257 page slots, and pieces that came from a socket more.
PIPE_BYTES = 8 << 20


@contextlib.contextmanager
def consent(options):
    """Lets FUSE use io_uring, if one of these options of a mount asks for rings."""
    if not any("uring" in option for option in options):
        yield
        return
    try:
        before = ENABLE_URING.read_text().strip()
        ENABLE_URING.write_text("Y")
    except OSError as error:
        raise Failed(f"{error}: FUSE over io_uring needs Linux 6.14 with CONFIG_FUSE_IO_URING, and root to turn it on") from error
    try:
        yield
    finally:
        ENABLE_URING.write_text(before)


@contextlib.contextmanager
def large_pipes():
    """Pipes as the limit programs have them: what a host that splices large replies has to set (fs.pipe-max-size)."""
    before = PIPE_MAX_SIZE.read_text().strip()
    if int(before) >= PIPE_BYTES:
        yield
        return
    PIPE_MAX_SIZE.write_text(str(PIPE_BYTES))
    try:
        yield
    finally:
        PIPE_MAX_SIZE.write_text(before)
