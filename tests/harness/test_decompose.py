"""Step times with known parts: the decomposition must find them, the rules must name the part that was made dear."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from harness.decompose import Decomposition, crossover_of, decompose
from harness.decompose_causes import cause
from harness.metrics import Missing
from harness.metrics.breakeven import Crossover, Level, break_even_length, break_even_tokens_per_step, crossover
from harness.metrics.decomposition import (
    StepCost,
    predicted_speedup,
    step_cost,
    step_difference_ms,
    step_speedup,
    sweep_fault,
    swept_verify_ms,
    verify_ms_by_width,
)
from harness.stats import Interval, Speedup

MS = 1_000_000


def step(
    draft: float = 0, verify: float = 20, sample: float = 1, other: float = 1, width: int = 1, tokens: int = 1, **given: Any
) -> dict[str, Any]:
    requests = given.get("requests", 1)
    row = {
        "phase": "measured",
        "kind": "decode",
        "block": 0,
        "requests": requests,
        "rows": width * requests,
        "draft_ns": int(draft * MS),
        "verify_ns": int(verify * MS),
        "sample_ns": int(sample * MS),
        "total_ns": int((draft + verify + sample + other) * MS),
        "emitted": tokens,
    }
    return row | given


def sweep(times: dict[int, float], requests: int = 1, block: int = 0) -> list[dict[str, Any]]:
    return [
        {"requests": requests, "width": width, "block": block, "verify_ns": int(ms * MS * noise)}
        for width, ms in times.items()
        for noise in (0.9, 1.0, 1.5)
    ]


def test_a_step_is_the_sum_of_its_parts_and_only_full_batches_count():
    rows = [
        step(draft=3, verify=30, sample=2, other=1, width=5, tokens=4, requests=2),
        step(draft=5, verify=30, sample=2, other=1, width=3, tokens=2, requests=2),
        step(draft=100, requests=1),
        step(draft=100, requests=2, kind="prefill"),
        step(draft=100, requests=2, phase="warmup"),
    ]
    cost = step_cost(rows, 2)
    assert cost == StepCost(4.0, 30.0, 2.0, pytest.approx(1.0), 1.5, {3: 1, 5: 1}, 2)
    assert cost.total_ms == pytest.approx(37)
    assert cost.width == 4


def test_steps_that_nobody_told_or_that_never_were_full_give_a_reason():
    assert step_cost([], 1) == Missing("not_reported")
    assert step_cost([step(requests=1)], 8) == Missing("no_full_batch")


def test_the_sweep_takes_medians_at_its_own_number_of_requests():
    rows = sweep({1: 20, 5: 30}) + sweep({1: 99}, requests=8)
    assert verify_ms_by_width(rows, 1) == {1: 20.0, 5: 30.0}
    assert verify_ms_by_width(rows, 32) == {}


def test_a_sweep_that_something_disturbed_is_left_out_with_its_reason():
    """One row's time must come out again between rounds, and more rows cannot take far less."""
    rounds = [row | {"round": n} for n in range(8) for row in sweep({1: 20, 5: 30})]
    assert sweep_fault(rounds, 1) is None
    assert sweep_fault(rounds, 32) is None, "nothing was swept there"
    one_hiccup = [row | {"verify_ns": row["verify_ns"] * (50 if row["round"] == 3 else 1)} for row in rounds]
    assert sweep_fault(one_hiccup, 1) is None, "medians stand it"
    unlike = [row | {"verify_ns": row["verify_ns"] * (4 if row["round"] % 2 else 1)} for row in rounds]
    assert str(sweep_fault(unlike, 1)).startswith("one row took 20.00 to 80.00 ms in the middle half")
    faster = sweep({1: 3822, 14: 0.16 * 3822})
    assert str(sweep_fault(faster, 1)).startswith("14 rows took 611.52 ms and one row 3822.00")
    arm, plain = [step(verify=30, width=14)], [step()]
    found = decompose(arm, plain, faster, 1, 13, 1.0)
    assert not isinstance(found, Missing)
    assert (found.predicted, found.predicted_interval, found.by_width) == (Missing("sweep_disturbed"), None, {})


def test_a_width_that_was_not_swept_is_refused_and_never_interpolated():
    assert swept_verify_ms({1: 3, 5: 1}, {1: 20, 5: 40}) == 25
    assert swept_verify_ms({4: 1}, {1: 20, 5: 40}) == Missing("width_not_swept")
    assert swept_verify_ms({1: 1}, {}) == Missing("no_width_sweep")


