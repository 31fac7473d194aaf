"""Acceptance of one line of the table: length, rate, tokens per step, positions, with intervals clustered by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harness import metrics as m
from harness.metrics import AcceptanceRate, Maybe, Missing
from harness.stats import ratio_interval

if TYPE_CHECKING:
    from harness.report.summary import Cell, Number


def acceptance_numbers(cell: Cell) -> Iterator[Number]:
    stop_ids = _stop_ids(cell)
    whole = [m.ledger_of(r, cell.budget) for r in cell.rows]
    told = [m.before_stop(r, cell.budget, stop_ids) if r["ignore_eos"] else x for r, x in zip(cell.rows, whole, strict=True)]
    if not whole:
        return
    after_stop = "text after a stop token included" if not stop_ids and any(r["ignore_eos"] for r in cell.rows) else ""
    for number in _of_drafts(cell, told):
        yield replace(number, budget=cell.budget, note=number.note or after_stop)
    yield from _of_all_steps(cell, whole)
    pooled, n = m.pool(told), len(told)
    yield cell.number("drafted_per_step", m.drafted_per_step(pooled), "tokens/step", n, "requests")
    yield cell.number("wasted_per_step", m.wasted_per_step(pooled), "tokens/step", n, "requests")
    yield cell.number("coverage", m.coverage(pooled), "share", n, "requests")
    yield cell.number("overshoot", m.overshoot(m.pool(whole)), "tokens", n, "requests")
    broken = sum(bool(m.identity_errors(x)) for x in whole)
    yield cell.number("identity_errors", broken, "requests", n, "requests")
    yield from _positions(cell)


def _of_drafts(cell: Cell, told: Sequence[m.Ledger]) -> Iterator[Number]:
    """What steps with a draft made of it: length and rate over all of them, and the mean length of a request."""
    pooled, n = m.pool(told), len(told)
    length = cell.number("acceptance_length", m.acceptance_length(pooled), "tokens/step", n, "requests")
    yield _ranged(cell, length, [((x.accepted or 0) + (x.speculating or 0), x.speculating or 0) for x in told])
    rate = m.acceptance_rate(pooled)
    share: Maybe = rate.share if isinstance(rate, AcceptanceRate) else rate
    number = cell.number("acceptance_rate", share, "share", n, "requests")
    yield _ranged(cell, number, [(x.accepted or 0, x.drafted or 0) for x in told])
    yield _mean(cell, "acceptance_length_request_mean", [m.acceptance_length(x) for x in told])


def _of_all_steps(cell: Cell, whole: Sequence[m.Ledger]) -> Iterator[Number]:
    """Tokens per step over all steps, and the mean of a request."""
    each = [m.tokens_per_step(x) for x in whole]
    number = cell.number("tokens_per_step", m.tokens_per_step(m.pool(whole)), "tokens/step", len(whole), "requests")
    steps = [(x.speculating or 0) + (x.draftless or 0) for x in whole]
    yield _ranged(cell, number, [(0, 0) if isinstance(t, Missing) else (t * n, n) for t, n in zip(each, steps, strict=True)])
    yield _mean(cell, "tokens_per_step_request_mean", each)


def _mean(cell: Cell, metric: str, each: Sequence[Maybe]) -> Number:
    number = cell.number(metric, m.mean(each), "tokens/step", len(each), "requests")
    return _ranged(cell, number, [(0, 0) if isinstance(value, Missing) else (value, 1) for value in each])


def _ranged(cell: Cell, number: Number, parts: Sequence[tuple[float, float]]) -> Number:
    """The number, a ratio of sums over the cell's requests, with an interval clustered by prompt over its blocks.

    Without a value it has none, nor under three prompts: of two it would say nothing.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for row, (over, under) in zip(cell.rows, parts, strict=True):
        total = sums.setdefault(m.prompt_key(row), [0, 0])
        total[0], total[1] = total[0] + over, total[1] + under
    pairs = np.array(list(sums.values()), dtype=np.float64)
    if number.value is None or len(pairs) < 3 or not pairs[:, 1].sum():
        return number
    interval = ratio_interval(pairs[:, 0], pairs[:, 1])
    return replace(number, low=interval.low, high=interval.high)


def _stop_ids(cell: Cell) -> frozenset[int]:
    """Stop tokens as the serving resolved them (comma separated), empty when they were not told."""
    for row in cell.run.servings:
        text = str(m.as_map(row["resolved"]).get("stop_ids", "")).strip('[]"')
        if text:
            return frozenset(int(part) for part in text.split(","))
    return frozenset()


def _positions(cell: Cell) -> Iterator[Number]:
    found = m.position_rate(cell.rows, cell.budget)
    if isinstance(found, Missing):
        return
    for kind in ("marginal", "conditional", "ratio"):
        for i, share in enumerate(getattr(found, kind), 1):
            number = cell.number(f"position_rate_{kind}_{i}", share, "share", found.steps, "steps with a draft")
            yield replace(number, budget=cell.budget)
