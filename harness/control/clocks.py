"""Findings from clocks: the same silicon at the same speed. Only what was sampled inside the measured windows counts.

A clock contract asks for enough busy samples, a steady clock within each arm, and medians and means within 1 % of each other.
What falls short of the first two is told as a note: it widens the interval. A difference between arms confounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.control.factors import remedy
from harness.control.findings import Finding, Side, values_of
from harness.metrics import Row, is_null

OFFSET_LIMIT = 0.01
SPREAD_LIMIT = 0.05
BUSY = 0.5
FEWEST = 30
STUCK = 0.5  # share of the highest clock below which a busy device is stuck

Clocks = NDArray[np.float64]


def clocks(plain: Side, arm: Side, concurrency: int) -> list[Finding]:
    """Medians and means of each device's clock under load, in both arms, and whether either is stuck low."""
    sides = [_busy_clocks(side, concurrency) for side in (plain, arm)]
    found: list[Finding] = []
    for device in sorted(sides[0].keys() & sides[1].keys()):
        a, b = sides[0][device], sides[1][device]
        found += [*_offset(device, a, b), *_stuck(device, a, b, plain), *_contract(device, a, b)]
    return found


def _offset(device: str, a: Clocks, b: Clocks) -> Iterator[Finding]:
    offsets = [abs(float(centre(b)) / float(centre(a)) - 1) for centre in (np.median, np.mean)]
    if max(offsets) > OFFSET_LIMIT:
        yield Finding(f"clock of {device}", "confounder", _mhz(a), _mhz(b), remedy("clock"))


def _stuck(device: str, a: Clocks, b: Clocks, side: Side) -> Iterator[Finding]:
    """Against the highest clock that the device names, where the host facts hold it."""
    told = values_of(side, "host").get(f"{device}_max_clock_mhz", set())
    highest = max((float(json.loads(value)) for value in told), default=0.0)
    if highest and min(np.median(a), np.median(b)) < STUCK * highest:
        what = f"it can do {highest:.0f} MHz; find out what holds it down (power, heat, a lock) and repeat"
        yield Finding(f"clock of {device} stuck", "confounder", _mhz(a), _mhz(b), what)


def _contract(device: str, a: Clocks, b: Clocks) -> Iterator[Finding]:
    if min(len(a), len(b)) < FEWEST:
        counts = f"{len(a)} samples", f"{len(b)} samples"
        yield Finding(f"clock of {device}", "note", *counts, f"under {FEWEST} busy samples a clock is not well known")
    spreads = [float(np.ptp(np.percentile(x, (5, 95))) / np.median(x)) for x in (a, b)]
    if max(spreads) > SPREAD_LIMIT:
        shown = f"spread {100 * spreads[0]:.0f} %", f"spread {100 * spreads[1]:.0f} %"
        yield Finding(f"clock of {device}", "note", *shown, "a clock that wanders widens every interval; lock it")


def _mhz(clocks: Clocks) -> str:
    return f"{np.median(clocks):.0f} MHz"


def _busy_clocks(side: Side, concurrency: int) -> dict[str, Clocks]:
    """Clock samples of each device inside this arm's measured windows, idle ones left out where utilisation is known."""
    windows: dict[str, list[tuple[int, int]]] = {}
    for serving, start, end in _windows(side, concurrency):
        windows.setdefault(serving, []).append((start, end))
    found: dict[str, list[float]] = {}
    for sample in side.samples:
        inside = any(start <= int(sample["at_ns"]) <= end for start, end in windows.get(str(sample["serving_id"]), ()))
        if inside and not is_null(sample["clock_mhz"]) and _is_busy(sample):
            found.setdefault(str(sample["device"]), []).append(float(sample["clock_mhz"]))
    return {device: np.array(values) for device, values in found.items()}


def _is_busy(sample: Row) -> bool:
    return is_null(sample["utilization"]) or float(sample["utilization"]) >= BUSY


def _windows(side: Side, concurrency: int) -> Iterator[tuple[str, int, int]]:
    """(serving, first send, last end) of every measured cell."""
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in side.measured(concurrency):
        cells.setdefault((str(row["serving_id"]), str(row["cell_id"])), []).append(row)
    for (serving, _), rows in cells.items():
        yield serving, min(int(r["sent_ns"]) for r in rows), max(int(r["ended_ns"]) for r in rows)