def test_prediction_and_measurement_agree_where_the_parts_are_all_there_is():
    plain = step_cost([step(verify=20)], 1)
    arm = step_cost([step(draft=4, verify=30, width=5, tokens=3)], 1)
    by_width = {1: 20.0, 5: 30.0}
    assert step_speedup(arm, plain) == pytest.approx(3 * 22 / 36)
    assert predicted_speedup(arm, plain, by_width) == pytest.approx(step_speedup(arm, plain))
    slower_in_service = step_cost([step(draft=4, verify=60, width=5, tokens=3)], 1)
    assert predicted_speedup(slower_in_service, plain, by_width) == pytest.approx(3 * 22 / 36)
    assert step_speedup(slower_in_service, plain) == pytest.approx(3 * 22 / 66)


def test_an_arm_at_its_break_even_length_is_as_fast_as_plain():
    plain = step_cost([step(verify=20)], 1)
    arm = step_cost([step(draft=4, verify=30, width=5, tokens=3)], 1)
    needed = break_even_tokens_per_step(arm, plain)
    assert needed == pytest.approx(36 / 22)
    at_it = StepCost(arm.draft_ms, arm.verify_ms, arm.sample_ms, arm.other_ms, needed, arm.widths, arm.steps)
    assert step_speedup(at_it, plain) == pytest.approx(1)
    assert break_even_length(arm, plain, 1.0) == pytest.approx(needed)
    # Half of the steps draft, so a step that does must make up for two.
    assert break_even_length(arm, plain, 0.5) == pytest.approx(1 + 2 * (needed - 1))
    assert break_even_length(arm, plain, 0.0) == Missing("nothing_drafted")


def test_a_case_of_another_tool_the_step_cost_ratio_explains_higher_acceptance_at_lower_speed():
    """F04 of the cases: K=1 1.63 tokens a step at 108.45 tok/s, K=32 2.18 at 48.32; a step of the latter costs 3 times."""
    shallow, deep = (
        StepCost(0, 1000 * tokens / tps, 0, 0, tokens, {1: 1}, 1) for tokens, tps in ((1.63, 108.45), (2.18, 48.32))
    )
    assert deep.total_ms / shallow.total_ms == pytest.approx(3.0, abs=0.02)
    assert step_speedup(deep, shallow) == pytest.approx(48.32 / 108.45)


def test_an_engine_without_parts_gives_only_the_difference_of_its_steps():
    assert step_difference_ms(30.0, 20.0) == 10.0
    assert step_difference_ms(30.0, Missing("chunks_are_not_steps")) == Missing("chunks_are_not_steps")


def found(draft: float = 0, verify: float = 20, machinery: float = 1, tokens: int = 1, budget: int = 4) -> Decomposition:
    """One block of ten steps each; plain's step takes 20 + 1 + 1 ms."""
    ours = [step(draft=draft, verify=verify, other=machinery, width=budget + 1, tokens=tokens) for _ in range(10)]
    got = decompose(ours, [step()] * 10, [], 1, budget, 1.0)
    assert isinstance(got, Decomposition)
    return got


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("memory traffic", found(draft=2, verify=21, tokens=3)),
        ("acceptance", found(draft=2, verify=40, tokens=4)),
        ("acceptance", found(draft=2, verify=21, tokens=1)),
        ("draft cost", found(draft=50, verify=24, tokens=3)),
        ("verify cost", found(draft=2, verify=80, tokens=3)),
        ("machinery", found(draft=1, verify=22, machinery=60, tokens=3)),
        ("verify cost", found(draft=50, verify=200, tokens=2)),
    ],
)
def test_the_cause_is_the_part_that_was_made_dear(kind: str, case: Decomposition):
    got = cause("arm", case)
    assert got.kind == kind
    assert f": {kind}." in got.sentence
    assert "nan" not in got.sentence


def test_where_no_effect_is_told_no_cause_of_one_is_named():
    case = found(draft=20, verify=20, tokens=2)
    level = replace(case, measured=Speedup(1.0, 3, 6, Interval(0.0, 0.05, 2.0)))
    assert "not told apart from plain in decoding (1.00x [0.81, 1.24]); what weighs most is " in cause("arm", level).sentence


def test_too_little_is_accepted_where_no_single_cost_would_save_the_arm():
    got = cause("arm", found(draft=15, verify=36, machinery=12, tokens=2))
    assert got.kind == "acceptance"
    assert "break-even" in got.sentence


