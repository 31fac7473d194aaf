"""Plain at its best as it is asked for: one plain arm with engine flags of its own, and what every engine makes of them."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console
from scripted_bench import NGRAM, PLAIN, scripted_run
from synthetic import serving

from harness.audit.compare import audit
from harness.audit.rig import from_run
from harness.baselines import FIELDS, Value, check_baselines, for_arm, moved_by, plain_of
from harness.compose import ComposedRun, ConfigError, compose_run, composed_of, load_dotted
from harness.config import Run
from harness.engines.base import ArmError, ArmPlan, Engine
from harness.plan import plan_run, print_plan
from harness.report.baselines import best_lines
from harness.report.run import FinishedRun, read_run
from harness.rigs import ROOT
from harness.schedule import arms_with_control

OPT_IN = "+arm@arms.plain_best=plain_best"
SAMPLES = sorted((ROOT / "results" / "sample").iterdir())
NOWHERE = Path("no-results-here")


@cache
def opted(rig: str, *overrides: str) -> ComposedRun:
    return compose_run(rig, [OPT_IN, *overrides])


@cache
def bare(rig: str) -> Run:
    return compose_run(rig).run


def with_best(run: Run, **flags: Value) -> Run:
    """The run with the opt-in arm and no flags but these; `_` in a name that is no field of the rig stands for `-`."""
    named = {name if name in FIELDS else name.replace("_", "-"): value for name, value in flags.items()}
    arm = opted("h200_qwen27b").run.arms["plain_best"].model_copy(update={"engine_flags": named})
    return run.model_copy(update={"arms": {**run.arms, "plain_best": arm}})


def plans(run: Run) -> dict[str, ArmPlan]:
    adapter: type[Engine] = load_dotted(run.engine.adapter)
    return {name: adapter.plan(for_arm(run, arm), arm) for name, arm in run.arms.items()}


def after(plan: ArmPlan, flag: str) -> str:
    return plan.base[plan.base.index(flag) + 1]


def without(words: tuple[str, ...], *flags: str) -> list[str]:
    """A command without these flags and the value of each."""
    left = list(words)
    for one in flags:
        at = left.index(one)
        del left[at : at + (1 if left[at + 1].startswith("--") else 2)]
    return left


@pytest.mark.parametrize(
    ("rig", "gone"),
    [
        ("h200_qwen27b", ("--attention-backend", "--min-free-slots-delay")),
        ("h200_qwen27b_vllm", ("--attention-backend", "--async-scheduling")),
        ("cpu_smollm2_vllm", ("--no-async-scheduling",)),
    ],
)
def test_the_opt_in_leaves_the_pins_out_of_that_arm_s_command_and_of_no_other(rig: str, gone: tuple[str, ...]) -> None:
    found = plans(opted(rig).run)
    assert without(found["plain"].base, *gone) == list(found["plain_best"].base)
    assert {plan.base for name, plan in found.items() if name != "plain_best"} == {found["plain"].base}
    assert found["plain_best"].speculation == found["plain"].speculation
    assert set(found["plain_best"].missing) <= set(found["plain"].missing), "what is open for plain alone is no gap"


def test_a_flag_of_sglang_that_the_rig_sets_for_a_drafter_s_sake_is_taken_back_for_plain_alone() -> None:
    found = plans(opted("h200_qwen27b", "+engine.flags.disable-overlap-schedule=true").run)
    assert all("--disable-overlap-schedule" in plan.base for name, plan in found.items() if name != "plain_best")
    assert "--disable-overlap-schedule" not in found["plain_best"].base


def test_a_field_of_the_rig_goes_by_its_name_and_stays_what_is_pinned() -> None:
    found = plans(with_best(bare("h200_qwen27b_vllm"), prefill_chunk=8192, max_running_requests=256))
    assert after(found["plain_best"], "--max-num-batched-tokens") == "8192"
    assert after(found["plain_best"], "--max-num-seqs") == "256"
    assert (found["plain_best"].pinned["max_batched_tokens"], found["mtp"].pinned["max_batched_tokens"]) == (8192, 4096)


def test_llama_cpp_takes_flags_and_the_reference_engine_its_two_fields() -> None:
    run = with_best(bare("cpu_smollm2_llamacpp"), batch_size=512)
    assert after(plans(run)["plain_best"], "--batch-size") == "512"
    chunk = plans(with_best(bare("smoke"), prefill_chunk=32, attention_backend=None))
    assert chunk["plain_best"].pinned["prefill_chunk"] == 32 != chunk["plain"].pinned["prefill_chunk"]


def test_the_plan_shows_in_that_arm_s_part_what_is_its_own() -> None:
    console = Console(record=True, width=300, file=io.StringIO())
    print_plan(plan_run(opted("h200_qwen27b_vllm"), NOWHERE), console)
    text = console.export_text()
    assert text.count("its own ") == 2
    part = text.partition("plain_best\n")[2].partition("\n\n")[0]
    assert "its own      async-scheduling: none of its own, where the rig has true" in part
    assert "async_scheduling differs: plain True" in text


OWNED = "the adapter sets this from a field of the rig; give max_running_requests or prefill_chunk"
SPECULATES = "a plain arm drafts nothing; remove it"


@pytest.mark.parametrize(
    ("rig", "name", "value", "told"),
    [
        ("smoke", "foo", 1, "the reference engine takes no flags"),
        ("h200_qwen27b", "chunked-prefill-size", 8, OWNED),
        ("h200_qwen27b", "chunked_prefill_size", 8, OWNED),
        ("h200_qwen27b_vllm", "max-num-seqs", None, OWNED),
        ("h200_qwen27b_vllm", "enable-prefix-caching", True, OWNED),
        ("h200_qwen27b_vllm", "port", 1, OWNED),
        ("h200_qwen27b_vllm", "no-enable-chunked-prefill", True, "set engine_flags.enable-chunked-prefill to null beside it"),
        ("h200_qwen27b_vllm", "speculative-config", "x", SPECULATES),
        ("cpu_smollm2_llamacpp", "spec-type", "draft-mtp", SPECULATES),
    ],
)
def test_a_flag_that_cannot_be_this_arm_s_own_is_refused_by_name(rig: str, name: str, value: Value, told: str) -> None:
    run = with_best(bare(rig))
    arm = run.arms["plain_best"].model_copy(update={"engine_flags": {name: value}})
    with pytest.raises(ArmError) as error:
        load_dotted(run.engine.adapter).plan(for_arm(run, arm), arm)
    assert str(error.value).startswith(f"engine_flags.{name}: ")
    assert told in str(error.value)


def test_the_plan_names_the_arm_and_a_server_that_runs_already_takes_no_flags() -> None:
    attached = opted("cpu_smollm2_vllm", "engine.url=http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^arms\.plain_best\.engine_flags\.attention-backend: the server runs already"):
        plan_run(attached, NOWHERE)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({}, "arms.plain_best.engine_flags: changes nothing of what this rig gives its engine"),
        ({"attention-backend": None, "foo": False}, "arms.plain_best.engine_flags: changes nothing"),
        ({"prefill_chunk": "x"}, "arms.plain_best.engine_flags.prefill_chunk: should be a whole number of at least 1, got x"),
        ({"prefill_chunk": None}, "arms.plain_best.engine_flags.prefill_chunk: should be a whole number"),
        ({"max_running_requests": 1}, "arms.plain_best.engine_flags.max_running_requests: 1 is below concurrency 2; raise it"),
    ],
)
def test_flags_that_change_nothing_or_cannot_be_are_refused_before_any_engine(flags: dict[str, Value], told: str) -> None:
    run = scripted_run(arms={"plain": PLAIN, "ngram": NGRAM, "plain_best": {**PLAIN, "engine_flags": flags}})
    with pytest.raises(ConfigError) as error:
        check_baselines(run)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("arms", "told"),
    [
        ({"ngram": {**NGRAM, "engine_flags": {"x": 1}}}, "only a plain arm may have flags of its own"),
        ({"plain": {**PLAIN, "engine_flags": {"x": 1}}}, "needs a plain arm, one without engine_flags"),
    ],
)
def test_a_drafter_has_no_flags_of_its_own_and_the_matched_plain_is_always_there(arms: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        scripted_run(arms={"plain": PLAIN, "ngram": NGRAM, **arms})


def test_a_rig_has_one_plain_at_its_best() -> None:
    two = {name: {**PLAIN, "engine_flags": {"step_ms": 1}} for name in ("one", "two")}
    with pytest.raises(ConfigError, match="one and two both have engine_flags"):
        check_baselines(scripted_run(arms={"plain": PLAIN, **two}))


def test_a_foreign_server_takes_another_command_and_no_loose_flag() -> None:
    engine = {"adapter": "harness.engines.openai.OpenAIEngine", "flags": {"command": "python -m server"}}
    run = bare("smoke").model_copy(update={"engine": bare("smoke").engine.model_copy(update=engine)})
    other = plans(with_best(run, command="python -m server --fast"))
    assert ("--fast" in other["plain_best"].base, "--fast" in other["plain"].base) == (True, False)
    gaps = plans(with_best(run, fast=True))["plain_best"].missing
    assert any(gap.startswith("engine_flags.fast: no words of this server") for gap in gaps)


def test_the_hash_of_a_run_without_such_an_arm_is_what_it_was_and_every_flag_is_in_that_of_one_with_it(tmp_path: Path) -> None:
    """The hash is of what was measured in results/sample; versions before the field wrote the same rig without it."""
    (sample,) = [run for run in SAMPLES if run.name.startswith("cpu_smollm2-")]
    told = {str(row["config_hash"]) for row in read_run(sample).servings}
    lines = (sample / "config.yaml").read_text("utf-8").splitlines()
    (before := tmp_path / "config.yaml").write_text("\n".join(line for line in lines if "engine_flags: null" not in line))
    assert {compose_run(str(file)).config_hash for file in (sample / "config.yaml", before)} == told
    runs = [bare("h200_qwen27b"), *(with_best(bare("h200_qwen27b"), **flags) for flags in ({}, {"x": None}, {"x": 1}))]
    assert len({composed_of(run, "rig").config_hash for run in runs}) == 4, "a null among the flags is a setting"


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_a_run_from_before_reads_and_has_one_baseline(folder: Path) -> None:
    run = read_run(folder)
    assert (run.plain, run.plain_best) == ("plain", None)
    assert list(best_lines(run)) == []


def test_the_saved_configuration_is_the_same_experiment_again(tmp_path: Path) -> None:
    composed = opted("h200_qwen27b_vllm")
    (tmp_path / "config.yaml").write_text(composed.yaml, "utf-8")
    again = compose_run(str(tmp_path / "config.yaml"))
    assert again.config_hash == composed.config_hash
    assert moved_by(again.run, again.run.arms["plain_best"]) == moved_by(composed.run, composed.run.arms["plain_best"])


def test_the_matched_plain_is_the_baseline_wherever_the_other_stands() -> None:
    flagged: dict[str, Any] = {**PLAIN, "engine_flags": {"step_ms": 1}}
    run = scripted_run(protocol={"a_a": True}, arms={"plain_best": flagged, "plain": PLAIN, "ngram": NGRAM})
    assert plain_of(run) == "plain"
    assert arms_with_control(run)["plain2"].engine_flags is None
    assert for_arm(run, run.arms["ngram"]) is run
    assert for_arm(run, run.arms["plain_best"]).engine.flags["step_ms"] == 1
    open_arm = run.arms["plain_best"].model_copy(update={"engine_flags": {"step_ms": None, "unheard-of": None}})
    assert for_arm(run, open_arm).engine.flags.keys() == run.engine.flags.keys() - {"step_ms"}
    assert set(FIELDS) <= set(run.engine.model_dump())
    found = FinishedRun("r", run.model_dump(), {}, [serving(a) for a in ("plain_best", "plain", "plain2", "ngram")], [], [], [])
    assert (found.plain, found.plain_best, found.a_a) == ("plain", "plain_best", "plain2")


def test_an_audit_of_the_two_baselines_names_what_the_flags_move() -> None:
    run = opted("h200_qwen27b_vllm").run
    found = audit(from_run(run, "plain", "r"), from_run(run, "plain_best", "r"))
    assert {difference.factor for difference in found.differences} == {"attention_backend", "async_scheduling"}
