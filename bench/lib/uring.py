"""The kernel's consent to FUSE over io_uring, one setting for the whole host, as long as a measurement needs it."""

import contextlib
import pathlib

from process import Failed

PARAMETER = pathlib.Path("/sys/module/fuse/parameters/enable_uring")


@contextlib.contextmanager
def consent(options):
    """Gives it if one of these options of a mount asks for rings, and puts it back at the end."""
    if not any("uring" in option for option in options):
        yield
        return
    try:
        before = PARAMETER.read_text().strip()
        PARAMETER.write_text("Y")
    except OSError as error:
        raise Failed(f"{error}: FUSE over io_uring needs Linux 6.14 with CONFIG_FUSE_IO_URING, and root to turn it on") from error
    try:
        yield
    finally:
        PARAMETER.write_text(before)
