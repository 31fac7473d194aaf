"""How good a drafter would have to be, and up to which concurrency it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.metrics.decomposition import StepCost
from harness.metrics.value import Maybe, Missing


def break_even_tokens_per_step(arm: StepCost, plain: StepCost) -> float:
    """`t_step / t_plain`: tokens per step at which the arm's steps, as dear as they are, are exactly as fast as plain."""
    return plain.tokens * arm.total_ms / plain.total_ms


def break_even_length(arm: StepCost, plain: StepCost, coverage: Maybe) -> Maybe:
    """Acceptance length (own token included) at break-even: `1 + (break-even tokens per step - 1) / coverage`.

    Only steps with a draft can make up for the cost of all. Above K + 1 the arm cannot win, whatever its drafter accepts; below
    1 its steps are cheaper than plain's and it cannot lose.
    """
    if isinstance(coverage, Missing):
        return coverage
    if coverage <= 0:
        return Missing("nothing_drafted")
    return 1 + (break_even_tokens_per_step(arm, plain) - 1) / coverage


@dataclass(frozen=True, slots=True)
class Level:
    """Speedup at one concurrency, as logarithms; `low` and `high` are null where it is descriptive."""

    concurrency: int
    log: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Crossover:
    """Concurrency at which speedup falls through 1. `low` and `high` bound the levels at which the interval of the speedup
    contains 1; null on a side that the measured levels do not reach, or without intervals."""

    concurrency: float
    low: float | None
    high: float | None


def crossover(levels: Sequence[Level]) -> Crossover | Missing:
    """Where the speedup first falls from above 1 to below it, its logarithm taken as linear in log2 of concurrency.

    The interval inverts the pointwise test: from where the lower limit falls through 1 to where the upper one does.
    """
    ordered = sorted(levels, key=lambda level: level.concurrency)
    if len(ordered) < 2:
        return Missing("one_level")
    at = _falls([(x.concurrency, x.log) for x in ordered])
    if at is None:
        return Missing("no_crossover")
    lows = [(x.concurrency, x.low) for x in ordered if x.low is not None]
    highs = [(x.concurrency, x.high) for x in ordered if x.high is not None]
    whole = len(lows) == len(highs) == len(ordered)
    return Crossover(at, _falls(lows) if whole else None, _falls(highs) if whole else None)


def _falls(points: Sequence[tuple[int, float]]) -> float | None:
    """The first concurrency at which the broken line through the points falls through 0."""
    for (left, above), (right, below) in pairwise(points):
        if above > 0 >= below:
            share = above / (above - below)
            return float(2 ** (math.log2(left) + share * (math.log2(right) - math.log2(left))))
    return None
