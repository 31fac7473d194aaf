"""Sessions whose truth is known: boots differ, the machine drifts, drafters suit some prompts better than others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from harness.schedule import arm_order
from harness.stats.interval import analysis_of_variance, groups_of

Array = NDArray[np.float64]
ARMS = ("plain", "arm", "plain2")


@dataclass(frozen=True)
class Session:
    """Standard deviations on the log scale; `drift` is the change over the whole session, `suits` prompt x arm effects."""

    blocks: int
    prompts: int
    boot: float = 0.015
    drift: float = 0.02
    suits: float = 0.03
    rest: float = 0.01
    classes: int = 1
    arms: tuple[str, ...] = ARMS

    @property
    def strata(self) -> list[str]:
        """Unequal classes: the first holds half of the prompts."""
        return [f"class {min(self.classes - 1, 2 * self.classes * p // self.prompts)}" for p in range(self.prompts)]

    def log_ratios(self, draw: np.random.Generator, sessions: int, effect: float = 0.0, arm: str = "arm") -> Array:
        """Log ratios arm over plain, sessions x blocks x prompts, as the rotated order of `harness.schedule` would give them.

        `effect` is what the arm is worth on the log scale. An A/A arm (`plain2`) suits every prompt as plain does.
        """
        shape = sessions, self.blocks, 1
        place = {name: np.array([arm_order(self.arms, b).index(name) for b in range(self.blocks)]) for name in self.arms}
        when = {name: (np.arange(self.blocks) * len(self.arms) + place[name]) for name in ("plain", arm)}
        last = self.blocks * len(self.arms) - 1
        slope = self.drift * draw.choice([-1.0, 1.0], (sessions, 1, 1)) / last
        suits = self.suits if arm != "plain2" else 0.0
        y = effect + draw.normal(0, suits, (sessions, 1, self.prompts)) + slope * (when[arm] - when["plain"])[None, :, None]
        y = y + draw.normal(0, self.boot, shape) - draw.normal(0, self.boot, shape)
        return np.asarray(y + draw.normal(0, self.rest * np.sqrt(2), (sessions, self.blocks, self.prompts)))


def coverage(y_SBP: Array, truth: float, strata: list[str] | None = None) -> float:
    """Share of sessions whose variance-components interval holds the truth."""
    estimate, se, df = analysis_of_variance(y_SBP, groups_of(y_SBP.shape[2], strata))
    return float((np.abs(estimate - truth) <= scipy_stats.t.ppf(0.975, df) * se).mean())


def block_coverage(y_SB: Array, truth: float) -> float:
    """Share of sessions whose t interval over blocks holds the truth (concurrency above 1)."""
    blocks = y_SB.shape[1]
    se = y_SB.std(axis=1, ddof=1) / np.sqrt(blocks)
    return float((np.abs(y_SB.mean(axis=1) - truth) <= scipy_stats.t.ppf(0.975, blocks - 1) * se).mean())
