"""How fast this machine is now: fixed work, timed on one core before every launch, for clocks that no driver tells.

The work is sha256 over a buffer that stays in the cache: its time follows the clock, or the share of a core that a host leaves
to its guest, and nothing of the engine. A median over many pieces does not see a neighbour's blip.
"""

from __future__ import annotations

import hashlib
import statistics
import time

PIECE = bytes(1 << 18)


def calibrate(seconds: float | None) -> float | None:
    """Median ms per piece over so many seconds of pieces; null when no time is given."""
    if seconds is None:
        return None
    spent: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        hashlib.sha256(PIECE)
        spent.append(time.perf_counter() - began)
    return round(statistics.median(spent) * 1e3, 5)
