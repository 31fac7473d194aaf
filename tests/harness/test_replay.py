"""Replay of a published rig: substitutions are listed as moved, and what is not here is left out by name."""

from pathlib import Path

import pytest

from harness import cli, probe
from harness import replay as replaying
from harness.compose import ConfigError, compose_run
from harness.plan import plan_run
from harness.replay import plan_replay, resolve

CARD = "published/h200_qwen27b_card"
ASKED = ["machine=auto", "target=smollm2", "engine=reference", "protocol=smoke"]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: [])


@pytest.fixture(scope="module")
def card() -> replaying.Replay:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "gpus", lambda: [])
        return plan_replay(CARD, ASKED)


def test_without_substitutions_a_rig_stays_as_it_is() -> None:
    replay = plan_replay(CARD)
    assert (replay.moved, replay.skipped) == ((), ())
    assert replay.composed.config_hash == compose_run(CARD).config_hash


def test_every_substitution_is_listed_as_moved(card: replaying.Replay) -> None:
    by_key = {one.key: one for one in card.moved}
    for key, was, now in (
        ("machine.kind", "cuda", "cpu"),
        ("machine.gpu", "H200", None),
        ("target.name", "Qwen3.8-27B", "SmolLM2-135M-Instruct"),
        ("target.dtype", "bfloat16", "float32"),
        ("engine.adapter", "harness.engines.sglang.SGLangEngine", "harness.engines.reference.ReferenceEngine"),
        ("protocol.prompts_per_set", 128, 1),
    ):
        assert (by_key[key].was, by_key[key].now, by_key[key].why) == (was, now, "substituted")


def test_what_follows_from_a_substitution_is_listed_too(card: replaying.Replay) -> None:
    follows = {one.key for one in card.moved if one.why != "substituted"}
    assert {"engine.graphs", "engine.kv_dtype", "workload.sets.gsm8k.set"} <= follows


def test_moved_is_exactly_what_differs(card: replaying.Replay) -> None:
    before, after = card.published.run, card.composed.run
    keys = {one.key for one in card.moved}
    assert not any(key.startswith(("sampler", "draft_budget", "concurrency")) for key in keys)
    assert (before.sampler, before.draft_budget, before.concurrency) == (after.sampler, after.draft_budget, after.concurrency)
    for key in ("max_running_requests", "prefill_chunk", "prefix_cache", "kv_tokens"):
        assert f"engine.{key}" not in keys
        assert getattr(before.engine, key) == getattr(after.engine, key)


def test_no_flag_of_the_other_engine_is_carried_over(card: replaying.Replay) -> None:
    assert card.published.run.engine.flags
    assert card.composed.run.engine.flags == {}


def test_prompt_sets_and_arms_that_are_not_here_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacking = ("arms.mtp.checkpoint.location: 'x' does not exist", "arms.dspark.checkpoint.location: 'y' does not exist")
    monkeypatch.setattr(replaying, "missing_parts", lambda run: lacking)
    replay = plan_replay(CARD, ASKED)
    assert [prompt_set.set for prompt_set in replay.composed.run.workload.sets] == ["gsm8k", "humaneval"]
    assert list(replay.composed.run.arms) == ["plain", "dflash2"]
    assert [line.split(":")[0] for line in replay.skipped] == [
        "prompt set math500",
        "prompt set mbpp",
        "prompt set mt_bench",
        "arm mtp",
        "arm dspark",
    ]
    assert replay.composed.run.arms["dflash2"].checkpoint.location == "checkpoints/smollm2_135m/dflash2"
    (tmp_path / "config.yaml").write_text(replay.composed.yaml)
    again = compose_run(str(tmp_path / "config.yaml"))
    assert again.config_hash == replay.composed.config_hash
    assert list(again.run.published["left_out"]) == ["mtp", "dspark"]


def test_the_substituted_card_can_run_on_a_cpu(card: replaying.Replay, tmp_path: Path) -> None:
    assert plan_run(card.composed, tmp_path).missing == ()
    assert card.composed.run.published is not None


@pytest.mark.parametrize(
    ("substitution", "overrides"),
    [
        ("machine=auto", ["machine=cpu"]),
        ("machine=h200", ["machine=h200"]),
        ("target=smollm2", ["target=smollm2_135m"]),
        ("draft_budget=3", ["draft_budget=3"]),
        ("arms.mtp.draft_budget=3", ["arms.mtp.draft_budget=3"]),
    ],
)
def test_a_substitution_becomes_overrides(substitution: str, overrides: list[str]) -> None:
    assert resolve(substitution) == overrides


@pytest.mark.parametrize("wrong", ["target=smolm2", "target=qwen3", "machine=h20"])
def test_a_name_that_is_no_option_or_several_is_refused_with_what_there_is(wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong.split("=")[0]) as caught:
        compose_run(CARD, resolve(wrong)) and pytest.fail("composed")
    assert "'" in str(caught.value)


def test_a_gpu_is_found_among_the_options_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        index = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def facts(self) -> dict[str, str]:
            return {"gpu0_name": self.name}

    monkeypatch.setattr(probe, "gpus", lambda: [Gpu("NVIDIA GB10"), Gpu("NVIDIA GB10")])
    assert resolve("machine=auto") == ["machine=gb10_x2"]
    monkeypatch.setattr(probe, "gpus", lambda: [Gpu("NVIDIA L4")])
    run = compose_run("published/a100_before_after", resolve("machine=auto")).run
    assert (run.machine.kind, run.machine.gpu, run.machine.gpu_count) == ("cuda", "NVIDIA L4", 1)


def test_a_rig_without_any_prompt_set_here_asks_for_a_workload() -> None:
    with pytest.raises(ConfigError, match="add workload=standard"):
        plan_replay("published/tpu_v5p_llama31_8b", ASKED)
    replay = plan_replay("published/tpu_v5p_llama31_8b", [*ASKED, "workload=standard"])
    assert len(replay.composed.run.workload.sets) == 6


def test_a_budget_that_the_drafter_at_hand_was_not_trained_for_leaves_the_arm_out_with_the_fix() -> None:
    asked = [*ASKED, "workload=standard"]
    replay = plan_replay("published/tpu_v5p_llama31_8b", asked)
    assert "dflash" not in replay.composed.run.arms
    assert any("draft_budget: 10 drafts asked of a block trained for 7" in line for line in replay.skipped)
    assert "dflash" in plan_replay("published/tpu_v5p_llama31_8b", [*asked, "arms.dflash.draft_budget=7"]).composed.run.arms


def test_the_command_says_what_moves_without_running(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["replay", CARD, "--plan", "--results", str(tmp_path), "--substitute", *ASKED]) == 0
    out = capsys.readouterr().out
    for words in (
        "moved machine: kind cuda -> cpu",
        "moved target: name Qwen3.8-27B",
        "moved engine: adapter",
        "moved protocol:",
    ):
        assert words in out
    for words in (
        "not stated by the source: engine_build",
        "as published, dflash2: python -m sglang.launch_server",
        "left out: ",
    ):
        assert words in out
    assert "neither confirms nor refutes" in " ".join(out.split())


def test_as_it_stands_a_rig_that_lacks_something_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["replay", CARD, "--results", str(tmp_path)]) == 2
    assert "error: missing: " in capsys.readouterr().err
