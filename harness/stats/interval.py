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

    @property
    def p_value(self) -> float:
        """Two-sided, of the estimate being zero; 1 for an estimate of exactly zero, 0 for another without any scatter."""
        if self.se == 0:
            return float(self.estimate == 0)
        return float(2 * stats.t.sf(abs(self.estimate) / self.se, self.df))


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
    groups = groups_of(y_BP.shape[1], strata)
    if y_BP.shape[0] < 2 or min(len(g) for g in groups) < 2:
        raise ValueError("variance_components: needs two blocks, and two prompts in every stratum")
    estimate, se, df = analysis_of_variance(y_BP[None], groups)
    return Interval(float(estimate[0]), float(se[0]), float(df[0]))


def analysis_of_variance(y_SBP: Array, groups: Sequence[NDArray[np.intp]]) -> tuple[Array, Array, Array]:
    """Mean, standard error and degrees of freedom of S tables at once (one in a report, thousands in a simulation)."""
    blocks, strata = y_SBP.shape[1], len(groups)
    means_SB = np.mean([y_SBP[:, :, g].mean(axis=2) for g in groups], axis=0)
    boots_S = means_SB.var(axis=1, ddof=1) / blocks
    prompts_S, rest_S = np.zeros(len(y_SBP)), np.zeros(len(y_SBP))
    terms_S = boots_S**2 / (blocks - 1)
    for g in groups:
        by_prompt_S, residual_S = _within(y_SBP[:, :, g])
        prompts_S, rest_S = prompts_S + by_prompt_S / strata**2, rest_S + residual_S / strata**2
        terms_S += (by_prompt_S / strata**2) ** 2 / (len(g) - 1)
        terms_S += (residual_S / strata**2) ** 2 / ((blocks - 1) * (len(g) - 1))
    variance_S = np.maximum(boots_S + prompts_S - rest_S, np.maximum(boots_S, prompts_S))
    df_S = np.divide(variance_S**2, terms_S, out=np.ones(len(y_SBP)), where=terms_S > 0)
    return means_SB.mean(axis=1), np.sqrt(variance_S), np.maximum(1.0, df_S)


def _within(y_SBP: Array) -> tuple[Array, Array]:
    """One stratum's variance of the mean: by prompt means, and by the residual that they contain."""
    blocks, prompts = y_SBP.shape[1:]
    by_prompt_SP, by_block_SB = y_SBP.mean(axis=1), y_SBP.mean(axis=2)
    rest_SBP = y_SBP - by_prompt_SP[:, None, :] - by_block_SB[:, :, None] + y_SBP.mean(axis=(1, 2))[:, None, None]
    residual_S = (rest_SBP**2).sum(axis=(1, 2)) / ((blocks - 1) * (prompts - 1)) / (blocks * prompts)
    return by_prompt_SP.var(axis=1, ddof=1) / prompts, residual_S


def groups_of(prompts: int, strata: Sequence[str] | None) -> list[NDArray[np.intp]]:
    """Columns of each stratum, in the order in which they first appear; all of them where there are no strata."""
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
    groups = groups_of(prompts, strata)
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


def standard_errors(blocks: int) -> float:
    """Half width of an interval in standard errors where all that varies is the boot: Student's t on `blocks - 1`.

    12.7 with two boots, 4.3 with three, 2.8 with five, 2.0 with very many. Where prompts vary too, the degrees of freedom are
    more and the factor is less. Raises ValueError under two blocks.
    """
    if blocks < 2:
        raise ValueError("standard_errors: needs two blocks")
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, blocks - 1))


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
