"""What may be said of a speedup: claims over several arms, equality, the noise floor, and what could have been detected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from harness.metrics.value import Missing
from harness.stats.interval import CONFIDENCE, Interval, Speedup

SMALLEST_EFFECT = 0.01
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Finding:
    """What may be said of a speedup. `detectable` is the effect that this design would find in four of five runs.

    `equal` says that both arms are the same within `SMALLEST_EFFECT`, by two one-sided tests: a null alone never says so.
    """

    kind: Literal["faster", "slower", "no detected difference", "descriptive"]
    detectable: float | None
    equal: bool = False

    def __str__(self) -> str:
        if self.kind == "no detected difference":
            equal = f"; equal within {100 * SMALLEST_EFFECT:g} %" if self.equal else ""
            return f"no detected difference (detectable: {_effect(self.detectable or 0)}{equal})"
        return self.kind


def _effect(share: float) -> str:
    """A share of plain's speed, above its double as a factor: 1,750 % is read as nothing by anybody."""
    return f"{100 * share:.1f} %" if share < 1 else f"from {1 + share:.1f}x or {1 / (1 + share):.2f}x on"


def judge(speedup: Speedup, floor: float, p_value: float | None = None) -> Finding:
    """A difference is claimed only if it is significant and its size exceeds max(1 %, noise floor).

    Significant: `p_value`, adjusted for the other arms by `holm`, is under 5 %; alone, the interval excludes 1.
    """
    if speedup.log is None:
        return Finding("descriptive", None)
    least = max(SMALLEST_EFFECT, floor)
    is_significant = (speedup.log.p_value if p_value is None else p_value) < 1 - CONFIDENCE
    if is_significant and abs(speedup.ratio - 1) > least:
        return Finding("faster" if speedup.ratio > 1 else "slower", minimum_detectable(speedup.log, floor))
    equal = equivalence(speedup.log, SMALLEST_EFFECT) < 1 - CONFIDENCE
    return Finding("no detected difference", minimum_detectable(speedup.log, floor), equal)


def minimum_detectable(log: Interval, floor: float) -> float:
    """Effect that this design would find in four of five runs, as a share; never below what may be claimed at all."""
    quantiles = float(stats.t.ppf((1 + CONFIDENCE) / 2, log.df) + stats.t.ppf(POWER, log.df))
    return max(SMALLEST_EFFECT, floor, math.expm1(quantiles * log.se))


def equivalence(log: Interval, margin: float) -> float:
    """p value of two one-sided tests (TOST): that the ratio lies outside 1/(1 + margin) to 1 + margin."""
    limit = math.log1p(margin)
    if log.se == 0:
        return float(abs(log.estimate) >= limit)
    above, below = (stats.t.sf((limit + sign * log.estimate) / log.se, log.df) for sign in (-1, 1))
    return float(max(above, below))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p values adjusted for being several (Holm 1979): the smallest times n, the next times n - 1, ..., never falling."""
    adjusted, highest = {}, 0.0
    for place, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p_value * (len(p_values) - place)))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def noise_floor(a_a: Speedup | Missing | None) -> float:
    """Half width of the interval of plain against plain, as a share; their difference where that is significant and larger.

    0 when it was not measured or has no interval.
    """
    if a_a is None or isinstance(a_a, Missing) or a_a.log is None:
        return 0.0
    differs = a_a.log.p_value < 1 - CONFIDENCE
    return math.expm1(max(a_a.log.half_width, abs(a_a.log.estimate) if differs else 0.0))
