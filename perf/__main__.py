"""All benchmarks of the instrument, one after the other: `make perf`. Each is a module of its own with options."""

from __future__ import annotations

import runpy
import sys

import psutil

SUITE = ("perf.decode", "perf.overhead", "perf.client")


def main() -> None:
    # Into a pipe or a log, lines should come as they are printed.
    sys.stdout.reconfigure(line_buffering=True)
    load = psutil.getloadavg()[0]
    print(
        f"load average {load:.2f} on {psutil.cpu_count(logical=False)} cores"
        + (": not idle, do not trust this" if load > 1 else "")
    )
    for name in SUITE:
        print(f"\n== {name}", flush=True)
        sys.argv = [name]
        runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main()
