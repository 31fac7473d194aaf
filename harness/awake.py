"""Cores that do not fall asleep while a run measures, where the engine's work is elsewhere (on a GPU).

A core that sleeps deeply takes up to hundreds of microseconds to wake, one that a virtual machine has halted milliseconds,
since its host has to wake it; meanwhile a chunk that arrived waits unstamped, and so does the request that follows it. Linux
lets a process say how late its cores may wake, for as long as it holds a file open (PM QoS, kernel documentation
power/pm_qos_interface). Cores that wait awake give way to any work at once. An engine that computes on the CPU keeps its cores
awake by itself, and a waiting sibling of a core would slow it: such rigs do not ask.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUEST = Path("/dev/cpu_dma_latency")
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
HALTED_BY_HOST = "haltpoll"  # the driver of a guest says that a halt ends in 1 us, and cannot know what its host makes of it
SHALLOW_US = 10  # lets a core of our own halt (1 to 2 us), which leaves its sibling the power and the turbo


@contextmanager
def cores_awake(wanted: bool, request: Path = REQUEST, driver: Path = DRIVER) -> Iterator[int | None]:
    """Hold the cores awake while entered, if `wanted`. Yields the latest wake-up asked for in us; null where none was.

    The kernel ends the request with this process, however that ends. It takes the right to write `request`, which containers
    and plain users often lack: then nothing is held and the facts of the serving say so.
    """
    if not wanted or (held := _open(request)) is None:
        yield None
        return
    try:
        limit_us = 0 if _read(driver) == HALTED_BY_HOST else SHALLOW_US
        os.write(held, limit_us.to_bytes(4, sys.byteorder))
        yield limit_us
    finally:
        os.close(held)


def _open(request: Path) -> int | None:
    try:
        return os.open(request, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _read(driver: Path) -> str | None:
    try:
        return driver.read_text("utf-8").strip()
    except OSError:
        return None
