"""Measured against published: every claim of a rig beside the cell that repeats it, with an interval where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from harness import metrics as m
from harness.claims.arithmetic import printed
from harness.metrics import Missing, Row
from harness.published import Claim, Published, Quantity
from harness.report.run import FinishedRun, read_run
from harness.report.summary import Number, cells, numbers
from harness.stats import t_interval

# The published quantity, and our metric of the same name unless the rig's `published.metrics` says which one the source means.
MEASURES = {
    "tok_s": "output_tps",
    "speedup": "speedup",
    "acceptance_length": "acceptance_length",
    "acceptance_rate": "acceptance_rate",
}
NO_LEVEL = "not measured at this concurrency"
CONFOUNDED = "confounded"
RATES = ("output_tps", "output_tps_end_to_end")
# Numbers of one prompt set by concurrency, arm and metric.
NumbersOf = Callable[[str], Mapping[tuple[int, str, str], Number]]


@dataclass(frozen=True, slots=True)
class Compared:
    """One published number beside ours. `value` null has its reason in `note`; `inside` is null without an interval."""

    claim: Claim
    measure: str
    published: tuple[float, float]
    value: float | None
    low: float | None
    high: float | None
    inside: bool | None
    note: str


def compare_claims(published: Published, folder: Path) -> list[Compared]:
    """Every quantity of every claim, in the rig's order. Raises FileNotFoundError when the folder holds no run."""
    run = read_run(folder)

    @cache
    def numbers_of(prompt_set: str) -> Mapping[tuple[int, str, str], Number]:
        return _numbers(only(run, prompt_set))

    found = []
    for claim in published.claims:
        for measure, metric in MEASURES.items():
            if run.methods.get(claim.arm) == "plain" and measure != "tok_s":
                continue  # plain is 1 by definition
            if (quantity := _quantity(claim, measure)) is not None:
                number = _number(claim, published, run, numbers_of, _metric(published, measure, metric))
                found.append(_compared(claim, measure, quantity, number))
    return found


def _metric(published: Published, measure: str, default: str) -> str:
    return next((metric for name, metric in published.metrics.items() if name == measure), default)


def _quantity(claim: Claim, measure: str) -> Quantity:
    found: Quantity = getattr(claim, measure)
    return found


def only(run: FinishedRun, prompt_set: str) -> FinishedRun:
    """The run with the requests of one prompt set."""
    rows = [row for row in run.requests if str(row["prompt_set"]).partition("@")[0] == prompt_set]
    return replace(run, requests=rows)


def at_depth(run: FinishedRun, depth: int | None) -> FinishedRun:
    """The run with the requests of sets at one depth of context; null for sets without a depth."""
    wanted = "" if depth is None else str(depth)
    return replace(run, requests=[row for row in run.requests if str(row["prompt_set"]).partition("@")[2] == wanted])


def _numbers(run: FinishedRun) -> dict[tuple[int, str, str], Number]:
    """Numbers of one prompt set by concurrency, arm and metric; rates get an interval over blocks."""
    found = {}
    for cell in cells(run):
        for number in numbers(cell):
            key = (cell.concurrency, cell.arm, number.metric)
            found[key] = with_interval(number, cell.arms[cell.arm]) if number.metric in RATES else number
    return found


def with_interval(rate: Number, rows: list[Row]) -> Number:
    """A rate with Student's t over the logarithms of its blocks; unchanged with one block."""
    blocks = sorted({int(row["block"]) for row in rows})
    each = [_rate(rate, [row for row in rows if int(row["block"]) == block]) for block in blocks]
    known = np.log([value for value in each if value])
    if rate.value is None or len(known) < 2:
        return rate
    interval = t_interval(known)
    return replace(rate, low=math.exp(interval.low), high=math.exp(interval.high))


def _rate(number: Number, rows: list[Row]) -> float | None:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(str(row["cell_id"]), []).append(row)
    whole = [
        m.output_tps(part, number.concurrency) if number.metric == "output_tps" else m.output_tps_end_to_end(part)
        for part in parts.values()
    ]
    pooled = m.pool_throughput(whole)
    return None if isinstance(pooled, Missing) else pooled.tps


def _number(claim: Claim, published: Published, run: FinishedRun, numbers_of: NumbersOf, metric: str) -> Number | str:
    """Our number for a claim, or why there is none."""
    if claim.over is not None:
        return f"over {claim.over}, not over plain; compare the two arms' tok/s"
    if claim.bound in ("up to", "over"):
        return "a limit, not an expectation"
    if claim.arm not in run.methods:
        return "arm not measured"
    prompt_set = published.tasks.get(claim.task or "")
    sets = {str(row["prompt_set"]).partition("@")[0] for row in run.requests if row["phase"] == "measured"}
    here = next((name for name in (prompt_set, (prompt_set or "").removesuffix("_full")) if name in sets), None)
    if here is None:
        return "prompts not measured" if prompt_set else "no prompt set stands for this task"
    levels = [claim.concurrency] if claim.concurrency else run.levels()
    if len(levels) != 1:
        return "concurrency not stated"
    found = numbers_of(here).get((levels[0], claim.arm, metric))
    return found or NO_LEVEL


def _compared(claim: Claim, measure: str, quantity: Quantity, number: Number | str) -> Compared:
    low, high = quantity if isinstance(quantity, tuple) else (quantity or 0.0, quantity or 0.0)
    if isinstance(number, str) or number.value is None:
        return Compared(claim, measure, (low, high), None, None, None, None, number if isinstance(number, str) else number.note)
    if number.is_confounded:
        return Compared(claim, measure, (low, high), None, None, None, None, CONFOUNDED)
    if number.low is None or number.high is None:
        return Compared(claim, measure, (low, high), number.value, None, None, None, "no interval")
    at_least, at_most = printed(low).low, printed(high).high
    inside = number.low <= at_most and at_least <= number.high
    return Compared(claim, measure, (low, high), number.value, number.low, number.high, inside, "")


def told(compared: list[Compared]) -> Iterator[str]:
    """How many published numbers were measured, how many lie inside our intervals, and why the others have no answer."""
    inside = [c for c in compared if c.inside is not None]
    yield f"{sum(bool(c.inside) for c in inside)} of {len(inside)} published numbers lie inside the measured intervals"
    reasons: dict[str, int] = {}
    for c in compared:
        if c.inside is None:
            reasons[c.note] = reasons.get(c.note, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        yield f"{count} without an answer: {reason}"