def test_an_arm_that_no_acceptance_could_save_says_so():
    text = cause("arm", found(draft=200, verify=22, tokens=1, budget=2)).sentence
    assert "beyond any drafter at this budget" in text


@pytest.mark.parametrize(("level", "plain_ms", "arm_ms"), [(2, 14.374, 15.317), (189, 77.164, 93.82)])
def test_e03_an_arm_that_drafts_nothing_has_its_machinery_to_blame_and_no_acceptance(
    level: int, plain_ms: float, arm_ms: float
):
    """What dynamic speculation costs at a budget of nothing: +6.56 % at concurrency 2, +21.58 % at 189."""
    plain, ours = (
        [step(verify=plain_ms - 2, other=1 + more, requests=level, tokens=level) for _ in range(3)]
        for more in (0.0, arm_ms - plain_ms)
    )
    got = decompose(ours, plain, [], level, 4, 0.0)
    assert isinstance(got, Decomposition)
    assert (cause("arm", got).kind, got.break_even) == ("machinery", Missing("nothing_drafted"))
    assert 1 / got.measured.ratio == pytest.approx(arm_ms / plain_ms, rel=1e-6)


def test_no_cause_is_named_where_the_parts_do_not_add_up_to_what_was_measured():
    """Plain's steps beside another job took twenty-fold; the width sweep after it, alone, did not."""
    plain, arm = [step(verify=400)] * 3, [step(draft=2, verify=22, width=5, tokens=2)] * 3
    disturbed = decompose(arm, plain, sweep({1: 20, 5: 22}), 1, 4, 1.0)
    assert isinstance(disturbed, Decomposition)
    got = cause("arm", disturbed)
    assert got.kind == "disturbance"
    assert "no cause named" in got.sentence
    assert "repeat on an idle machine" in got.sentence


def test_blocks_give_an_interval_and_a_block_that_one_arm_lacks_is_left_out():
    arm = [step(draft=2, verify=v, width=5, tokens=3, block=b) for b, v in ((0, 30), (1, 33), (2, 29), (3, 999))]
    plain = [step(block=b) for b in (0, 1, 2)]
    got = decompose(arm, plain, [r for b in range(3) for r in sweep({1: 20, 5: 30}, block=b)], 1, 4, 1.0)
    assert isinstance(got, Decomposition)
    assert got.arm.steps == 3
    assert got.measured.blocks == 3
    assert got.measured.low is not None
    assert got.measured.low < got.measured.ratio < got.measured.high
    assert got.break_even_interval is not None
    assert got.predicted_interval is not None
    assert got.predicted == pytest.approx(3 * 22 / 34)


def test_an_engine_that_tells_no_steps_has_no_decomposition():
    assert decompose([], [], [], 1, 4, 1.0) == Missing("not_reported")


def test_the_crossover_lies_where_the_broken_line_meets_one():
    levels = [Level(1, math.log(2), None, None), Level(4, math.log(0.5), None, None)]
    got = crossover(levels)
    assert got == Crossover(pytest.approx(2.0), None, None)


def test_the_crossover_interval_holds_the_levels_that_could_be_one():
    levels = [Level(1, 0.6, 0.4, 0.8), Level(8, -0.3, -0.5, -0.1), Level(32, -0.6, -0.8, -0.4)]
    got = crossover(levels)
    assert isinstance(got, Crossover)
    assert got.low is not None
    assert got.high is not None
    assert 1 < got.low < got.concurrency < got.high < 8
    open_above = crossover([Level(1, 0.6, 0.4, 0.8), Level(8, -0.1, -0.5, 0.3)])
    assert isinstance(open_above, Crossover)
    assert open_above.high is None


def test_no_crossover_is_no_number():
    assert crossover([Level(1, 0.5, None, None)]) == Missing("one_level")
    assert crossover([Level(1, 0.5, None, None), Level(8, 0.2, None, None)]) == Missing("no_crossover")
    assert crossover([Level(1, -0.5, None, None), Level(8, -0.2, None, None)]) == Missing("no_crossover")


def test_speedups_without_a_number_are_left_out_of_the_crossover():
    made = {c: Speedup(math.exp(x), 3, 0, Interval(x, 0.01, 4)) for c, x in ((1, 0.5), (8, -0.5))}
    got = crossover_of({**made, 32: Missing("concurrency_not_reached")})
    assert isinstance(got, Crossover)
    assert got.concurrency == pytest.approx(2**1.5)
