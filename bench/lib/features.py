"""What the binary under test can be told: measurements use an option when it has it, and say so when it has not."""

import functools
import re
import subprocess

from process import binary


@functools.cache
def _help(command):
    ran = subprocess.run([binary(), *command.split(), "--help"], capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else ""


def knows(command, option=None):
    """Whether `sluice COMMAND` is there, and has this option."""
    text = _help(command)
    return bool(text) and (option is None or re.search(rf"{re.escape(option)}\b", text) is not None)


def missing(command, option=None):
    """Why a row is not measured, or nothing."""
    if knows(command, option):
        return ""
    return f"this sluice has no `{command}{f' {option}' if option else ''}`"
