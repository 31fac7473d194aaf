"""The load client: sends requests, keeps what arrives, decides nothing.

Closed load keeps `concurrency` requests in flight; open load sends at seeded Poisson times whatever comes back. Inside a window
there is no parsing, redraw, retry or garbage collection: chunks are stamped by the adapter as they arrive and only appended
here. A request that fails is a result with `error`; an engine that is gone ends the window.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness.clock import now_ns
from harness.engines.base import Chunk, DeadEngineError, Engine, Request
from harness.lag import LagProbe


@dataclass(frozen=True, slots=True)
class Result:
    """What one request brought. `scheduled_ns` is when the load wanted it sent; `ended_ns` its last chunk, or its error.

    `sent_ns` is when it left over a connection that stood, where the engine tells that, else when the engine was asked.
    """

    request: Request
    scheduled_ns: int
    sent_ns: int
    ended_ns: int
    chunks: tuple[Chunk, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """Results in the order of the requests asked, and the lag of the event loop meanwhile (ns)."""

    results: tuple[Result, ...]
    lag_samples: tuple[int, ...]


async def run_window(
    engine: Engine,
    requests: Sequence[Request],
    *,
    timeout_s: float,
    concurrency: int | None = None,
    rate_rps: float | None = None,
    seed: int = 0,
) -> Window:
    """Send every request once: `concurrency` at a time (closed), or at `rate_rps` (open), exactly one of the two.

    Raises DeadEngineError when the engine says it is gone, or when as many requests in a row as are in flight (3 at least)
    time out without a token: a hanging engine would otherwise cost one timeout per request.
    """
    if (concurrency is None) == (rate_rps is None):
        raise ValueError("run_window: give either concurrency (closed load) or rate_rps (open load)")
    if len({request.request_id for request in requests}) != len(requests):
        raise ValueError("run_window: two requests have the same request_id; every request of a window needs its own")
    client = _Client(engine, timeout_s, silent_limit=max(concurrency or 0, 3))
    probe = LagProbe()
    with _no_garbage_collection(), probe.measuring():
        try:
            async with asyncio.TaskGroup() as group:
                if rate_rps is None:
                    queue = iter(requests)
                    for _ in range(concurrency or 0):
                        group.create_task(_worker(client, queue))
                else:
                    group.create_task(_arrivals(client, requests, rate_rps, seed, group))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # it ended the window; others failed while cancelled for it
    return Window(tuple(client.results[r.request_id] for r in requests), tuple(probe.samples_ns))


def arrivals_ns(count: int, rate_rps: float, seed: int) -> list[int]:
    """Poisson arrival times in ns from the start, the first at 0. The same seed gives the same times in every arm."""
    draw = random.Random(seed)
    times, at = [], 0.0
    for _ in range(count):
        times.append(round(at * 1e9))
        at += draw.expovariate(rate_rps)
    return times


async def _worker(client: _Client, queue: Iterator[Request]) -> None:
    for request in queue:
        await client.send(request, scheduled_ns=None)


async def _arrivals(client: _Client, requests: Sequence[Request], rate_rps: float, seed: int, group: asyncio.TaskGroup) -> None:
    start = now_ns()
    for request, after in zip(requests, arrivals_ns(len(requests), rate_rps, seed), strict=True):
        if (wait := start + after - now_ns()) > 0:
            await asyncio.sleep(wait / 1e9)
        group.create_task(client.send(request, scheduled_ns=start + after))


class _Client:
    """Sends single requests to one engine and keeps their results by request id."""

    def __init__(self, engine: Engine, timeout_s: float, silent_limit: int) -> None:
        self.results: dict[str, Result] = {}
        self._engine = engine
        self._timeout_s = timeout_s
        self._silent = 0
        self._silent_limit = silent_limit

    async def send(self, request: Request, scheduled_ns: int | None) -> None:
        chunks: list[Chunk] = []
        asked_ns = now_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in self._engine.generate(request):
                    chunks.append(chunk)  # noqa: PERF401 - a comprehension loses what came before a failure
        except DeadEngineError:
            raise
        except TimeoutError:
            error: str | None = f"timeout: no end after {self._timeout_s:g} s, {len(chunks)} chunks arrived"
            self._count_silence(chunks)
        except Exception as failure:  # noqa: BLE001 - the one place where a failure becomes a row
            error = f"{type(failure).__name__}: {failure}"
        else:
            error = _incomplete(chunks)
            self._silent = 0
        ended_ns = chunks[-1].arrived_ns if chunks and error is None else now_ns()
        at = asked_ns if scheduled_ns is None else scheduled_ns
        sent_ns = chunks[0].sent_ns if chunks else None
        self.results[request.request_id] = Result(request, at, sent_ns or asked_ns, ended_ns, tuple(chunks), error)

    def _count_silence(self, chunks: Sequence[Chunk]) -> None:
        self._silent = 0 if chunks else self._silent + 1
        if self._silent >= self._silent_limit:
            raise DeadEngineError(f"engine hangs: {self._silent} requests in a row timed out without a token")


def _incomplete(chunks: Sequence[Chunk]) -> str | None:
    """Why a stream that ended without an exception is still a failure, or null."""
    if not any(chunk.token_ids for chunk in chunks):
        return "empty: the stream ended without a token"
    if chunks[-1].finish is None:
        return "truncated: the stream ended without a finish reason"
    return None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection over a large heap stalls the loop for tens of ms, at a moment that no arm deserves more than another."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
