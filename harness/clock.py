"""The one clock of the instrument: monotonic integer nanoseconds, comparable between processes of this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ns() -> int:
    """Now, in ns. Every stamp in every table comes from here (or from `time.monotonic_ns` in an engine's own process)."""
    return time.monotonic_ns()


def utc_now() -> str:
    """Wall time for people, ISO 8601 in UTC, to the second. Never subtracted."""
    return datetime.now(UTC).isoformat(timespec="seconds")
