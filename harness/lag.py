"""How late the load client reacts: is it the engine that is slow, or the client?

A thread wakes at fixed times and posts a callback to the event loop, as an arriving chunk would. The lag is when that callback
ran, less when the thread was due. It holds the thread's own wake-up, the wait for the interpreter, and the queue in the loop:
an upper bound of what a chunk waits before it is stamped. A timer of the loop itself would not do: it is rounded up to 1 ms.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.clock import now_ns

PERIOD_NS = 10_000_000


class LagProbe:
    """Lag samples in ns, one per period, while `measuring` is entered."""

    def __init__(self) -> None:
        self.samples_ns: list[int] = []
        self._stop = threading.Event()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the running event loop. Samples that have not come back when it ends are not waited for."""
        thread = threading.Thread(target=self._post, args=(asyncio.get_running_loop(),), name="lag probe", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _post(self, loop: asyncio.AbstractEventLoop) -> None:
        due = now_ns()
        while True:
            due = max(due + PERIOD_NS, now_ns())  # a late thread starts a new schedule: one stall is one sample, not many
            if self._stop.wait((due - now_ns()) / 1e9):
                return
            loop.call_soon_threadsafe(self._arrived, due)

    def _arrived(self, due: int) -> None:
        self.samples_ns.append(now_ns() - due)
