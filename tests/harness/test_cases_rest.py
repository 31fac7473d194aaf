"""Traps of areas C to I and K that give no input of their own: the situation that their text describes, and the right answer.

Every trap of these areas has a test: one that is named after it, or one of `ELSEWHERE`. The last tests here see to that.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic import request, request_of_steps, serving

from harness.control import Side, compare
from harness.metrics import Missing, cap_hit_rate, ledger_of, length_parity, tokens_per_step, tpot_ms
from harness.report.header import _sampler
from harness.speedup import latency_speedup
from harness.workloads import manifest

TESTS = Path(__file__).parents[1]
AREAS = "CDEFGHIK"
ELSEWHERE = {
    "C03": "harness/test_report.py::test_fixed_length_is_labelled_and_acceptance_ends_at_the_stop_token",
    "C05": "harness/gates/test_verdict.py::test_an_arm_that_answers_wrong_is_marked",
    "C11": "harness/test_workloads.py::test_frozen_turns_end_with_the_user_and_alternate",
    "D02": "harness/test_validity.py::test_what_is_compiled_or_captured_inside_the_window_is_a_problem",
    "D04": "harness/test_run.py::test_each_concurrency_is_warmed_once_per_serving_with_prompts_that_are_not_measured",
    "D06": "harness/test_workloads.py::test_more_prompts_than_the_set_has_are_refused_instead_of_repeated",
    "D07": "drafters/test_ngram.py::test_a_released_slot_starts_empty",
    "D11": "harness/engines/test_server.py::test_a_port_that_another_process_answers_is_refused",
    "F03": "harness/test_best_budget.py::test_the_fastest_budget_is_chosen_and_not_the_one_that_accepts_most",
    "F05": "harness/test_best_budget.py::test_the_sweep_tries_every_candidate_once_beside_plain_and_looks_at_nothing_else",
    "G02": "harness/test_rendering.py::test_a_tokenizer_without_a_chat_template_is_refused",
    "G03": "harness/test_rendering.py::test_a_prompt_that_already_went_through_a_template_is_refused",
    "G04": "harness/test_workloads.py::test_a_changed_byte_is_refused_and_the_message_names_file_and_fix",
    "I04": "harness/test_decompose.py::test_the_crossover_interval_holds_the_levels_that_could_be_one",
    "I05": "harness/test_report.py::test_the_table_fits_and_holds_every_column",
    "I06": "harness/test_validity.py::test_preemptions_make_a_cell_invalid",
    "K03": "harness/test_calibration.py::test_every_serving_of_a_run_holds_its_pace",
    "K06": "harness/test_probe.py::test_a_mig_instance_leaves_what_it_cannot_tell_absent",
}


def side(arm: str, rows: list[dict[str, Any]] | None = None, samples: list[dict[str, Any]] | None = None, **given: Any) -> Side:
    asked = rows or [request([(100, 1), (200, 39)], arm=arm, serving_id=f"b0-{arm}")]
    return Side([serving(arm, **given)], asked, [], samples or [])


def confounders(plain: Side, arm: Side) -> list[str]:
    return [finding.factor for finding in compare(plain, arm, 1).of("confounder")]


def answers(arm: str, tokens: int) -> list[dict[str, Any]]:
    """Eight answers one after another, 10 ms a token in both arms: whoever says less is done earlier."""
    spans = [{"sent_ns": i * 10**10, "prompt_id": f"p{i}", "arm": arm, "serving_id": f"b0-{arm}"} for i in range(8)]
    return [request([(100, 1), (100 + 10 * (tokens - 1), tokens - 1)], max_tokens=128, **given) for given in spans]


def test_c01_an_arm_that_says_less_is_not_faster() -> None:
    plain, arm = answers("plain", 120), answers("ngram", 60)
    assert confounders(side("plain", plain), side("ngram", arm)) == ["output_length"]
    assert latency_speedup({"plain": plain, "ngram": arm}, "ngram", "plain") == Missing("lengths_differ")
    assert getattr(length_parity(plain, arm), "median", None) == pytest.approx(0.5)


def test_c07_limits_are_equal_in_all_arms_and_hitting_them_is_counted() -> None:
    plain, arm = answers("plain", 120), [row | {"max_tokens": 131072} for row in answers("ngram", 120)]
    assert confounders(side("plain", plain), side("ngram", arm)) == ["max_tokens of 8 prompts"]
    exploded = [*answers("ngram", 120)[:6], *(row | {"finish": "stop"} for row in answers("ngram", 30)[:2])]
    assert cap_hit_rate(exploded) == 0.75


def test_c09_two_boots_of_one_configuration_differ_by_their_texts_and_not_by_their_steps() -> None:
    """Medians of 168 and 302 tok/s at acceptance lengths of 2.8 and 5.6: per step it is the same engine within a tenth."""
    step_ms = []
    for accepted, tps in ((18, 168.0), (46, 302.0)):  # over ten steps each
        per_step = 1000 * (10 + accepted) / 10 / tps
        row = request_of_steps([7] * 10, [accepted // 10 + (i < accepted % 10) for i in range(10)], step_ms=per_step)
        per_token, length = tpot_ms(row, 7), tokens_per_step(ledger_of(row, 7))
        assert isinstance(per_token, float)
        assert isinstance(length, float)
        assert 1000 / per_token == pytest.approx(tps)
        step_ms.append(per_token * length)
    assert step_ms[1] / step_ms[0] == pytest.approx(1.11, abs=0.01)


def test_g06_public_benchmarks_are_flagged_and_prompts_of_our_own_stand_beside_them() -> None:
    public = {name for name, (_, entry) in manifest().items() if entry.public_benchmark}
    assert {"humaneval", "gsm8k"} <= public
    assert {"chat", "prose", "structured"} <= manifest().keys() - public


def test_g07_no_set_is_made_of_random_tokens() -> None:
    assert not [name for name, (_, entry) in manifest().items() if re.search(r"random|synthetic tokens", entry.source)]


def test_g08_and_g11_made_contexts_are_told_and_every_set_has_its_language() -> None:
    entries = {name: entry for name, (_, entry) in manifest().items()}
    assert "synthetic" in str(entries["long"].context)
    assert all(entry.language for entry in entries.values())


@pytest.mark.parametrize(
    ("given", "text"),
    [({"temperature": 0.0}, "greedy"), ({"temperature": 1.0, "top_k": 1}, "T=1 top_p=1 top_k=1 seed=0")],
)
def test_h04_the_sampler_that_was_sent_is_printed(given: dict[str, Any], text: str) -> None:
    """At `top_k=1` a temperature of 1 is greedy: the reader sees both."""
    assert _sampler({"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0} | given) == text


def clocked(arm: str, mhz: list[float]) -> list[dict[str, Any]]:
    at = {"device": "gpu0", "serving_id": f"b0-{arm}", "utilization": 0.95}
    return [at | {"at_ns": (i + 1) * 10**6, "clock_mhz": value} for i, value in enumerate(mhz)]


def test_k02_the_clock_contract() -> None:
    """30 busy samples, spread within a run up to 5 %, medians and means within 1 % of each other."""
    kept = side("plain", samples=clocked("plain", [1800.0, 1830.0] * 20))
    assert compare(kept, side("ngram", samples=clocked("ngram", [1805.0, 1835.0] * 20)), 1).findings == ()
    few = compare(kept, side("ngram", samples=clocked("ngram", [1800.0, 1830.0] * 14)), 1)
    assert [(f.kind, f.arm) for f in few.findings] == [("note", "28 samples")]
    same_median = [1815.0] * 30 + [1600.0] * 10
    assert confounders(kept, side("ngram", samples=clocked("ngram", same_median))) == ["clock of gpu0"], "means differ"


def test_k09_the_clock_that_counts_is_the_one_under_load_and_not_the_lock() -> None:
    """Both arms are locked to 1830 MHz; one does not hold it."""
    host = serving("plain")["host"] | {"gpu0_max_clock_mhz": "1980"}
    plain, arm = (
        side(name, samples=clocked(name, [mhz] * 40), host=host) for name, mhz in (("plain", 1830.0), ("ngram", 1500.0))
    )
    assert confounders(plain, arm) == ["clock of gpu0"]


# --- is every trap there? ---


def _cases() -> list[str]:
    lines = (TESTS / "cases" / "cases.jsonl").read_text("utf-8").splitlines()
    return [case["id"] for line in lines if (case := json.loads(line))["id"][0] in AREAS]


def _tests(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [function for function in functions if function.name.startswith("test_")]


def _named() -> set[str]:
    """Traps that are in the name of a test (`test_g08_and_g11_...`), or in the values that one is tried with (`"E02"`)."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for test in _tests(path):
            found |= {part.upper() for part in test.name.split("_") if re.fullmatch(r"[a-z]\d\d", part)}
            tried = [node.value for mark in test.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Constant)]
            found |= {value for value in tried if isinstance(value, str) and re.fullmatch(r"[A-Z]\d\d", value)}
    return found


def test_every_trap_of_these_areas_has_a_test() -> None:
    assert len(_cases()) == 62
    assert sorted(set(_cases()) - _named() - ELSEWHERE.keys()) == []


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_test_that_is_said_to_be_elsewhere_is_there(case: str) -> None:
    file, _, name = ELSEWHERE[case].partition("::")
    assert case in _cases()
    assert name in [test.name for test in _tests(TESTS / file)]
