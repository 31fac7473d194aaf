"""A published rig on a smaller machine: the literal command of the README runs, and everything that gave way is listed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import cli, probe
from harness import replay as replaying
from harness.compose import compose_run
from harness.plan import plan_run
from harness.replay import Replay, plan_replay
from harness.replay_fit import fills, fitted

CARD = "published/h200_qwen27b_card"
LITERAL = ["machine=auto", "target=smollm2", "engine=reference"]


@pytest.fixture(scope="module", autouse=True)
def _no_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "gpus", lambda: [])
        yield


@pytest.fixture(scope="module")
def literal() -> Replay:
    return plan_replay(CARD, LITERAL)


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf by its path; a list is one leaf."""
    if not isinstance(data, dict):
        return {prefix: data}
    return {key: value for name, one in data.items() for key, value in flat(one, f"{prefix}.{name}".lstrip(".")).items()}


def test_the_literal_command_lacks_nothing_here(literal: Replay, tmp_path: Path) -> None:
    run = literal.composed.run
    assert plan_run(literal.composed, tmp_path).missing == ()
    assert (run.protocol.name, run.protocol.blocks) == ("screen", 3)
    assert run.concurrency == (1, 8, 32)
    assert {"plain", "mtp", "dflash2"} <= set(run.arms)


def test_an_arm_of_the_card_is_left_out_only_where_its_weights_are_not_here(literal: Replay) -> None:
    root = Path(__file__).parents[2] / "checkpoints" / "smollm2_135m"
    here = {"plain"} | {name for name in ("mtp", "dspark", "dflash2") if (root / name / "config.json").is_file()}
    assert set(literal.composed.run.arms) == here


def test_every_key_that_differs_is_listed_as_moved_and_nothing_else(literal: Replay) -> None:
    was, now = (
        flat(one.run.model_dump(mode="json", exclude={"name", "summary", "source", "published", "arms", "workload"}))
        for one in (literal.published, literal.composed)
    )
    differ = {key for key in was | now if was.get(key) != now.get(key)} - replaying_only()
    listed = {one.key for one in literal.moved if not one.key.startswith(("arms.", "workload."))}
    assert listed == differ
    assert {one.key: (one.was, one.now) for one in literal.moved}["protocol.blocks"] == (1, 3)


def replaying_only() -> set[str]:
    """Keys that only help to plan memory."""
    return {f"{group}.{field}" for group, fields in replaying.PLANNING.items() for field in fields} | {
        f"target.size.{field}" for field in ("weights_bytes", "kv_bytes_per_token", "state_bytes_per_request")
    }


def test_what_gave_way_follows_and_what_was_asked_for_is_substituted(literal: Replay) -> None:
    why = {one.key: one.why for one in literal.moved}
    assert {why[key] for key in why if key.startswith("protocol.")} == {"follows from a substitution"}
    assert why["machine.kind"] == why["target.name"] == why["engine.adapter"] == "substituted"


def test_a_protocol_that_is_given_stays_and_its_answers_and_prompts_fit(tmp_path: Path) -> None:
    replay = plan_replay(CARD, [*LITERAL, "protocol=card"])
    protocol, moved = replay.composed.run.protocol, {one.key: (one.was, one.now, one.why) for one in replay.moved}
    assert (protocol.name, protocol.blocks) == ("card", 1)
    assert plan_run(replay.composed, tmp_path).missing == ()
    assert moved["protocol.max_tokens_cap"] == (None, 1024, "follows from a substitution")
    assert moved["protocol.prompts_per_set"] == (128, 100, "follows from a substitution")


def test_on_another_gpu_the_protocol_stays_as_published() -> None:
    protocol = plan_replay(CARD, ["machine=h100", "workload=standard"]).composed.run.protocol
    assert (protocol.name, protocol.blocks, protocol.max_tokens_cap) == ("card", 1, None)


def test_a_run_that_fits_is_the_same_object_and_one_with_too_many_requests_stays_an_error() -> None:
    run = compose_run("cpu_smollm2").run
    assert fitted(run, run) is run
    crowded = run.model_copy(update={"concurrency": (200,)})
    assert fitted(run, crowded) is crowded


def test_the_estimate_is_told_before_anything_is_measured(
    literal: Replay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    def stop(*_: object) -> Path:
        told.append(capsys.readouterr().out)
        raise RuntimeError("would measure now")

    monkeypatch.setattr(cli, "bench_and_report", stop)
    assert cli.main(["replay", CARD, "--results", str(tmp_path), "--substitute", *LITERAL]) == 2
    assert "time: unknown; no earlier run" in told[0]
    assert "moved protocol: name card -> screen (follows)" in told[0]


def test_high_levels_stay_on_a_cpu_with_short_answers_and_a_short_warm_up_all_listed_as_following(literal: Replay) -> None:
    protocol, moved = literal.composed.run.protocol, {one.key: (one.was, one.now, one.why) for one in literal.moved}
    assert (protocol.max_tokens_cap, protocol.warmup_batches, protocol.width_rounds) == (24, 2, 1)
    for key, was, now in (("max_tokens_cap", None, 24), ("warmup_batches", 4, 2), ("width_rounds", 0, 1)):
        assert moved[f"protocol.{key}"] == (was, now, "follows from a substitution")
    assert "concurrency" not in moved


def test_a_rig_of_low_levels_takes_screen_as_it_is_and_a_stated_key_is_not_cut() -> None:
    low = plan_replay(CARD, [*LITERAL, "concurrency=[1,8]"]).composed.run.protocol
    assert (low.max_tokens_cap, low.warmup_batches, low.width_rounds) == (48, 4, 3)
    stated = plan_replay(CARD, [*LITERAL, "protocol.max_tokens_cap=64"]).composed.run.protocol
    assert (stated.max_tokens_cap, stated.warmup_batches) == (64, 2)


def test_a_level_that_short_answers_cannot_fill_is_left_out_listed_and_measured_where_it_is_asked_for() -> None:
    small = [*LITERAL, "engine.prefill_chunk=512"]
    replay = plan_replay(CARD, small)
    moved = {one.key: (one.was, one.now, one.why) for one in replay.moved}
    assert replay.composed.run.concurrency == (1, 8)
    assert moved["concurrency"] == ("[1, 8, 32]", "[1, 8]", "follows from a substitution")
    told = next(line for line in replay.skipped if line.startswith("concurrency 32: not reached here"))
    assert told.endswith("concurrency=[1,8,32] measures it all the same")
    assert plan_replay(CARD, [*small, "concurrency=[1,8,32]"]).composed.run.concurrency == (1, 8, 32)


@pytest.mark.parametrize(
    ("level", "chunk", "cap", "prompts", "filled"),
    [
        (32, 4096, 24, 1, True),  # 6400 tokens are two steps, in which 9 tokens of the first answers pass
        (32, 4096, 8, 1, False),
        (32, 512, 48, 1, False),  # 13 steps, 58.5 tokens: measured with answers of 20, 26 of 32 ran at once
        (32, 512, 59, 1, True),
        (8, 512, 24, 1, True),
        (32, 512, 8, 33, True),  # later prompts take the freed slots
    ],
)
def test_a_wave_fills_when_its_answers_outlast_the_reading_of_its_prompts(
    literal: Replay, level: int, chunk: int, cap: int, prompts: int, filled: bool
) -> None:
    run = literal.composed.run
    changed = run.model_copy(
        update={
            "engine": run.engine.model_copy(update={"prefill_chunk": chunk}),
            "protocol": run.protocol.model_copy(update={"max_tokens_cap": cap, "prompts_per_set": prompts}),
        }
    )
    assert fills(changed, level) is filled
