"""All benchmarks of the instrument, one after the other: `make perf`. Each is a module of its own with options."""

from __future__ import annotations

import runpy
import sys

import psutil

SUITE = ("perf.decode", "perf.engines", "perf.overhead", "perf.client", "perf.clients")


def main() -> None:
    # Into a pipe or a log, lines should come as they are printed.
    sys.stdout.reconfigure(line_buffering=True)
    busy = psutil.cpu_percent(0.5) / 100 * (psutil.cpu_count() or 1)
    warning = ": not idle, do not trust this" if busy > 0.3 else ""
    print(f"{busy:.2f} of {psutil.cpu_count(logical=False)} cores busy with other work{warning}")
    for name in SUITE:
        print(f"\n== {name}", flush=True)
        sys.argv = [name]
        runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main()
