"""Resampling: a check of the primary interval, and the ratio of medians for readers who expect it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from harness.stats.interval import CONFIDENCE, Array, groups_of

REPS = 10_000


def crossed_bootstrap(
    log_ratio_BP: Array, strata: Sequence[str] | None = None, reps: int = REPS, seed: int = 0
) -> tuple[float, float]:
    """Check of `variance_components`: BCa interval of the stratified mean (log scale), blocks and prompts resampled together.

    Blocks are drawn with replacement, prompts within their stratum; one draw serves both arms because the input is paired. With
    one block, prompts alone vary. Too narrow below some five blocks: it is no substitute.
    """
    rng = np.random.default_rng(seed)
    blocks, groups = log_ratio_BP.shape[0], groups_of(log_ratio_BP.shape[1], strata)
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


def ratio_of_medians(arm_BP: Array, plain_BP: Array, reps: int = 2_000, seed: int = 0) -> tuple[float, float, float]:
    """Median over all values of an arm over that of plain, with a percentile interval of a paired crossed bootstrap.

    It is no estimand of this project: a median over prompts of different classes moves with the mix of prompts.
    """
    rng, (blocks, prompts) = np.random.default_rng(seed), arm_BP.shape
    at_B, at_P = rng.integers(blocks, size=(reps, blocks)), rng.integers(prompts, size=(reps, prompts))
    rows, columns = at_B[:, :, None], at_P[:, None, :]
    draws = np.median(arm_BP[rows, columns], axis=(1, 2)) / np.median(plain_BP[rows, columns], axis=(1, 2))
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(np.median(arm_BP) / np.median(plain_BP)), float(low), float(high)


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
