"""Timing the phases of an iteration: wall clock on a CPU, events on a GPU, where a host clock would only time the launch."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Adds up the time spent in named phases until `read`, which returns nanoseconds by phase and starts anew."""

    def phase(self, name: str) -> AbstractContextManager[None]: ...

    def read(self) -> dict[str, int]: ...


class WallStopwatch:
    """`time.monotonic_ns` around each phase."""

    def __init__(self) -> None:
        self._spent: dict[str, int] = defaultdict(int)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic_ns()
        try:
            yield
        finally:
            self._spent[name] += time.monotonic_ns() - started

    def read(self) -> dict[str, int]:
        spent, self._spent = self._spent, defaultdict(int)
        return spent


class EventStopwatch:
    """CUDA events around each phase. `read` waits for the device, so call it where the loop has synchronised anyway."""

    def __init__(self) -> None:
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        try:
            yield
        finally:
            end.record()
            self._events.append((name, start, end))

    def read(self) -> dict[str, int]:
        torch.cuda.synchronize()
        spent: dict[str, int] = defaultdict(int)
        for name, start, end in self._events:
            spent[name] += int(start.elapsed_time(end) * 1e6)
        self._events = []
        return spent


def stopwatch(device: torch.device) -> Stopwatch:
    return EventStopwatch() if device.type == "cuda" else WallStopwatch()
