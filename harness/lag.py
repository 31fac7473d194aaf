"""How late the load client reacts: is it the engine that is slow, or the client?

A timer of the kernel becomes readable at fixed times and the event loop watches it beside its sockets, so that a tick reaches
the loop the way an arriving chunk does. The lag is when the loop's callback ran, less when the tick was due: the wake-up of
the process and the queue in the loop, an upper bound of what a chunk waits before it is stamped. A timer of the loop itself
would not do: it is rounded up to 1 ms. Where the kernel has no such timer (macOS), a thread posts the ticks, whose own wake-up
and wait for the interpreter are then part of the lag.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.clock import now_ns

PERIOD_NS = 10_000_000
CLOCK_MONOTONIC, TFD_TIMER_ABSTIME = 1, 1  # linux/time.h, linux/timerfd.h; the clock is that of harness.clock
HAS_KERNEL_TIMER = sys.platform == "linux"


class LagProbe:
    """Lag samples in ns, one per period, while `measuring` is entered. A stall over several periods is one sample."""

    def __init__(self, kernel_timer: bool = HAS_KERNEL_TIMER) -> None:
        self.samples_ns: list[int] = []
        self._ticks = self._timer_ticks if kernel_timer else self._thread_ticks

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the running event loop. Ticks that have not come through when it ends are not waited for."""
        with self._ticks(asyncio.get_running_loop()):
            yield

    @contextmanager
    def _timer_ticks(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        due = now_ns() + PERIOD_NS
        timer = _kernel_timer(due, PERIOD_NS)

        def ticked() -> None:
            nonlocal due
            ticks = int.from_bytes(os.read(timer, 8), sys.byteorder)
            self.samples_ns.append(now_ns() - due)
            due += ticks * PERIOD_NS

        loop.add_reader(timer, ticked)
        try:
            yield
        finally:
            loop.remove_reader(timer)
            os.close(timer)

    @contextmanager
    def _thread_ticks(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._post, args=(loop, stop), name="lag probe", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _post(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        due = now_ns()
        while True:
            due = max(due + PERIOD_NS, now_ns())  # a late thread starts a new schedule: one stall is one sample, not many
            if stop.wait((due - now_ns()) / 1e9):
                return
            loop.call_soon_threadsafe(self._arrived, due)

    def _arrived(self, due: int) -> None:
        self.samples_ns.append(now_ns() - due)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class _Schedule(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


def _kernel_timer(first_ns: int, period_ns: int) -> int:
    """A descriptor that becomes readable at `first_ns` of the monotonic clock, then every `period_ns`; timerfd_create(2)."""
    kernel = ctypes.CDLL(None, use_errno=True)
    timer = int(kernel.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    schedule = _Schedule(_Timespec(*divmod(period_ns, 10**9)), _Timespec(*divmod(first_ns, 10**9)))
    if timer < 0 or kernel.timerfd_settime(timer, TFD_TIMER_ABSTIME, ctypes.byref(schedule), None):
        raise OSError(ctypes.get_errno(), "the lag probe's kernel timer could not be set")
    return timer
