"""Order of servings, and what a cell's name depends on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_bench import NGRAM, PLAIN, scripted_run

from harness.schedule import arm_order, arms_with_control, plan_servings


def ids(run: Any, code: str = "code") -> set[str]:
    return {cell.cell_id for serving in plan_servings(run, code) for cell in serving.cells}


@given(st.integers(1, 6), st.integers(1, 4))
def test_over_a_full_rotation_every_arm_takes_every_place_equally_often(arms: int, rounds: int) -> None:
    names = [f"arm{i}" for i in range(arms)]
    places = Counter((name, place) for block in range(arms * rounds) for place, name in enumerate(arm_order(names, block)))
    assert set(places.values()) == {rounds}
    assert len(places) == arms * arms


def test_two_arms_take_turns_in_going_first() -> None:
    order = [serving.arm_name for serving in plan_servings(scripted_run(protocol={"blocks": 4}), "code")]
    assert order == ["plain", "ngram", "ngram", "plain"] * 2


def test_every_block_boots_every_arm_once_and_holds_every_cell() -> None:
    run = scripted_run(protocol={"blocks": 3, "a_a": True})
    servings = plan_servings(run, "code")
    assert Counter((s.block, s.arm_name) for s in servings) == {
        (b, a): 1 for b in range(3) for a in ("plain", "ngram", "plain2")
    }
    assert all(len(s.cells) == 4 for s in servings)
    assert len(ids(run)) == 3 * 3 * 4


def test_the_a_a_arm_is_plain_under_another_name() -> None:
    arms = arms_with_control(scripted_run(protocol={"a_a": True}))
    assert list(arms) == ["plain", "ngram", "plain2"]
    assert (arms["plain2"].method, arms["plain2"].label, arms["plain2"].draft_budget) == ("plain", "plain (A/A)", None)


def test_an_arm_that_takes_the_name_of_the_a_a_arm_is_refused() -> None:
    run = scripted_run(protocol={"a_a": True}, arms={"plain": PLAIN, "plain2": NGRAM})
    with pytest.raises(ValueError, match=r"arms\.plain2: the name is taken"):
        arms_with_control(run)


def test_lower_concurrency_is_measured_first() -> None:
    run = scripted_run(concurrency=[4, 1, 2])
    assert [cell.concurrency for cell in plan_servings(run, "code")[0].cells] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    "changed",
    [
        scripted_run({"step_ms": 3}),
        scripted_run(protocol={"prompts_per_set": 4}),
        scripted_run(sampler={"temperature": 0.5, "top_p": 1, "top_k": 0, "seed": 1}),
        scripted_run(machine={"kind": "cpu", "threads": 1}),
    ],
)
def test_a_change_of_the_rig_changes_every_cell(changed: Any) -> None:
    assert not ids(scripted_run()) & ids(changed)


def test_a_change_of_the_code_changes_every_cell() -> None:
    assert not ids(scripted_run(), "code") & ids(scripted_run(), "other code")


def test_a_change_of_one_arm_leaves_the_cells_of_the_others() -> None:
    changed = scripted_run(arms={"plain": PLAIN, "ngram": {**NGRAM, "draft_budget": 5}})
    kept = ids(scripted_run()) & ids(changed)
    assert kept == {c.cell_id for s in plan_servings(changed, "code") if s.arm_name == "plain" for c in s.cells}


def test_the_name_and_summary_of_a_run_change_no_cell() -> None:
    assert ids(scripted_run()) == ids(scripted_run(name="other", summary="other"))
