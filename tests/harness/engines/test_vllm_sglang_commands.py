"""What vLLM and SGLang would be launched with: golden commands of every rig and arm, the translation of the budget, refusals.

Golden files are `tests/recorded/commands/<rig>.txt`. After a wanted change write them anew by running this file as a script
(`PYTHONPATH=. python tests/harness/engines/test_vllm_sglang_commands.py`), and read the difference.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compose import compose_run, load_dotted
from harness.config import Arm, Run
from harness.engines import method_support, sglang_command, sglang_missing, vllm_command, vllm_missing
from harness.engines.method_support import admits, assumed_version, method_gap, parse_version, version_gap
from harness.engines.reference_plan import without_drafter
from harness.engines.server_dialect import ROOT, Dialect
from harness.engines.sglang import SGLangEngine
from harness.engines.vllm import VllmEngine

GOLDEN = Path(__file__).parents[2] / "recorded" / "commands"
RIGS = ("h200_qwen27b", "h200_qwen27b_vllm", "h100_llama8b_vllm", "gb10_qwen27b_nvfp4", "cpu_smollm2_vllm")
METHODS = ("ngram", "draft_model", "mtp", "eagle3", "dflash", "dflash2", "dspark", "xpress")
CHECKPOINT = {"location": "org/drafter", "revision": "0" * 40}


def _dialect(run: Run) -> Dialect:
    dialect: Dialect = load_dotted(run.engine.adapter).speak(run)
    return dialect


def _arm(method: str, budget: int, **changed: Any) -> Arm:
    needs = method not in ("ngram", "mtp")
    fields = {"checkpoint": CHECKPOINT if needs else None, "draft_budget": budget, "label": method, **changed}
    return Arm.model_validate({"method": method, "drafter": None, "needs_checkpoint": needs, **fields})


def golden(rig: str) -> str:
    """Environment, base command and what each arm adds, a flag with its values per line."""
    run = _run(rig)
    dialect = _dialect(run)
    env = {**dialect.env(run), **run.engine.env}
    base = [*dialect.command(run, "<target>"), *dialect.endpoint(0, "<name>")]
    lines = ["environment", *(f"  {name}={value}" for name, value in env.items()), "base", *_folded(base)]
    for name, arm in run.arms.items():
        lines += [name, *(_folded(dialect.speculation(run, arm)) or ["  nothing"])]
    return ("\n".join(lines) + "\n").replace(f"{ROOT}/", "")  # a checkpoint of this repository is named by its whole path


def _folded(words: list[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines


@pytest.mark.parametrize("rig", RIGS)
def test_the_command_of_every_rig_and_arm_is_the_golden_one(rig: str) -> None:
    assert golden(rig) == (GOLDEN / f"{rig}.txt").read_text("utf-8")


@pytest.mark.parametrize("rig", RIGS)
def test_the_plan_of_every_arm_has_one_base_command_and_one_environment(rig: str) -> None:
    run = _run(rig)
    engine = VllmEngine if "vllm" in run.engine.adapter else SGLangEngine
    plans = [engine.plan(run, arm) for arm in run.arms.values()]
    assert len(plans) >= 2
    assert len({plan.base for plan in plans}) == 1
    assert len({tuple(plan.env.items()) for plan in plans}) == 1
    assert len({json.dumps(dict(plan.pinned)) for plan in plans}) == 1
    assert [plan.speculation for plan in plans].count(()) == 1


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(METHODS), st.integers(1, 15), st.booleans())
def test_the_budget_is_vllms_k_and_sglangs_k_plus_one_and_not_in_the_base(method: str, budget: int, sample: bool) -> None:
    arm = _arm(method, budget, options={"sample": sample})
    for rig in ("h200_qwen27b_vllm", "h200_qwen27b"):
        run = _run(rig)
        dialect, other = _dialect(run), run.model_copy(update={"arms": {**run.arms, "one": arm}})
        words = dialect.speculation(run, arm)
        if rig == "h200_qwen27b":
            if method == "xpress":
                continue  # SGLang has none; refused below
            assert words[words.index("--speculative-num-draft-tokens") + 1] == str(budget + 1)
            assert dialect.command(run, "m") == dialect.command(other, "m")
        else:
            assert json.loads(words[1])["num_speculative_tokens"] == budget
            # vLLM's graph sizes know every budget of the rig, so that plain pays for the widest; nothing else may change.
            changed = set(dialect.command(other, "m")) - set(dialect.command(run, "m"))
            assert changed <= {str(size * (budget + 1)) for size in run.engine.graph_batch_sizes}
        assert dialect.speculation(run, run.arms["plain"]) == []


@cache
def _run(rig: str, *overrides: str) -> Run:
    return compose_run(rig, list(overrides)).run


def test_every_concurrency_has_a_vllm_graph_at_the_width_of_every_arm() -> None:
    run = _run("h100_llama8b_vllm")
    sizes = vllm_command.graph_tokens(run)
    assert {level * width for level in (1, 8, 32) for width in (1, 6)} <= set(sizes)
    assert sizes == sorted(set(sizes))


def test_a_sglang_serial_drafter_drafts_a_chain_and_dspark_states_its_block() -> None:
    run = _run("h200_qwen27b")
    words = " ".join(sglang_command.speculation(run, _arm("eagle3", 5)))
    assert "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6" in words
    assert "--speculative-dspark-block-size 5" in " ".join(sglang_command.speculation(run, _arm("dspark", 5)))
    assert "max-bfs-breadth 1" in " ".join(sglang_command.speculation(run, _arm("ngram", 5)))


def test_an_option_of_the_arm_reaches_the_engine_under_its_own_name() -> None:
    run = _run("h200_qwen27b_vllm")
    config = json.loads(vllm_command.speculation(run, _arm("dspark", 5, options={"dspark_draft_topk": 64, "sample": True}))[1])
    assert (config["dspark_draft_topk"], config["draft_sample_method"]) == (64, "probabilistic")
    assert (config["model"], config["revision"]) == ("org/drafter", "0" * 40)
    words = sglang_command.speculation(_run("h200_qwen27b"), _arm("dflash", 5, options={"attention_backend": "fa3"}))
    assert words[-2:] == ["--speculative-draft-attention-backend", "fa3"]
    for missing in (vllm_missing.missing, sglang_missing.missing):
        gaps = missing(run, _arm("dflash", 5, options={"colour": "red"}))
        assert any("option 'colour' is not known" in gap for gap in gaps)


def test_acceptance_per_request_is_asked_of_drafting_arms_of_versions_that_have_it() -> None:
    run = _run("h200_qwen27b_vllm")
    assert vllm_command.speculation(run, _arm("dflash", 5))[2:] == ["--per-request-spec-decode-metrics", "detailed"]
    assert "--per-request-spec-decode-metrics" not in vllm_command.command(run, "m")  # vLLM refuses it where nothing drafts
    older = _run("h200_qwen27b_vllm", "engine.version='>=0.28,<0.29'")
    assert len(vllm_command.speculation(older, _arm("dflash", 5))) == 2


def test_block_verification_is_asked_of_every_drafter_when_the_rig_says_so() -> None:
    run = _run("h200_qwen27b", "engine.verify_rule=block")
    assert "--speculative-use-block-verification" in sglang_command.speculation(run, _arm("dflash", 5))
    run = _run("h200_qwen27b_vllm", "engine.verify_rule=block")
    assert json.loads(vllm_command.speculation(run, _arm("dflash", 5))[1])["rejection_sample_method"] == "block"


@pytest.mark.parametrize(
    ("engine", "since", "method", "version", "refused"),
    [
        ("vLLM", vllm_command.SINCE, "dflash2", "0.27.1", True),
        ("vLLM", vllm_command.SINCE, "dflash2", "0.28.0", False),
        ("vLLM", vllm_command.SINCE, "xpress", "0.32.0+cpu", True),
        ("vLLM", vllm_command.SINCE, "dflash2", None, False),
        ("SGLang", sglang_command.SINCE, "dflash2", "0.5.18", True),
        ("SGLang", sglang_command.SINCE, "dflash2", "0.5.19", False),
        ("SGLang", sglang_command.SINCE, "dspark", "0.5.15.post1", True),
        ("SGLang", sglang_command.SINCE, "xpress", "0.5.23", True),
        ("SGLang", sglang_command.SINCE, "plain", "0.1", False),
    ],
)
def test_a_version_without_the_method_is_refused_by_name(
    engine: str, since: dict[str, str], method: str, version: str | None, refused: bool
) -> None:
    gap = method_gap(engine, since, method, "mine", version)
    assert (gap is not None) == refused
    if gap is not None:
        assert engine in gap
        assert method in gap


def test_an_installed_version_is_read_from_its_interpreter_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert method_support.installed_version(sys.executable, ("no-such-package", "pytest")) == pytest.__version__
    assert method_support.installed_version("/nowhere/python", ("pytest",)) is None
    monkeypatch.setattr(method_support, "installed_version", lambda interpreter, packages: "0.27.1")
    run = _run("h200_qwen27b_vllm", f"engine.interpreter={sys.executable}")
    gaps = vllm_missing.missing(run, run.arms["dflash2"])
    assert any("vLLM 0.27.1 has no 'dflash2', which came with 0.28.0" in gap for gap in gaps)
    assert run.arms["dflash2"].method == "dflash"  # its drafter's class tells that it is DFlash 2
    assert any("0.27.1 is installed, the rig asks for >=0.33,<0.34" in gap for gap in gaps)


def test_a_pool_in_bytes_that_holds_fewer_tokens_than_the_rig_asks_for_is_told_before_launch() -> None:
    for bytes_, arms in (
        (72_000_000_000, []),
        (40_000_000_000, ["dflash2", "mtp"]),
        (15_000_000_000, ["dflash2", "mtp", "plain"]),
    ):
        run = _run("h200_qwen27b_vllm", f"engine.flags.kv-cache-memory-bytes={bytes_}")
        told = {arm: " ".join(VllmEngine.plan(run, run.arms[arm]).missing) for arm in ("dflash2", "mtp", "plain")}
        assert [arm for arm, gaps in told.items() if f"{bytes_} bytes hold about" in gaps] == arms, bytes_


def test_without_an_interpreter_the_lowest_version_that_the_rig_admits_is_judged() -> None:
    assert assumed_version(">=0.5.15,<0.6", None) == "0.5.15"
    assert assumed_version(">=0.5.15,<0.6", "0.5.23") == "0.5.23"
    assert assumed_version(None, None) is None
    run = _run("h200_qwen27b", "engine.version='>=0.5.15,<0.6'")
    assert any("SGLang 0.5.15 has no 'dflash2'" in gap for gap in sglang_missing.missing(run, run.arms["dflash2"]))


@pytest.mark.parametrize(
    ("wanted", "version", "holds"),
    [
        (">=0.33,<0.34", "0.33.0", True),
        (">=0.33,<0.34", "0.34.0rc1", False),
        ("==0.33", "0.33.0", True),
        ("!=0.33", "0.33.0", False),
        (">0.5.9", "0.5.23", True),
        ("<=0.5.9", "0.5.10", False),
    ],
)
def test_ranges_compare_numbers_and_not_text(wanted: str, version: str, holds: bool) -> None:
    assert admits(wanted, version) == holds
    assert (version_gap("vLLM", wanted, version) is None) == holds


def test_a_range_or_a_version_that_is_none_is_told() -> None:
    assert parse_version("v0.5.23.post1") == (0, 5, 23)
    with pytest.raises(ValueError, match="is no version"):
        parse_version("main")
    with pytest.raises(ValueError, match="is no range"):
        admits("about 0.3", "0.3")


@pytest.mark.parametrize(
    ("rig", "overrides", "arm", "told"),
    [
        ("cpu_smollm2_vllm", ["arm@arms.dflash2=dflash2"], "dflash2", "only model runner V1, which cannot serve dflash2"),
        ("h200_qwen27b_vllm", ["engine.env.VLLM_USE_V2_MODEL_RUNNER='0'"], "dspark", "needs model runner V2"),
        ("h200_qwen27b_vllm", ["engine.prefill_chunk=128"], "dflash2", "let only 16 requests run"),
        ("h200_qwen27b_vllm", ["engine.prefill_chunk=128"], "plain", "drop the graph of 256 tokens"),
        ("h200_qwen27b_vllm", ["engine.graph_batch_sizes=[1,8]"], "plain", "below concurrency 32"),
        ("h200_qwen27b", ["engine.graph_batch_sizes=[1,8]"], "plain", "below concurrency 32"),
        ("h200_qwen27b", ["engine.flags.min-free-slots-delay=null"], "plain", "would delay admission alone"),
        ("h200_qwen27b", ["engine.interpreter=/nowhere/python"], "plain", "'/nowhere/python' does not exist"),
    ],
)
def test_what_would_move_silently_is_refused_before_launch(rig: str, overrides: list[str], arm: str, told: str) -> None:
    run = compose_run(rig, overrides).run
    missing = vllm_missing.missing if "vllm" in run.engine.adapter else sglang_missing.missing
    assert any(told in gap for gap in missing(run, run.arms[arm]))


def test_a_method_of_served_engines_only_is_refused_by_the_reference_engine() -> None:
    assert "no drafter for 'draft_model'" in without_drafter(_arm("draft_model", 3))[0]
    assert without_drafter(_run("cpu_smollm2").arms["ngram"]) == without_drafter(_run("cpu_smollm2").arms["plain"]) == ()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for one in RIGS:
        (GOLDEN / f"{one}.txt").write_text(golden(one), "utf-8")
