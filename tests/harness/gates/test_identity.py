"""First differences against plain, their kind by the target's own logits, and the floor of plain against itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from synthetic import request

from harness.gates.identity import NEAR_TIE, Identity, compare_texts, first_difference, floor_of
from harness.metrics import Missing, repetition_score


def row(arm: str, tokens: Sequence[int], block: int = 0, prompt: str = "p0", **given: Any) -> dict[str, Any]:
    name = f"{arm}-{block}-{prompt}-{given.get('concurrency', 1)}"
    return request(
        [(100.0, len(tokens))], arm=arm, block=block, prompt_id=prompt, token_ids=list(tokens), request_id=name, **given
    )


def replayed(of: dict[str, Any], deficits: Sequence[float]) -> dict[str, Any]:
    return {"request_id": of["request_id"], "deficits": list(deficits)}


@pytest.mark.parametrize(
    ("one", "other", "position"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([], [], None)],
)
def test_the_first_token_that_differs(one: list[int], other: list[int], position: int | None):
    assert first_difference(one, other) == position
    assert first_difference(other, one) == position


def test_h07_an_arm_that_differs_where_plain_differs_from_itself_is_within_the_floor():
    plain = [row("plain", [5, 6, 7, 8, 9], block=0), row("plain", [5, 6, 7, 8, 1], block=1)]
    got = compare_texts([row("spec", [5, 6, 7, 8, 2], block=0)], plain, [], [], True, "bfloat16")
    assert isinstance(got, Identity)
    assert [d.position for d in got.found] == [4]
    assert got.floor == {(1, "humaneval", "p0"): 4}
    assert got.below_floor == 0
    assert got.verdict == "within the floor"


def test_an_arm_that_differs_earlier_than_plain_does_is_below_the_floor():
    plain = [row("plain", [5, 6, 7, 8, 9], block=0), row("plain", [5, 6, 7, 8, 1], block=1)]
    got = compare_texts([row("spec", [5, 6, 1, 8, 9])], plain, [], [], True, "bfloat16")
    assert isinstance(got, Identity)
    assert got.below_floor == 1
    assert got.verdict == "differs"


def test_equal_texts_are_identical_and_other_blocks_are_not_compared():
    plain = [row("plain", [1, 2, 3], block=0), row("plain", [1, 2, 3], block=1)]
    got = compare_texts([row("spec", [1, 2, 3], block=0), row("spec", [9], block=2)], plain, [], [], True, "float32")
    assert isinstance(got, Identity)
    assert (got.compared, got.identical, got.verdict, got.floor_identical) == (1, 1, "identical", 1)


@pytest.mark.parametrize("dtype", NEAR_TIE)
def test_a_token_that_the_target_ranks_as_high_is_numeric_and_any_other_is_suspect(dtype: str):
    plain = [row("plain", [1, 2, 3, 4])]
    arm = row("spec", [1, 2, 9, 4])
    limit = NEAR_TIE[dtype]
    for deficit, verdict in ((0.0, "numeric"), (limit * 0.9, "numeric"), (limit * 1.1, "suspect")):
        got = compare_texts([arm], plain, [], [replayed(arm, [0, 0, deficit, 50.0])], True, dtype)
        assert isinstance(got, Identity)
        assert got.verdict == verdict, deficit


def test_one_suspect_among_near_ties_makes_the_arm_suspect():
    plain = [row("plain", [1, 2], prompt=p) for p in ("p0", "p1")]
    arm = [row("spec", [1, 9], prompt=p) for p in ("p0", "p1")]
    replays = [replayed(arm[0], [0, 0.1]), replayed(arm[1], [0, 7.0])]
    got = compare_texts(arm, plain, [], replays, True, "bfloat16")
    assert isinstance(got, Identity)
    assert (got.count("numeric"), got.count("suspect"), got.verdict) == (1, 1, "suspect")


def test_a_text_that_ends_where_plain_goes_on_is_suspect():
    got = compare_texts([row("spec", [1, 2])], [row("plain", [1, 2, 3])], [], [], True, "bfloat16")
    assert isinstance(got, Identity)
    assert got.verdict == "suspect"


def test_a_second_plain_arm_gives_a_floor_within_one_block():
    plain, twin = row("plain", [1, 2, 3]), row("plain2", [1, 2, 9])
    assert floor_of([plain], [twin]) == {(1, "humaneval", "p0"): 2}
    assert floor_of([plain], []) == {}


def test_the_same_prompt_at_two_concurrency_levels_is_two_places():
    rows = [row("plain", [1, 2], block=b, concurrency=c) for b in (0, 1) for c in (1, 8)]
    assert set(floor_of(rows, [])) == {(1, "humaneval", "p0"), (8, "humaneval", "p0")}


def test_sampled_texts_and_arms_without_a_pair_have_no_identity():
    plain = [row("plain", [1])]
    assert compare_texts([row("spec", [2])], plain, [], [], False, "float32") == Missing("not_greedy")
    assert compare_texts([row("spec", [2], block=3)], plain, [], [], True, "float32") == Missing("no_pairs")


def test_tokens_that_the_engine_did_not_name_are_left_out_and_a_text_of_them_is_no_text():
    plain = [row("plain", [*range(20), -1])]
    got = compare_texts([row("spec", [*range(20), -1])], plain, [], [], True, "float32")
    assert isinstance(got, Identity)
    assert got.verdict == "identical"
    assert compare_texts([row("spec", [-1] * 20)], plain, [], [], True, "float32") == Missing("no_pairs")
    assert repetition_score(row("spec", [-1] * 20)) == Missing("not_reported")
