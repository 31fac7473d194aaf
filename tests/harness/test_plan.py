"""The plan: what would run per arm, in what order, how long, and what is missing; nothing is launched."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from harness import estimate, plan
from harness.compose import ComposedRun, ConfigError, compose_run
from harness.config import Arm, Run
from harness.engines.base import ArmPlan, Memory
from harness.plan import memory_line, plan_run, print_plan, readable, require_nothing_missing, time_line
from tests.harness.rigs_cases import TWO_ARMS
from tests.harness.test_estimate import stored_tables

NOWHERE = Path("no-such-results")


@dataclass(frozen=True)
class FakeEngine:
    """An adapter that answers `plan` from what it is given."""

    missing: dict[str, tuple[str, ...]]

    def plan(self, run: Run, arm: Arm) -> ArmPlan:
        speculation = () if arm.drafter is None else ("--budget", str(arm.draft_budget))
        pinned = {"slots": run.engine.max_running_requests, "graphs": "off" if arm.drafter is None else "decode"}
        memory = Memory(weights_bytes=3 << 20, kv_tokens=100)
        return ArmPlan(("serve", "--slots", "32"), speculation, pinned, self.missing.get(arm.method, ()), memory)


def _plan(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], missing: dict[str, tuple[str, ...]] | None = None
) -> plan.Plan:
    monkeypatch.setattr(plan, "load_dotted", lambda path: FakeEngine(missing or {}))
    monkeypatch.setattr(plan, "missing_parts", lambda run: ())
    monkeypatch.setattr(plan, "check_workload", lambda run: [])
    return plan_run(compose_run("cpu_smollm2", [*TWO_ARMS, *overrides]), NOWHERE)


def _text(made: plan.Plan) -> str:
    out = io.StringIO()
    print_plan(made, Console(file=out, width=500, highlight=False))
    return out.getvalue()


def test_the_plan_shows_base_and_speculation_apart_for_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(_plan(monkeypatch, ["draft_budget=7", "protocol=claim"]))
    assert text.count("base         serve --slots 32") == 3
    assert "speculation  none" in text
    assert "speculation  --budget 7" in text
    assert "estimate: target weights 3.0 MiB (3145728 bytes), KV capacity 100 tokens" in text


def test_a_rig_without_a_drafter_is_said_to_compare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing to compare: no arm drafts" in _text(_plan(monkeypatch, ["~arms.ngram"]))
    assert "nothing to compare" not in _text(_plan(monkeypatch, []))


def test_the_plan_shows_the_rotated_order_with_the_a_a_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(_plan(monkeypatch, ["protocol=claim"]))
    assert "block 0: plain -> ngram -> plain2" in text
    assert "block 1: ngram -> plain2 -> plain" in text


def test_the_plan_counts_servings_cells_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(_plan(monkeypatch, ["concurrency=[1,8]", "protocol.blocks=2", "protocol.prompts_per_set=3", "workload=smoke"]))
    # 2 blocks x 2 arms; 3 sets x 2 levels in each; a cell asks 3 prompts at 1 and 8 at 8
    assert "4 servings, 24 cells (3 prompt sets x concurrency 1, 8), 132 measured requests" in text


def test_a_factor_that_the_engine_pins_differently_is_shown_per_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(_plan(monkeypatch, []))
    assert "slots = 32" in text
    assert "graphs differs: plain off, ngram decode" in text


def test_what_is_missing_is_told_once_with_the_arms_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _plan(monkeypatch, [], {"plain": ("no GPU",), "ngram": ("no GPU", "no weights")})
    assert made.missing == ("no GPU", "no weights (arm ngram)")
    assert "missing: no weights" in _text(made)
    with pytest.raises(ConfigError, match=r"^missing: no GPU .and 1 more: samerig plan cpu_smollm2.$"):
        require_nothing_missing(made)


def test_nothing_missing_is_said_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _plan(monkeypatch, [])
    require_nothing_missing(made)
    assert "nothing is missing on this machine" in _text(made)


def test_an_engine_that_is_not_in_this_version_is_missing_and_the_rest_of_the_plan_is_shown() -> None:
    made = plan_run(compose_run("h200_qwen27b", ["engine.adapter=harness.engines.nowhere.Engine"]), NOWHERE)
    assert made.missing[0].startswith("engine adapter: harness.engines.nowhere.Engine is not in this version")
    assert "block 0: plain -> ngram" in _text(made)


def test_a_prompt_set_that_is_not_there_is_missing() -> None:
    composed: ComposedRun = compose_run("cpu_smollm2", ["workload.sets.0.set=humanevil"])
    assert any("humanevil" in item for item in plan_run(composed, NOWHERE).missing)


def test_the_time_is_unknown_without_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "time: unknown" in _text(_plan(monkeypatch, []))


def test_the_pace_of_another_engine_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "read_tables", lambda folder: stored_tables())
    mine, other = compose_run("cpu_smollm2"), compose_run("cpu_smollm2", ["engine.prefill_chunk=64"])
    folder = tmp_path / "earlier"
    folder.mkdir()
    for name in ("run.json", "requests.parquet"):
        (folder / name).write_text("")
    (folder / "config.yaml").write_text(mine.yaml)
    assert estimate.last_pace(mine.run, tmp_path) is not None
    assert estimate.last_pace(other.run, tmp_path) is None


def test_a_rough_time_comes_from_other_engine_settings_or_levels_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "read_tables", lambda folder: stored_tables())
    folder = tmp_path / "earlier"
    folder.mkdir()
    for name in ("run.json", "requests.parquet"):
        (folder / name).write_text("")
    (folder / "config.yaml").write_text(compose_run("cpu_smollm2").yaml)
    same = ["protocol.max_tokens_cap=10", "protocol.warmup_batches=2", "concurrency=[8]"]

    def told(*overrides: str) -> plan.Plan:
        return plan_run(compose_run("cpu_smollm2", [*TWO_ARMS, *same, *overrides]), tmp_path)

    exact, other = told(), told("engine.prefill_chunk=64")
    assert exact.seconds is not None
    assert exact.seconds[0] == pytest.approx(exact.seconds[1])
    assert (exact.is_rough, other.seconds, other.is_rough) == (False, exact.seconds, True)
    assert time_line(exact).endswith("estimated from earlier")
    wide = told("concurrency=[32]")
    assert wide.is_rough
    assert wide.seconds is not None
    assert 1.15 * wide.seconds[0] < wide.seconds[1]
    assert told("target.dtype=bfloat16").seconds is None
    line = time_line(wide)
    assert line.startswith("roughly ")
    assert " to " in line
    assert line.endswith("from earlier, which has other engine settings, methods, levels, answers or warm-up")


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3019898880, "2.8 GiB"), (1 << 41, "2.0 TiB")])
def test_bytes_are_readable(size: int, text: str) -> None:
    assert readable(size) == text


def test_memory_that_the_engine_cannot_estimate_is_left_out() -> None:
    assert memory_line(Memory()) == ""
    assert memory_line(Memory(kv_bytes=1024)) == "estimate: KV cache 1.0 KiB (1024 bytes)"


def test_what_only_the_hub_has_is_told_with_the_command_that_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    text = _text(plan_run(compose_run("h200_qwen27b"), NOWHERE))
    last = text.strip().splitlines()[-1]
    assert last.startswith("not in the hub's cache here: Qwen/Qwen3.8-27B, RadixArk/Qwen3.8-27B-DSpark, incoai/")
    assert last.endswith("samerig doctor h200_qwen27b")
    assert "hub" not in _text(plan_run(compose_run("cpu_smollm2"), NOWHERE)).splitlines()[-1]


def test_an_arm_of_unknown_weights_says_that_its_room_is_not_judged() -> None:
    text = _text(plan_run(compose_run("h200_qwen27b"), NOWHERE))
    assert text.count("room not judged") == 1
    assert (
        "room         drafter weights unknown; room not judged" in text.partition("\ndspark\n")[2].partition("\ndflash2\n")[0]
    )
