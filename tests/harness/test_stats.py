"""Intervals against scipy, and against simulations whose truth is known."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.metrics import Missing
from harness.stats import (
    Interval,
    Speedup,
    block_speedup,
    crossed_bootstrap,
    equivalence,
    holm,
    judge,
    noise_floor,
    paired_speedup,
    ratio_interval,
    ratio_of_medians,
    standard_errors,
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


def test_holm_is_the_textbook_procedure():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_a_difference_of_one_arm_among_many_needs_more_than_alone():
    weak = Speedup(1.05, 5, 10, Interval(math.log(1.05), 0.0195, 8))
    assert judge(weak, 0.0).kind == "faster"
    assert judge(weak, 0.0, holm({"weak": weak.log.p_value, "b": 0.5, "c": 0.7})["weak"]).kind == "no detected difference"


def test_equality_needs_its_own_test_and_a_null_alone_is_not_it():
    tight, wide = (Speedup(1.001, 5, 10, Interval(0.001, se, 8)) for se in (0.003, 0.03))
    assert str(judge(tight, 0.0)).endswith("%; equal within 1 %)")
    assert judge(wide, 0.0).kind == "no detected difference"
    assert not judge(wide, 0.0).equal
    low, high = scipy_stats.t.interval(0.90, 8, loc=0.001, scale=0.003)
    assert max(abs(low), abs(high)) < math.log(1.01)
    at_limit = Interval(0.0, math.log1p(0.01) / scipy_stats.t.ppf(0.95, 8), 8)
    assert equivalence(at_limit, 0.01) == pytest.approx(0.05)


def test_a_p_value_is_under_five_percent_exactly_where_the_interval_excludes_zero():
    for estimate in (0.0459, 0.0463):
        found = Interval(estimate, 0.02, 8)
        assert (found.p_value < 0.05) == (found.low > 0)
    assert Interval(0.0, 0.0, 3).p_value == 1.0
    assert Interval(0.1, 0.0, 3).p_value == 0.0


def test_the_ratio_of_medians_resamples_blocks_and_prompts_in_pairs():
    draw = np.random.default_rng(8)
    plain = np.exp(draw.normal(3, 0.5, (5, 20)))
    ratio, low, high = ratio_of_medians(plain * 1.5, plain)
    assert ratio == pytest.approx(1.5)
    assert (low, high) == pytest.approx((1.5, 1.5)), "pairs cancel what prompts have in common"
    ratio, low, high = ratio_of_medians(plain * np.exp(draw.normal(0.2, 0.1, (5, 1))), plain)
    assert low < ratio < high


def test_a_floor_holds_the_difference_of_identical_arms_where_they_differ():
    biased = Speedup(1.03, 5, 10, Interval(math.log(1.03), 0.005, 8))
    assert noise_floor(biased) == pytest.approx(0.03)


def test_the_noise_floor_is_the_half_width_of_plain_against_plain():
    a_a = block_speedup(np.log([1.0, 1.02, 0.98]), 10)
    assert noise_floor(a_a) == pytest.approx(math.expm1((math.log(a_a.high) - math.log(a_a.low)) / 2))
    assert noise_floor(None) == noise_floor(Missing("no_pairs")) == noise_floor(Speedup(1.0, 1, 1, None)) == 0.0


def test_what_only_a_multiple_would_show_is_told_as_a_factor_and_not_as_percent():
    assert str(judge(Speedup(1.0, 2, 6, Interval(0.0, 0.1, 1)), 0.0)) == (
        "no detected difference (detectable: from 4.1x or 0.24x on)"
    )
    assert "(detectable: 1.7 %" in str(judge(Speedup(1.0, 9, 6, Interval(0.0, 0.006, 40)), 0.0))


def test_few_boots_make_an_interval_wide_by_themselves():
    assert [round(standard_errors(blocks), 1) for blocks in (2, 3, 5, 1000)] == [12.7, 4.3, 2.8, 2.0]
    with pytest.raises(ValueError, match="two blocks"):
        standard_errors(1)
