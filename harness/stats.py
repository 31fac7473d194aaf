"""How sure a number is. Replicates are fresh boots (blocks), the pairing unit is the prompt; all ratios are taken in logs.

One block is descriptive and has no interval, two to four are a screen, five or more can carry a claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.metrics.value import Missing

Array = NDArray[np.float64]
CONFIDENCE = 0.95
SMALLEST_EFFECT = 0.01
CLAIM_BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its standard error and degrees of freedom on the scale it was made on (log for ratios)."""

    estimate: float
    se: float
    df: float

    @property
    def half_width(self) -> float:
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, self.df)) * self.se

    @property
    def low(self) -> float:
        return self.estimate - self.half_width

    @property
    def high(self) -> float:
        return self.estimate + self.half_width


@dataclass(frozen=True, slots=True)
class Speedup:
    """A ratio of two arms. `log` holds its interval on the log scale, null when one block made it descriptive."""

    ratio: float
    blocks: int
    prompts: int
    log: Interval | None

    @property
    def grade(self) -> Literal["descriptive", "screen", "claim"]:
        if self.log is None:
            return "descriptive"
        return "claim" if self.blocks >= CLAIM_BLOCKS else "screen"

    @property
    def low(self) -> float | None:
        return None if self.log is None else math.exp(self.log.low)

    @property
    def high(self) -> float | None:
        return None if self.log is None else math.exp(self.log.high)


def variance_components(y_BP: Array, strata: Sequence[str] | None = None) -> Interval:
    """Mean of a blocks x prompts table with an interval that pays for boots and for prompts.

    Strata (one label per prompt, null is one stratum) weigh equally. The variance of the mean is that of block means over B,
    plus that of prompt means over P within each stratum, less the residual that both contain; each part that falls below
    the residual's share counts as zero. Degrees of freedom by Satterthwaite. Raises ValueError under two blocks, or under
    two prompts in a stratum.
    """
    blocks = y_BP.shape[0]
    groups = _groups(y_BP.shape[1], strata)
    if blocks < 2 or min(len(g) for g in groups) < 2:
        raise ValueError("variance_components: needs two blocks, and two prompts in every stratum")
    block_means = np.mean([y_BP[:, g].mean(axis=1) for g in groups], axis=0)
    boots = float(block_means.var(ddof=1)) / blocks
    parts = [_within(y_BP[:, g], len(groups)) for g in groups]
    prompts, rest = sum(part[0] for part in parts), sum(part[1] for part in parts)
    variance = max(boots + prompts - rest, boots, prompts)
    terms = [boots**2 / (blocks - 1), *(part[2] for part in parts)]
    df = variance**2 / sum(terms) if sum(terms) > 0 else 1.0
    return Interval(float(block_means.mean()), math.sqrt(variance), max(1.0, df))


def _within(y_BP: Array, strata: int) -> tuple[float, float, float]:
    """One stratum's share in the variance of the mean: by prompt means, by the residual, and their sum of squares over df."""
    blocks, prompts = y_BP.shape
    rest_BP = y_BP - y_BP.mean(axis=0) - y_BP.mean(axis=1, keepdims=True) + y_BP.mean()
    df_rest = (blocks - 1) * (prompts - 1)
    rest = float((rest_BP**2).sum()) / df_rest / (blocks * prompts) / strata**2
    means = float(y_BP.mean(axis=0).var(ddof=1)) / prompts / strata**2
    return means, rest, means**2 / (prompts - 1) + rest**2 / df_rest


def _groups(prompts: int, strata: Sequence[str] | None) -> list[NDArray[np.intp]]:
    labels = np.array(["all"] * prompts if strata is None else list(strata))
    return [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())]


def paired_speedup(log_ratio_BP: Array, strata: Sequence[str] | None = None) -> Speedup | Missing:
    """Concurrency 1: exp of the class-stratified mean over prompts of log(tps_arm / tps_plain), paired within each block.

    Rows are blocks, columns prompts that succeeded in both arms in every block. One block, or a class with a single prompt,
    is descriptive: what varies between boots or prompts cannot be seen there.
    """
    blocks, prompts = log_ratio_BP.shape
    if prompts == 0 or blocks == 0:
        return Missing("no_pairs")
    groups = _groups(prompts, strata)
    point = float(np.mean([log_ratio_BP[:, g].mean() for g in groups]))
    if blocks < 2 or min(len(g) for g in groups) < 2:
        return Speedup(math.exp(point), blocks, prompts, None)
    return Speedup(math.exp(point), blocks, prompts, variance_components(log_ratio_BP, strata))


def block_speedup(log_ratio_B: Array, prompts: int) -> Speedup | Missing:
    """Concurrency above 1, where the batch is the unit: geometric mean over blocks of the ratio of steady-window output rates,
    with a t interval on the log ratios of the blocks."""
    blocks = len(log_ratio_B)
    if blocks == 0:
        return Missing("no_pairs")
    point = float(log_ratio_B.mean())
    if blocks < 2:
        return Speedup(math.exp(point), blocks, prompts, None)
    return Speedup(math.exp(point), blocks, prompts, t_interval(log_ratio_B))


