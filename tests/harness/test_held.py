"""What was asked for and what an engine holds stand side by side: in the plan, in a replay and above a run's table."""

from __future__ import annotations

import io
import json
from copy import deepcopy
from pathlib import Path

import pytest
from rich.console import Console
from synthetic import CONFIG, simulate, write_run

from harness import cli
from harness.compose import compose_run
from harness.config import Run
from harness.plan import plan_run, print_plan
from harness.report.header import header_lines
from harness.report.run import read_run

SLOTS = "engine.max_running_requests"


def planned(rig: str, *overrides: str) -> str:
    out = io.StringIO()
    print_plan(plan_run(compose_run(rig, overrides), Path("none")), Console(file=out, width=200))
    return out.getvalue()


@pytest.mark.parametrize("rig", ["cpu_smollm2_llamacpp", "cpu_smollm2"])
def test_a_cache_larger_than_its_slots_hold_is_told_beside_what_they_hold(rig: str) -> None:
    text = planned(rig, f"{SLOTS}=4", "engine.kv_tokens=65536")
    assert "kv_tokens = 8192 (engine.kv_tokens asks for 65536: 4 slots of 2048 tokens)" in text
    assert "KV capacity 8192 tokens" in text
    assert "context_limit = 2048\n" in text


def test_a_cache_too_small_for_the_context_of_every_slot_is_told() -> None:
    text = planned("cpu_smollm2_llamacpp", f"{SLOTS}=4", "engine.kv_tokens=4098")
    assert "kv_tokens = 4096 (engine.kv_tokens asks for 4098: 4 slots of 1024 tokens)" in text
    assert "context_limit = 1024 (target.context is 2048; a slot's share of engine.kv_tokens is less)" in text


@pytest.mark.parametrize("rig", ["cpu_smollm2_llamacpp", "smoke"])
def test_slots_that_hold_no_answer_are_missing_before_anything_runs(rig: str) -> None:
    plan = plan_run(compose_run(rig, ["engine.kv_tokens=1"]), Path("none"))
    assert any(line.startswith("engine.kv_tokens: a slot holds 0 tokens, an answer may take ") for line in plan.missing)


def test_what_is_held_as_asked_has_nothing_beside_it() -> None:
    assert "asks for" not in planned("cpu_smollm2_llamacpp")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.probe.gpus", lambda: [])


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("engine", ["reference", "llama_cpp"])
def test_a_replay_says_once_above_its_plan_and_once_in_it_what_is_held(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["machine=auto", "target=smollm2", f"engine={engine}"]
    cli.main(["replay", "published/h200_qwen27b_card", "--plan", "--substitute", *words])
    above, _, plan = capsys.readouterr().out.partition("runs nothing")
    told = "engine.kv_tokens asks for 262144: 32 slots of 2048 tokens"
    assert f"kv_tokens 65536 held: {told}" in above
    assert f"kv_tokens = 65536 ({told})" in plan


@pytest.mark.parametrize(("held", "told"), [(4096, "KV 4096 tokens"), (2048, "KV 2048 (4096 asked) tokens"), (None, "KV 4096")])
def test_the_table_of_a_run_says_what_was_held(held: int | None, told: str, tmp_path: Path) -> None:
    tables = simulate(1)
    for serving in tables["servings"]:
        serving["resolved"] |= {"kv_tokens": json.dumps(held)}
    run = read_run(write_run(tmp_path / "run", tables, deepcopy(CONFIG)))
    assert told in dict(header_lines(run))["engine"]


def test_shipped_rigs_hold_what_they_ask_for() -> None:
    """A rig whose slots hold less than it states would be read wrongly by whoever opens its file."""
    from harness.compose import load_dotted
    from harness.held import beside_asked
    from harness.rigs import list_rigs

    for name, _ in list_rigs():
        run: Run = compose_run(name).run
        assert not beside_asked(run, load_dotted(run.engine.adapter).plan(run, run.arms["plain"]).pinned), name
