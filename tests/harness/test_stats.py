"""Intervals against scipy, and against simulations whose truth is known."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.metrics import Missing
from harness.stats import (
    Speedup,
    block_speedup,
    crossed_bootstrap,
    judge,
    noise_floor,
    paired_speedup,
    ratio_interval,
    t_interval,
    variance_components,
)


def table(draw, blocks, prompts, boot, prompt, rest, effect=0.0):
    """Blocks x prompts of log ratios with these standard deviations."""
    return (
        effect
        + draw.normal(0, boot, (blocks, 1))
        + draw.normal(0, prompt, (1, prompts))
        + draw.normal(0, rest, (blocks, prompts))
    )


def test_the_t_interval_is_scipys():
    values = np.array([0.1, 0.3, 0.2, 0.25])
    low, high = scipy_stats.t.interval(0.95, 3, loc=values.mean(), scale=scipy_stats.sem(values))
    found = t_interval(values)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_without_prompt_variance_the_interval_is_the_t_interval_of_block_means():
    y = np.repeat(np.array([[0.1], [0.3], [0.2]]), 4, axis=1)
    found, plain = variance_components(y), t_interval(np.array([0.1, 0.3, 0.2]))
    assert (found.estimate, found.se, found.df) == pytest.approx((plain.estimate, plain.se, plain.df))


def test_variance_components_follow_the_analysis_of_variance():
    y = np.array([[1.0, 2.0, 4.0], [2.0, 2.5, 6.0]])
    ms_block = 3 * ((y.mean(axis=1) - y.mean()) ** 2).sum() / 1
    ms_prompt = 2 * ((y.mean(axis=0) - y.mean()) ** 2).sum() / 2
    rest = y - y.mean(axis=0) - y.mean(axis=1, keepdims=True) + y.mean()
    ms_rest = (rest**2).sum() / 2
    found = variance_components(y)
    total = ms_block + ms_prompt - ms_rest
    assert found.se**2 == pytest.approx(total / 6)
    assert found.df == pytest.approx(max(1, total**2 / (ms_block**2 + ms_prompt**2 / 2 + ms_rest**2 / 2)))


@pytest.mark.parametrize(("blocks", "prompts", "boot", "prompt"), [(5, 10, 0.02, 0.05), (3, 8, 0.02, 0.02), (5, 10, 0.02, 0.0)])
def test_the_interval_covers_the_truth_as_often_as_it_says(blocks, prompts, boot, prompt):
    draw, hits = np.random.default_rng(1), 0
    for _ in range(800):
        found = variance_components(table(draw, blocks, prompts, boot, prompt, 0.02, effect=0.1))
        hits += found.low <= 0.1 <= found.high
    assert 0.93 <= hits / 800 <= 0.97


def test_strata_weigh_equally_and_cover_too():
    draw, hits = np.random.default_rng(2), 0
    strata = ["code"] * 4 + ["chat"] * 12
    for _ in range(600):
        y = table(draw, 5, 16, 0.02, 0.05, 0.02) + np.where(np.array(strata) == "code", 0.4, 0.0)
        found = variance_components(y, strata)
        hits += found.low <= 0.2 <= found.high
    assert 0.93 <= hits / 600 <= 0.975


def test_a_prompt_bootstrap_of_one_boot_would_have_declared_a_difference():
    """Why blocks: identical arms, one boot each, 1.5 % boot noise. The interval over prompts alone excludes 1 far too often."""
    draw, wrong = np.random.default_rng(3), 0
    for _ in range(200):
        y = table(draw, 1, 20, 0.02, 0.01, 0.01)
        low, high = crossed_bootstrap(y, reps=300)
        wrong += not low <= 0 <= high
    assert wrong / 200 > 0.4


def test_one_block_has_no_interval():
    found = paired_speedup(np.array([[0.1, 0.3]]))
    assert (found.grade, found.low, found.high) == ("descriptive", None, None)
    assert found.ratio == pytest.approx(math.exp(0.2))
    assert block_speedup(np.array([0.1]), 4).grade == "descriptive"


def test_one_prompt_in_a_class_has_no_interval():
    y = np.array([[0.1, 0.3, 0.2], [0.2, 0.3, 0.1]])
    assert paired_speedup(y, ["a", "a", "b"]).grade == "descriptive"
    assert paired_speedup(y).grade == "screen"
    assert paired_speedup(np.vstack([y, y, y])).grade == "claim"
    with pytest.raises(ValueError, match="two prompts in every stratum"):
        variance_components(y, ["a", "a", "b"])


def test_nothing_to_pair_is_missing():
    assert paired_speedup(np.zeros((0, 0))) == Missing("no_pairs")
    assert paired_speedup(np.zeros((3, 0))) == Missing("no_pairs")
    assert block_speedup(np.array([]), 0) == Missing("no_pairs")


def test_above_concurrency_one_the_block_is_the_unit():
    logs = np.log([2.0, 2.1, 1.9])
    found = block_speedup(logs, 10)
    assert found.ratio == pytest.approx(scipy_stats.gmean([2.0, 2.1, 1.9]))
    low, high = scipy_stats.t.interval(0.95, 2, loc=logs.mean(), scale=scipy_stats.sem(logs))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_the_bootstrap_of_one_block_is_scipys_bca():
    draw = np.random.default_rng(4)
    values = draw.exponential(1.0, 30)
    theirs = scipy_stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(5))
    found = crossed_bootstrap(values[None, :], reps=20_000)
    assert found == pytest.approx((theirs.confidence_interval.low, theirs.confidence_interval.high), abs=0.02)


def test_the_crossed_bootstrap_pays_for_blocks_and_is_repeatable():
    y = table(np.random.default_rng(6), 6, 12, 0.05, 0.05, 0.01)
    low, high = crossed_bootstrap(y, reps=4000, seed=1)
    assert crossed_bootstrap(y, reps=4000, seed=1) == (low, high)
    primary = variance_components(y)
    assert 0.5 < (high - low) / (2 * primary.half_width) < 1.1
    narrow = crossed_bootstrap(y.mean(axis=0, keepdims=True), reps=4000)
    assert narrow[1] - narrow[0] < high - low


def test_identical_values_give_a_point():
    assert crossed_bootstrap(np.full((3, 4), 0.2), reps=100) == (pytest.approx(0.2), pytest.approx(0.2))


def test_acceptance_length_is_clustered_by_prompt():
    """Prompts differ in acceptance and in length; steps within a prompt are alike: independent steps would be wrong."""
    draw, hits, naive = np.random.default_rng(7), 0, 0
    for _ in range(600):
        rate = draw.beta(4, 4, 30)
        steps = draw.integers(20, 60, 30)
        accepted = draw.binomial(4 * steps, rate)
        found = ratio_interval((accepted + steps).astype(float), steps.astype(float))
        hits += found.low <= 3.0 <= found.high
        share = accepted.sum() / (4 * steps.sum())
        naive += abs(4 * share - 2) <= 1.96 * 4 * math.sqrt(share * (1 - share) / (4 * steps.sum()))
    assert 0.92 <= hits / 600 <= 0.97
    assert naive / 600 < 0.5


def test_a_claim_needs_the_interval_and_the_floor():
    logs = np.log([1.05, 1.06, 1.04, 1.05, 1.05])
    found = block_speedup(logs, 10)
    assert str(judge(found, 0.0)) == "faster"
    assert str(judge(found, 0.06)).startswith("no detected difference (detectable: 6.0 %)")
    small = block_speedup(np.log([1.004, 1.005, 1.006, 1.005, 1.005]), 10)
    assert small.low > 1
    assert judge(small, 0.0).kind == "no detected difference"
    wide = block_speedup(np.log([0.8, 1.3, 1.1]), 10)
    assert judge(wide, 0.0).kind == "no detected difference"
    assert judge(wide, 0.0).detectable > 0.5
    assert judge(block_speedup(-logs, 10), 0.0).kind == "slower"
    assert judge(block_speedup(logs[:1], 10), 0.0).kind == "descriptive"


def test_the_noise_floor_is_the_half_width_of_plain_against_plain():
    a_a = block_speedup(np.log([1.0, 1.02, 0.98]), 10)
    assert noise_floor(a_a) == pytest.approx(math.expm1((math.log(a_a.high) - math.log(a_a.low)) / 2))
    assert noise_floor(None) == noise_floor(Missing("no_pairs")) == noise_floor(Speedup(1.0, 1, 1, None)) == 0.0
