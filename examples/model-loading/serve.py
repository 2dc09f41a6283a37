#!/usr/bin/env python3
"""A program that loads a model: it starts up, as one that imports a framework and prepares its devices does, and reads the weights then.

    serve.py MODEL_DIR [--start-up SECONDS]

The start-up is work of the processor for so many seconds: it stands for what torch or vLLM do before they open the first file. The last line
it prints is JSON: the seconds of both parts, the tensors and their bytes."""

import argparse
import json
import time

import safetensors


def start_up(seconds):
    """Compiles modules until the time is over."""
    source = "\n".join(f"def f{n}(x):\n    return [x * {n} + y for y in range({n})]" for n in range(200))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        exec(compile(source, "framework", "exec"), {})


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model")
    args.add_argument("--start-up", type=float, default=5, metavar="SECONDS")
    args = args.parse_args()
    began = time.monotonic()
    start_up(args.start_up)
    started = time.monotonic()
    tensors = safetensors.load(args.model)
    loaded = time.monotonic()
    told = {
        "start_up_s": round(started - began, 2),
        "load_s": round(loaded - started, 2),
        "total_s": round(loaded - began, 2),
        "tensors": len(tensors),
        "bytes": sum(map(len, tensors.values())),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
