"""Running the limit programs, and limit and product in turns."""

import json
import pathlib
import statistics
import subprocess

LIMITS = pathlib.Path(__file__).resolve().parent.parent / "limits"
GIB = 2**30


def program(name, *arguments):
    """Runs one of the limit programs; its first line is JSON."""
    ran = subprocess.run([str(LIMITS / name), *map(str, arguments)], capture_output=True, text=True)
    if not ran.stdout.startswith("{"):
        raise SystemExit(f"{name} {arguments}: {ran.stdout}{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[0])


def in_turns(rounds, limit, product):
    """A B A B: two lists of results."""
    values = {"limit": [], "product": []}
    for round_number in range(rounds):
        values["limit"].append(limit(round_number))
        values["product"].append(product(round_number))
    return values


def median(values, side, key):
    return statistics.median(value[key] for value in values[side])