def t_interval(values: Array) -> Interval:
    """Mean of independent values with Student's t. Raises ValueError under two values."""
    if len(values) < 2:
        raise ValueError("t_interval: needs two values")
    return Interval(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def ratio_interval(numerators: Array, denominators: Array) -> Interval:
    """Ratio of sums with an interval clustered by unit: `sum(n)/sum(d)` over prompts, linearised, Student's t on prompts - 1.

    For acceptance length: n = accepted + steps and d = steps of each prompt, summed over its blocks. Raises under two prompts.
    """
    units = len(numerators)
    if units < 2:
        raise ValueError("ratio_interval: needs two clusters")
    ratio = float(numerators.sum() / denominators.sum())
    off = numerators - ratio * denominators
    se = math.sqrt(units / (units - 1) * float((off**2).sum())) / float(denominators.sum())
    return Interval(ratio, se, units - 1)


def crossed_bootstrap(
    log_ratio_BP: Array, strata: Sequence[str] | None = None, reps: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Check of `variance_components`: BCa interval of the stratified mean (log scale), blocks and prompts resampled together.

    Blocks are drawn with replacement, prompts within their stratum; one draw serves both arms because the input is paired. With
    one block, prompts alone vary. Too narrow below some five blocks: it is no substitute.
    """
    rng = np.random.default_rng(seed)
    blocks, groups = log_ratio_BP.shape[0], _groups(log_ratio_BP.shape[1], strata)
    weight_B = rng.multinomial(blocks, [1 / blocks] * blocks, size=reps) / blocks
    draws = np.zeros(reps)
    for g in groups:
        weight_P = rng.multinomial(len(g), [1 / len(g)] * len(g), size=reps) / len(g)
        draws += np.einsum("rb,bp,rp->r", weight_B, log_ratio_BP[:, g], weight_P, optimize=True) / len(groups)
    means_GB = np.array([log_ratio_BP[:, g].mean(axis=1) for g in groups])
    influence = [*_influence(means_GB.mean(axis=0))]
    for g in groups:
        influence += [*(_influence(log_ratio_BP[:, g].mean(axis=0)) / len(groups))]
    return _bca(draws, float(means_GB.mean()), np.array(influence))


def _influence(values: Array) -> Array:
    """Influence of each value on the mean, zero for a single one."""
    return np.asarray((values - values.mean()) / len(values), dtype=np.float64)


def _bca(draws: Array, estimate: float, influence: Array) -> tuple[float, float]:
    """Bias-corrected and accelerated percentile limits (Efron 1987)."""
    spread = float((influence**2).sum())
    if float(np.ptp(draws)) <= 1e-12 * max(1.0, abs(estimate)):
        return estimate, estimate
    acceleration = float((influence**3).sum()) / (6 * spread**1.5)
    below = ((draws < estimate).mean() + (draws <= estimate).mean()) / 2
    bias = float(stats.norm.ppf(min(max(below, 1 / len(draws)), 1 - 1 / len(draws))))
    tails = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    z = bias + stats.norm.ppf(tails)
    low, high = np.quantile(draws, stats.norm.cdf(bias + z / (1 - acceleration * z)))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Finding:
    """What may be said of a speedup. `detectable` is the effect that this design would find in four of five runs."""

    kind: Literal["faster", "slower", "no detected difference", "descriptive"]
    detectable: float | None

    def __str__(self) -> str:
        if self.kind == "no detected difference":
            return f"no detected difference (detectable: {100 * (self.detectable or 0):.1f} %)"
        return self.kind


def noise_floor(a_a: Speedup | Missing | None) -> float:
    """Half width of the interval of plain against plain, as a share; 0 when it was not measured or has no interval."""
    if a_a is None or isinstance(a_a, Missing) or a_a.log is None:
        return 0.0
    return math.expm1(a_a.log.half_width)


def judge(speedup: Speedup, floor: float) -> Finding:
    """A difference is claimed only if the interval excludes 1 and the effect exceeds max(1 %, noise floor)."""
    if speedup.log is None:
        return Finding("descriptive", None)
    least = max(SMALLEST_EFFECT, floor)
    power = float(stats.t.ppf((1 + CONFIDENCE) / 2, speedup.log.df) + stats.t.ppf(0.8, speedup.log.df))
    detectable = max(least, math.expm1(power * speedup.log.se))
    excluded = not speedup.log.low <= 0 <= speedup.log.high
    if not excluded or abs(speedup.ratio - 1) <= least:
        return Finding("no detected difference", detectable)
    return Finding("faster" if speedup.ratio > 1 else "slower", detectable)
