"""Numbers and functions out of answers as small models write them."""

from __future__ import annotations

import pytest

from harness.gates.answers import number_given, program, same_number
from harness.gates.sandbox import run_program
from harness.workloads import load_set


@pytest.mark.parametrize(
    ("text", "ended", "given"),
    [
        ("First 3, then 4.\nAnswer: 18", True, "18"),
        ("Answer: 5\nNo, wait.\nAnswer: $1,430.00.", True, "$1,430.00"),
        ("So he has 12 apples left.", True, "12"),
        ("So he has 12 apples and then", False, None),
        ("Answer: 7 and it was cut he", False, "7"),
        ("Answer: nothing", True, None),
        ("no number at all", True, None),
        ("It fell to -3 degrees", True, "-3"),
    ],
)
def test_the_number_of_an_answer(text: str, ended: bool, given: str | None):
    assert number_given(text, ended) == given


@pytest.mark.parametrize(
    ("given", "right", "same"),
    [
        ("18", "18", True),
        ("$1,430.00", "1430", True),
        ("18.5", "18", False),
        ("-18", "18", False),
        (None, "18", False),
        ("1,2,3", "123", True),
    ],
)
def test_numbers_are_equal_as_decimals(given: str | None, right: str, same: bool):
    assert same_number(given, right) is same


SOLUTIONS = {
    "HumanEval/2": "    return number % 1.0\n",
    "HumanEval/53": "    return x + y\n",
}


def _problem(name: str):
    return next(p for p in load_set("humaneval").prompts if p.id == name)


@pytest.mark.parametrize("name", sorted(SOLUTIONS))
def test_a_right_function_passes_its_tests_and_a_wrong_one_does_not(name: str):
    problem = _problem(name)
    code = problem.messages[-1][1].partition("```python\n")[2].rpartition("\n```")[0]
    right = program(problem.messages[-1][1], f"Sure!\n```python\n{code}\n{SOLUTIONS[name]}```\nDone.", problem.answer)
    wrong = program(problem.messages[-1][1], f"```python\n{code}\n    return None\n```", problem.answer)
    assert right is not None
    assert wrong is not None
    assert run_program(right).passed
    assert not run_program(wrong).passed


def test_imports_and_helpers_of_the_prompt_come_first():
    problem = _problem("HumanEval/38")  # decode_cyclic needs encode_cyclic of the prompt
    answer = (
        "def decode_cyclic(s: str):\n    return encode_cyclic(encode_cyclic(s))"  # cut before a closing fence, no fence at all
    )
    source = program(problem.messages[-1][1], answer, problem.answer)
    assert source is not None
    assert run_program(source).passed


def test_text_without_the_function_has_no_program():
    problem = _problem("HumanEval/2")
    assert program(problem.messages[-1][1], "```python\ndef other():\n    pass\n```", problem.answer) is None
    assert program(problem.messages[-1][1], "I cannot do that.", problem.answer) is None


def test_the_block_that_defines_the_function_is_taken_and_may_be_unclosed():
    problem = _problem("HumanEval/53")
    text = "Use it so:\n```python\nadd(1, 2)\n```\nHere:\n```python\ndef add(x, y):\n    return x + y"
    source = program(problem.messages[-1][1], text, problem.answer)
    assert source is not None
    assert run_program(source).passed


def test_every_problem_of_the_set_has_an_entry_point_in_its_prompt():
    for problem in load_set("humaneval").prompts:
        assert f"def {problem.answer['entry_point']}(" in problem.messages[-1][1]
