"""Best budgets: swept on prompts that nobody measures, chosen by measured speed, and shown in a table of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic import CONFIG, request_of_steps, serving, write_run

from harness.best_budget import at_budget, best_budgets, joined, sweep_run, with_best_budgets
from harness.compose import ComposedRun, ConfigError, compose_run
from harness.plan import plan_run
from harness.report import print_report
from harness.report.budgets import best_arms, matched_arms
from harness.report.run import read_run
from harness.workloads import load_set, prompt_count, select
from tests.harness.rigs_cases import TWO_ARMS

CANDIDATES = "budget_candidates=[1,3,5]"


@pytest.fixture
def composed() -> ComposedRun:
    return compose_run("cpu_smollm2", [*TWO_ARMS, "best_budget=true", CANDIDATES, "concurrency=[1,8]"])


def test_the_sweep_tries_every_candidate_once_beside_plain_and_looks_at_nothing_else(composed: ComposedRun):
    sweep = sweep_run(composed).run
    assert list(sweep.arms) == ["plain", "ngram_k1", "ngram_k3", "ngram_k5"]
    assert [arm.draft_budget for arm in sweep.arms.values()] == [None, 1, 3, 5]
    assert (sweep.protocol.blocks, sweep.protocol.a_a, sweep.best_budget) == (1, False, False)
    assert (sweep.protocol.width_rounds, sweep.protocol.replays_per_set, sweep.protocol.check_answers) == (0, 0, "none")
    assert sweep.target == composed.run.target
    assert sweep.sampler == composed.run.sampler


@pytest.mark.parametrize("level", [1, 8])
def test_no_prompt_of_the_sweep_is_measured(composed: ComposedRun, level: int):
    """As `harness.prompts` picks them: the first ones are skipped."""
    sweep = sweep_run(composed).run
    for prompt_set in composed.run.workload.sets:
        data, seed = load_set(prompt_set.set), composed.run.workload.seed
        measured = select(data, prompt_count(composed.run.protocol, level), seed)
        skip = sweep.workload.skip_prompts
        swept = select(data, skip + prompt_count(sweep.protocol, level), seed)[skip:]
        assert len(swept) == prompt_count(sweep.protocol, level)
        assert not {p.id for p in measured} & {p.id for p in swept}


def test_a_sweep_that_would_run_out_of_prompts_is_told_by_the_plan(tmp_path: Path):
    full = compose_run("cpu_smollm2", ["best_budget=true", CANDIDATES, "protocol=claim", "concurrency=[32]"])
    missing = [text for text in plan_run(full, tmp_path).missing if text.startswith("best_budget")]
    assert missing
    assert "distinct prompts needed" in missing[0]


def test_best_budget_without_candidates_is_refused():
    with pytest.raises(ConfigError, match="budget_candidates"):
        compose_run("cpu_smollm2", ["best_budget=true", "budget_candidates=[]"])


def test_a_chosen_budget_becomes_an_arm_unless_it_is_the_matched_one(composed: ComposedRun):
    run = joined(composed, {"ngram": {1: 5, 8: 1}}, "sweep-id").run
    assert list(run.arms) == ["plain", "ngram", "ngram_k1", "ngram_k5"]
    assert run.arms["ngram"].tuned is None
    assert run.arms["ngram_k5"].draft_budget == 5
    assert run.arms["ngram_k5"].tuned is not None
    assert (run.arms["ngram_k5"].tuned.of, run.arms["ngram_k5"].tuned.at, run.arms["ngram_k5"].tuned.run) == (
        "ngram",
        (1,),
        "sweep-id",
    )
    matched = joined(composed, {"ngram": {1: 4, 8: 4}}, "sweep-id").run
    assert list(matched.arms) == ["plain", "ngram"]
    assert matched.arms["ngram"].tuned is not None
    assert matched.arms["ngram"].tuned.at == (1, 8)


def test_a_saved_configuration_can_be_swept_again(composed: ComposedRun):
    again = joined(composed, {"ngram": {1: 5}}, "first")
    assert list(sweep_run(again).run.arms) == list(sweep_run(composed).run.arms)
    assert list(joined(again, {"ngram": {1: 3}}, "second").run.arms) == ["plain", "ngram", "ngram_k3"]


def _rows(arm: str, budget: int | None, accepted: int, step_ms: float, level: int = 1) -> list[dict[str, Any]]:
    return [
        request_of_steps(
            [budget or 0] * 10,
            [accepted] * 10,
            step_ms=step_ms,
            arm=arm,
            serving_id=f"b0-{arm}",
            cell_id=f"{arm}-{level}",
            concurrency=level,
            prompt_id=f"p{i}",
            request_id=f"{arm}-{level}-{i}",
            sent_ns=i * 10**10,
        )
        for i in range(3)
    ]


def _written(folder: Path, arms: Mapping[str, tuple[int | None, int, float]], config: Mapping[str, Any] = CONFIG) -> Path:
    servings = [serving(arm, draft_budget=budget) for arm, (budget, _, _) in arms.items()]
    requests = [row for arm, spec in arms.items() for row in _rows(arm, *spec)]
    named = {**config, "arms": {arm: config["arms"].get(arm, {"method": "ngram"}) for arm in arms}, "concurrency": [1]}
    return write_run(folder, {"servings": servings, "requests": requests, "steps": [], "samples": []}, named)


def test_the_fastest_budget_is_chosen_and_not_the_one_that_accepts_most(tmp_path: Path, composed: ComposedRun):
    tried = {"plain": (None, 0, 20.0), at_budget("ngram", 1): (1, 1, 22.0), at_budget("ngram", 3): (3, 2, 25.0)}
    tried[at_budget("ngram", 5)] = (5, 4, 60.0)
    found = best_budgets(read_run(_written(tmp_path / "sweep", tried)), composed.run)
    assert found == {"ngram": {1: 3}}


def test_a_finished_sweep_of_the_same_sources_is_not_measured_again(
    tmp_path: Path, composed: ComposedRun, monkeypatch: pytest.MonkeyPatch
):
    tried = {"plain": (None, 0, 20.0), at_budget("ngram", 3): (3, 2, 25.0)}
    folder = _written(tmp_path / "sweep", tried)
    monkeypatch.setattr("harness.best_budget.find_finished", lambda *_: folder)

    def measure(_: ComposedRun) -> Path:
        raise AssertionError("measured again")

    assert "ngram_k3" in with_best_budgets(composed, tmp_path, False, measure).run.arms
    measured: list[str] = []
    with_best_budgets(composed, tmp_path, True, lambda sweep: measured.append(sweep.run.name) or folder)
    assert measured == ["cpu_smollm2-budgets"]


def test_the_report_shows_matched_and_best_budgets_apart(tmp_path: Path):
    tuned = {"method": "ngram", "tuned": {"of": "ngram", "at": [1], "run": "the-sweep"}}
    config = {**CONFIG, "arms": {**CONFIG["arms"], "ngram_k2": tuned}}
    arms = {"plain": (None, 0, 20.0), "ngram": (4, 2, 30.0), "ngram_k2": (2, 2, 25.0)}
    folder = _written(tmp_path / "run", arms, config)
    run = read_run(folder)
    assert matched_arms(run) == ["plain", "ngram"]
    assert best_arms(run, 1) == ["plain", "ngram_k2"]
    assert best_arms(run, 8) == []
    console = Console(width=200, record=True, file=StringIO())
    print_report(folder, console)
    text = console.export_text()
    first, _, second = text.partition(
        "best budget: each drafter at its own best draft budget, chosen on other prompts in the-sweep"
    )
    assert "matched draft budget" in first
    table = second.partition("control:")[0]
    assert "ngram_k2" in table
    assert "  ngram " not in table
    assert "ngram_k2" not in first


def test_without_a_sweep_there_is_one_table_of_all_arms(tmp_path: Path):
    folder = _written(tmp_path / "run", {"plain": (None, 0, 20.0), "ngram": (4, 2, 30.0)})
    run = read_run(folder)
    assert matched_arms(replace(run)) == ["plain", "ngram"]
    assert best_arms(run, 1) == []
