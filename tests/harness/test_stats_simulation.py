"""The statistics on sessions whose truth is known: error rates and coverage, as `make test-stats` repeats them at length.

SAMERIG_SESSIONS sets how many sessions a case simulates: 2,000 here, 20,000 in `make test-stats`.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from scipy import stats as scipy_stats
from simulation import Session, block_coverage, coverage

from harness.stats import (
    Interval,
    Speedup,
    crossed_bootstrap,
    judge,
    minimum_detectable,
    noise_floor,
    paired_speedup,
    variance_components,
)
from harness.stats.interval import analysis_of_variance, groups_of

SESSIONS = int(os.environ.get("SAMERIG_SESSIONS", "2000"))
DESIGNS = {
    "five blocks": Session(5, 16),
    "ten blocks": Session(10, 16),
    "three blocks": Session(3, 12),
    "two arms, ABBA": Session(4, 16, arms=("plain", "arm")),
    "strong drift": Session(5, 16, drift=0.05),
    "no boot variance": Session(5, 16, boot=0.0, drift=0.0),
    "drafter suits some prompts": Session(5, 16, suits=0.10, rest=0.02),
    "many prompts": Session(5, 48),
    "classes of unequal size": Session(5, 24, classes=3),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_identical_arms_are_called_different_in_three_to_seven_percent(name: str) -> None:
    session = DESIGNS[name]
    wrong = 1 - coverage(session.log_ratios(np.random.default_rng(1), SESSIONS), 0.0, session.strata)
    assert 0.03 <= wrong <= 0.07


@pytest.mark.parametrize("name", DESIGNS)
def test_the_interval_holds_the_truth_in_93_to_97_percent(name: str) -> None:
    session, effect = DESIGNS[name], math.log(1.6)
    held = coverage(session.log_ratios(np.random.default_rng(2), SESSIONS, effect), effect, session.strata)
    assert 0.93 <= held <= 0.97


@pytest.mark.parametrize("blocks", [3, 5, 10])
def test_above_concurrency_one_the_t_interval_over_blocks_is_as_sure_as_it_says(blocks: int) -> None:
    """The batch is the unit and the truth is that of these prompts, so what suits some of them does not vary."""
    batches = Session(blocks, 16, suits=0.0).log_ratios(np.random.default_rng(4), SESSIONS, 0.2).mean(axis=2)
    assert 0.93 <= block_coverage(batches, 0.2) <= 0.97


def test_without_boot_and_prompt_effects_the_interval_errs_on_the_safe_side() -> None:
    """Block means and prompt means both hold the residual; subtracting it would be right on average and too small too often."""
    held = coverage(Session(5, 16, boot=0.0, drift=0.0, suits=0.0).log_ratios(np.random.default_rng(5), SESSIONS), 0.0)
    assert held >= 0.95


def test_one_boot_per_arm_with_prompts_alone_resampled_would_be_wrong_half_of_the_time() -> None:
    """Why blocks: 1.5 % between boots, 2 % drift, identical arms. What a bootstrap over the prompts of one boot declares."""
    draw, wrong = np.random.default_rng(6), 0
    for y_BP in Session(1, 20, suits=0.0).log_ratios(draw, 200):
        low, high = crossed_bootstrap(y_BP, reps=300)
        wrong += not low <= 0 <= high
    assert wrong / 200 > 0.45


def test_the_crossed_bootstrap_agrees_with_the_primary_interval_and_is_never_the_wider_by_much() -> None:
    session, widths = Session(8, 16), []
    for y_BP in session.log_ratios(np.random.default_rng(7), 40, 0.3):
        low, high = crossed_bootstrap(y_BP, reps=1000)
        _, se, df = analysis_of_variance(y_BP[None], groups_of(16, None))
        widths.append((high - low) / (2 * scipy_stats.t.ppf(0.975, df[0]) * se[0]))
    assert 0.75 < np.mean(widths) < 1.05


def test_the_detectable_effect_is_found_in_four_of_five_runs() -> None:
    session = Session(5, 16)
    _, se, df = analysis_of_variance(session.log_ratios(np.random.default_rng(8), SESSIONS), groups_of(16, None))
    effect = math.log1p(
        float(np.median([minimum_detectable(Interval(0.0, s, d), 0.0) for s, d in zip(se[:200], df[:200], strict=True)]))
    )
    found = 1 - coverage(session.log_ratios(np.random.default_rng(9), SESSIONS, effect), 0.0)
    assert 0.72 <= found <= 0.88


def test_claims_beyond_the_floor_of_an_a_a_arm_are_wrong_in_under_five_percent() -> None:
    """The whole rule, floor and least effect included, on identical arms."""
    session, wrong = Session(5, 16, suits=0.0), 0
    ours = session.log_ratios(np.random.default_rng(10), 400)
    theirs = session.log_ratios(np.random.default_rng(11), 400, arm="plain2")
    for y_BP, a_a_BP in zip(ours, theirs, strict=True):
        floor = noise_floor(paired_speedup(a_a_BP))
        speedup = paired_speedup(y_BP)
        assert isinstance(speedup, Speedup)
        wrong += judge(speedup, floor).kind in ("faster", "slower")
    assert wrong / 400 <= 0.05


def test_the_vectorised_analysis_is_that_of_one_table() -> None:
    y_SBP = Session(4, 10, classes=2).log_ratios(np.random.default_rng(13), 3)
    strata = Session(4, 10, classes=2).strata
    estimate, se, df = analysis_of_variance(y_SBP, groups_of(10, strata))
    for i, y_BP in enumerate(y_SBP):
        one = variance_components(y_BP, strata)
        assert (one.estimate, one.se, one.df) == pytest.approx((estimate[i], se[i], df[i]))
