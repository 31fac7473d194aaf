"""The design of the experiment in words: what a reader of the plan can hold a run to."""

from __future__ import annotations

from scripted_bench import scripted_run

from harness import design, stats
from harness.compose import compose_run
from harness.config import Run
from harness.design import design_lines


def said(run: Run) -> str:
    return "\n".join(design_lines(run))


def test_two_arms_take_turns_and_three_are_rotated() -> None:
    assert "order: A B, B A, ... (ABBA); every arm is a fresh boot in every block" in said(scripted_run())
    assert "rotated by one place per block" in said(scripted_run(protocol={"a_a": True}))


def test_blocks_that_leave_places_uneven_are_told() -> None:
    assert "5 blocks of 3 arms leave places uneven by one; 6 blocks" in said(scripted_run(protocol={"a_a": True, "blocks": 5}))
    assert "uneven" not in said(scripted_run(protocol={"a_a": True, "blocks": 6}))
    assert "uneven" not in said(scripted_run(protocol={"blocks": 1}))


def test_what_the_blocks_can_carry_is_told() -> None:
    assert "one block is descriptive, no interval" in said(scripted_run(protocol={"blocks": 1}))
    assert "3 blocks, a screen; a claim takes five and an A/A arm; no A/A arm: no noise floor" in said(
        scripted_run(protocol={"blocks": 3})
    )
    assert "5 blocks, can carry a claim; plain2 is plain again" in said(scripted_run(protocol={"blocks": 5, "a_a": True}))
    assert design.CLAIM_BLOCKS == stats.CLAIM_BLOCKS


def test_the_pace_that_is_taken_is_told_and_none_is_not() -> None:
    assert "pace: 0.5 s of fixed work before every launch" in said(scripted_run(protocol={"calibration_s": 0.5}))
    assert "pace" not in said(scripted_run())


def test_warm_up_and_window_are_told() -> None:
    text = said(scripted_run(concurrency=[1, 8], protocol={"warmup_prompts": 2}))
    assert "at each concurrency batches of 2, 8 other prompts" in text
    assert "agrees within 5 %, at most 4" in text
    assert "from when all slots are busy" in text
    assert "warm-up: none" in said(scripted_run(protocol={"warmup_prompts": 0}))
    assert "open load at 3 requests a second" in said(scripted_run(protocol={"load": "open", "rate_rps": 3}))


def test_arms_of_unequal_budgets_are_told() -> None:
    equal, unequal = compose_run("smoke").run, compose_run("smoke", ["arms.mtp.draft_budget=9"]).run
    assert "budgets" not in said(equal)
    told = [line for line in design_lines(unequal) if line.startswith("budgets: not equal (ngram 4, mtp 9, eagle3 4")]
    assert len(told) == 1
    assert "the drafter is not the only variable" in told[0]
