"""Metrics of a whole cell: throughput over the window in which all slots are busy, and the concurrency that was reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.metrics.rows import Row, Rows, succeeded
from harness.metrics.stream import token_chunks
from harness.metrics.value import Maybe, Missing


@dataclass(frozen=True, slots=True)
class Window:
    """Interval on the monotonic clock, open at the start and closed at the end, in ns."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, at_ns: int) -> bool:
        return self.start_ns < at_ns <= self.end_ns


@dataclass(frozen=True, slots=True)
class Throughput:
    """Delivered tokens over seconds, kept apart so that cells pool as sum over sum."""

    tokens: int
    seconds: float

    @property
    def tps(self) -> float:
        return self.tokens / self.seconds


def measured(cell: Rows) -> list[Row]:
    """The measured requests of a cell, failed ones included: they too held a slot."""
    return [row for row in cell if row["phase"] == "measured"]


def steady_window(cell: Rows, concurrency: int) -> Window | Missing:
    """From when the `concurrency`-th request is in flight to when fewer are for good, because no prompts are left.

    The short dips between a request's end and the next one's start lie inside it. At the same ns an end
    is counted before a start.
    """
    spans = [(int(row["sent_ns"]), int(row["ended_ns"])) for row in measured(cell)]
    events = sorted([(sent, 1) for sent, _ in spans] + [(ended, -1) for _, ended in spans])
    start = end = None
    in_flight = 0
    for at, change in events:
        if change < 0 and in_flight >= concurrency:
            end = at
        in_flight += change
        if start is None and in_flight >= concurrency:
            start = at
    if start is None or end is None:
        return Missing("concurrency_not_reached")
    return Window(start, end) if end > start else Missing("empty_window")


def is_one_wave(cell: Rows, concurrency: int) -> bool:
    """Whether the requests fill several slots once: none takes the place of one that ends."""
    return concurrency > 1 and len(measured(cell)) <= concurrency


def rate_window(cell: Rows, concurrency: int) -> Window | Missing:
    """The steady window; of one wave of several requests all the time from the first send to the last end.

    Where nobody takes the place of a request that ends, the steady window is the prefill of all and ends with the shortest
    answer, whose length then decides the rate.
    """
    window, rows = steady_window(cell, concurrency), measured(cell)
    if isinstance(window, Missing) or not is_one_wave(cell, concurrency):
        return window
    return Window(min(int(row["sent_ns"]) for row in rows), max(int(row["ended_ns"]) for row in rows))


def output_tps(cell: Rows, concurrency: int) -> Throughput | Missing:
    """Tokens that arrived inside the steady window over its length; tokens of failed requests are not counted.

    Of one wave (a cell that asks as many requests as run at once) the time is from the first send to the last end.
    """
    window = rate_window(cell, concurrency)
    if isinstance(window, Missing):
        return window
    chunks = (chunk for row in succeeded(cell) for chunk in token_chunks(row))
    return Throughput(sum(tokens for at, tokens in chunks if window.holds(at)), window.seconds)


def output_tps_end_to_end(cell: Rows) -> Throughput | Missing:
    """Delivered tokens over the time from the first send to the last end, ramp-up and tail included."""
    rows = succeeded(cell)
    if not rows:
        return Missing("no_requests")
    seconds = (max(int(r["ended_ns"]) for r in rows) - min(int(r["sent_ns"]) for r in rows)) / 1e9
    return Throughput(sum(int(r["output_tokens"]) for r in rows), seconds) if seconds > 0 else Missing("empty_window")


def pool_throughput(cells: list[Throughput | Missing]) -> Throughput | Missing:
    """Sum of tokens over sum of seconds; refused with the reason of a cell that has no number."""
    if missing := next((x for x in cells if isinstance(x, Missing)), None):
        return missing
    known = [x for x in cells if isinstance(x, Throughput)]
    if not known:
        return Missing("no_requests")
    return Throughput(sum(x.tokens for x in known), sum(x.seconds for x in known))


def peak_tps(cell: Rows, concurrency: int) -> Maybe:
    """Highest token rate over equal bins of at least 1 s that cover the window of `output_tps`; never below that.

    Weighted by the tokens in each chunk: counting chunks gives a peak below the mean as soon as a drafter works.
    """
    window = rate_window(cell, concurrency)
    if isinstance(window, Missing):
        return window
    bins = max(1, int(window.seconds))
    chunks = [c for row in succeeded(cell) for c in token_chunks(row) if window.holds(c[0])]
    if not chunks:
        return Missing("no_tokens")
    span = window.end_ns - window.start_ns
    places = [min(bins - 1, (at - window.start_ns) * bins // span) for at, _ in chunks]
    tokens = np.bincount(places, weights=[n for _, n in chunks], minlength=bins)
    return float(tokens.max() / (window.seconds / bins))


@dataclass(frozen=True, slots=True)
class Running:
    """Requests that the engine ran at once inside the steady window: time-weighted mean and median, and the peak.

    `source` is `steps` (the engine's own batches) or `stream` (requests between their first and last chunk, a lower bound:
    prefill is not seen). `one_wave`: as many requests as slots, which fill while the last are still in prefill.
    """

    mean: float
    median: float
    peak: int
    source: str
    one_wave: bool = False

    @property
    def typical(self) -> float:
        """What is held against the asked concurrency: the median; the peak of one wave, and where only the stream tells."""
        return self.peak if self.one_wave or self.source == "stream" else self.median

    def reached(self, asked: int) -> bool | None:
        """Whether at least 95 % of the asked concurrency ran: for half of the time, in one wave at some time. A stream can show
        it but not refute it: null when it does not. One request at a time is always reached."""
        if asked == 1 or self.typical >= 0.95 * asked:
            return True
        return False if self.source == "steps" else None


def effective_concurrency(cell: Rows, steps: Rows, concurrency: int) -> Running | Missing:
    """Requests running at once, weighted by time, in the `rate_window` of one cell; below the asked number when a cap bites."""
    window = rate_window(cell, concurrency)
    if isinstance(window, Missing):
        return window
    decode = [s for s in steps if s["kind"] == "decode" and s["phase"] == "measured" and window.holds(int(s["started_ns"]))]
    one_wave = is_one_wave(cell, concurrency)
    if decode:
        return _weighted([(int(s["requests"]), int(s["total_ns"])) for s in decode], "steps", one_wave)
    return _weighted(_streaming(cell, window), "stream", one_wave)


def _streaming(cell: Rows, window: Window) -> list[tuple[int, int]]:
    """(requests between first and last chunk, ns) over the window."""
    chunks = [c for row in succeeded(cell) if (c := token_chunks(row))]
    events = sorted([(c[0][0], 1) for c in chunks] + [(c[-1][0], -1) for c in chunks])
    running, at, spans = 0, window.start_ns, []
    for when, change in [*events, (window.end_ns, 0)]:
        now = min(max(when, window.start_ns), window.end_ns)
        spans.append((running, now - at))
        running, at = running + change, now
    return spans


def _weighted(spans: list[tuple[int, int]], source: str, one_wave: bool) -> Running | Missing:
    spans = sorted((n, ns) for n, ns in spans if ns > 0)
    if not spans:
        return Missing("empty_window")
    running, weights = np.array([n for n, _ in spans]), np.array([ns for _, ns in spans], dtype=float)
    middle = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    mean = float(np.average(running, weights=weights))
    return Running(mean, float(running[middle]), int(running.max()), source, one_wave)
