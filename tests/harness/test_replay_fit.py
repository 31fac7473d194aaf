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
from harness.replay_fit import fitted

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
