"""A fast arm that loops, answers wrong or says other tokens is marked; one that differs by chance is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import request

from harness.gates.verdict import Gates, Texts, gates
from harness.grading import Grader, grade_rows
from harness.metrics import Missing
from harness.metrics.quality import Worse, accuracy, looping_share, worse

FRESH = list(range(100, 140))
LOOP = [7, 8, 9, 7] * 10


def rows(arm: str, tokens: Callable[[int], Sequence[int]], prompts: int = 8, blocks: int = 2) -> list[dict[str, Any]]:
    return [
        request(
            [(100.0, len(tokens(i)))],
            arm=arm,
            block=b,
            prompt_id=f"p{i}",
            token_ids=list(tokens(i)),
            request_id=f"{arm}-{b}-{i}",
        )
        for b in range(blocks)
        for i in range(prompts)
    ]


def grades(of: Sequence[dict[str, Any]], right: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    return [{"request_id": r["request_id"], "task": "gsm8k: exact match", "correct": right(r)} for r in of]


def judged(arm: list[dict[str, Any]], plain: list[dict[str, Any]], graded: Sequence[dict[str, Any]] = ()) -> Gates:
    return gates(Texts(arm, plain, [], [], graded, True, "float32"))


def test_an_arm_with_plains_text_carries_no_mark():
    arm, plain = rows("spec", lambda i: FRESH), rows("plain", lambda i: FRESH)
    got = judged(arm, plain, grades([*arm, *plain], lambda r: r["prompt_id"] == "p0"))
    assert got.marks == ()
    assert got.stops.arm == got.stops.plain
    both, n = got.accuracy["gsm8k: exact match"]
    assert (both.arm, both.plain, n) == (0.125, 0.125, 16)


def test_an_arm_that_loops_where_plain_does_not_is_marked():
    got = judged(rows("spec", lambda i: LOOP if i < 4 else FRESH), rows("plain", lambda i: FRESH))
    assert "loops" in got.marks
    assert got.looping.arm == 0.5
    assert got.looping.plain == 0.0


def test_loops_that_plain_has_too_are_not_held_against_the_arm():
    assert "loops" not in judged(rows("spec", lambda i: LOOP), rows("plain", lambda i: LOOP)).marks


def test_an_arm_that_answers_wrong_is_marked():
    arm, plain = rows("spec", lambda i: FRESH), rows("plain", lambda i: FRESH)
    got = judged(arm, plain, grades([*arm, *plain], lambda r: r["arm"] == "plain"))
    assert got.marks == ("answers wrong",)


def test_text_that_the_target_would_not_say_is_marked():
    arm, plain = rows("spec", lambda i: [*FRESH[:-1], 5]), rows("plain", lambda i: FRESH)
    replays = [{"request_id": r["request_id"], "deficits": [0.0] * 39 + [4.0]} for r in arm]
    got = gates(Texts(arm, plain, [], replays, [], True, "float32"))
    assert "not the target's text" in got.marks


def test_without_answers_to_check_accuracy_is_missing_and_not_zero():
    got = judged(rows("spec", lambda i: FRESH), rows("plain", lambda i: FRESH))
    assert got.accuracy == {}
    assert accuracy([]) == Missing("not_graded")
    assert looping_share([]) == Missing("no_requests")


@pytest.mark.parametrize(
    ("found", "marked"),
    [
        (Worse(5, 0, 100), True),
        (Worse(4, 0, 100), False),
        (Worse(10, 6, 100), False),
        (Worse(2, 0, 4), True),
        (Worse(1, 0, 4), False),
        (Worse(0, 5, 10), False),
        (Worse(0, 0, 10), False),
    ],
)
def test_what_counts_as_worse(found: Worse, marked: bool):
    assert found.marked is marked


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_an_arm_and_plain_swapped_are_never_both_worse(pairs: list[tuple[bool, bool]]):
    arm = {("s", str(i)): [a] for i, (a, _) in enumerate(pairs)}
    plain = {("s", str(i)): [p] for i, (_, p) in enumerate(pairs)}
    one, other = worse(arm, plain), worse(plain, arm)
    assert isinstance(one, Worse)
    assert isinstance(other, Worse)
    assert not (one.marked and other.marked)
    assert one.prompts == len(pairs)


def test_a_prompt_fails_when_most_of_its_blocks_do():
    got = worse({("s", "a"): [True, True, False], ("s", "b"): [True, False]}, {("s", "a"): [False], ("s", "b"): [False]})
    assert got == Worse(1, 0, 2)


class Spelled:
    """Token ids are code points."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def test_grading_reads_the_pinned_answers_and_checks_equal_texts_once(monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []
    from harness import grading
    from harness.gates.sandbox import Outcome

    monkeypatch.setattr(grading, "run_program", lambda source: ran.append(source) or Outcome("passed", ("limits",)))
    code = "```python\ndef truncate_number(number):\n    return number % 1\n```"

    def asked(name: str, prompt: str, text: str, **given: Any) -> dict[str, Any]:
        ids = [ord(c) for c in text]
        return request(
            [(100.0, len(ids))],
            prompt_set=name,
            prompt_id=prompt,
            token_ids=ids,
            request_id=f"{name}{prompt}{len(text)}",
            **given,
        )

    asked_rows = [
        asked("gsm8k", "gsm8k/13", "So: 18. Answer: 18", finish="stop"),
        asked("gsm8k", "gsm8k/13", "Answer: 19", finish="stop"),
        asked("humaneval", "HumanEval/2", code),
        asked("humaneval", "HumanEval/2", code),
        asked("humaneval", "HumanEval/2", "no"),
        asked("gsm8k", "gsm8k/13", "Answer: 18", phase="warmup"),
        asked("chat", "chat/1", "18"),
        asked("gsm8k", "gsm8k/13", "Answer: 18", error="timeout"),
    ]
    keys = {"run_id": "r", "serving_id": "s", "block": 0, "arm": "plain"}
    found = list(grade_rows(keys, Grader(Spelled(), True).grades(asked_rows)))
    assert [(g["task"], g["correct"], g["outcome"]) for g in found] == [
        ("gsm8k: exact match", True, "right"),
        ("gsm8k: exact match", False, "wrong"),
        ("humaneval: tests", True, "passed"),
        ("humaneval: tests", True, "passed"),
        ("humaneval: tests", False, "no code"),
    ]
    assert len(ran) == 1
    assert not any(g["task"] == "humaneval: tests" for g in grade_rows(keys, Grader(Spelled(), False).grades(asked_rows)))
