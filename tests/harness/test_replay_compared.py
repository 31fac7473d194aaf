"""Replay compared: measured beside published, and one run beside another, with intervals and what differs around them."""

import io
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from synthetic import CONFIG, simulate, write_run

from harness import cli, probe
from harness.asked import Asked
from harness.compose import compose_run
from harness.published import Published
from harness.replay_claims import Compared, compare_claims, told
from harness.replay_run import compare_runs, environment, hash_line, held, prompt_lines
from harness.replay_show import print_claims, print_repeated
from harness.report.run import read_run

CARD = "published/h200_qwen27b_card"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: [])


PUBLISHED = Published.model_validate(
    {
        "tasks": {"HumanEval": "humaneval_full", "Chat": "chat", "MBPP": "mbpp"},
        "metrics": {"tok_s": "output_tps"},
        "claims": [
            {
                "row": "claims:1",
                "arm": "ngram",
                "task": "HumanEval",
                "concurrency": 1,
                "speedup": 2.5,
                "acceptance_length": 3.0,
            },
            {"row": "claims:2", "arm": "ngram", "task": "HumanEval", "concurrency": 1, "speedup": 1.1},
            {"row": "claims:3", "arm": "ngram", "task": "Chat", "concurrency": 2, "speedup": [2.0, 3.0]},
            {"row": "claims:4", "arm": "plain", "task": "Chat", "concurrency": 1, "tok_s": 44.9},
            {"row": "claims:5", "arm": "ngram", "task": "MBPP", "concurrency": 1, "speedup": 2.0},
            {"row": "claims:6", "arm": "mtp", "task": "Chat", "concurrency": 1, "speedup": 2.0},
            {"row": "claims:7", "arm": "ngram", "task": "Chat", "concurrency": 8, "speedup": 2.0},
            {"row": "claims:8", "arm": "ngram", "task": "Chat", "speedup": 2.0},
            {"row": "claims:9", "arm": "ngram", "task": "Chat", "concurrency": 1, "speedup": 1.45, "over": "mtp"},
            {"row": "seed:1", "arm": "ngram", "task": "Chat", "concurrency": 1, "speedup": 6.5, "bound": "up to"},
            {"row": "seed:2", "arm": "ngram", "task": "decode", "concurrency": 1, "speedup": 2.0},
        ],
    }
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("results") / "stored", simulate())


@pytest.fixture(scope="module")
def compared(stored: Path) -> list[Compared]:
    return compare_claims(PUBLISHED, stored)


def test_a_claim_is_inside_or_outside_the_measured_interval(compared: list[Compared]) -> None:
    by_row = {(c.claim.row, c.measure): c for c in compared}
    assert by_row["claims:1", "speedup"].inside is True
    assert by_row["claims:1", "acceptance_length"].inside is True
    assert by_row["claims:2", "speedup"].inside is False
    assert by_row["claims:3", "speedup"].inside is True
    rate = by_row["claims:4", "tok_s"]
    assert rate.low < rate.value < rate.high
    assert rate.value == pytest.approx(44.9, rel=0.1)


def test_a_claim_that_was_not_measured_says_why(compared: list[Compared]) -> None:
    notes = {c.claim.row: c.note for c in compared if c.value is None}
    assert notes == {
        "claims:5": "prompts not measured",
        "claims:6": "arm not measured",
        "claims:7": "not measured at this concurrency",
        "claims:8": "concurrency not stated",
        "claims:9": "over mtp, not over plain; compare the two arms' tok/s",
        "seed:1": "a limit, not an expectation",
        "seed:2": "no prompt set stands for this task",
    }
    lines = list(told(compared))
    assert lines[0] == "4 of 5 published numbers lie inside the measured intervals"
    assert len(lines) == 8


def test_a_claim_of_a_level_that_was_left_out_stands_in_the_table_as_not_measured(compared: list[Compared]) -> None:
    out = io.StringIO()
    print_claims(compared, Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert [line.split() for line in lines if " 8 " in line] == [["ngram", "Chat", "8", "speedup", "2", "-", "not", "measured"]]
    assert not any("mtp" in line and "Chat" in line for line in lines), "an arm that is not there has no row"
    assert "1 without an answer: not measured at this concurrency" in lines


def test_one_block_gives_no_interval_and_no_answer(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", simulate(1, ("plain", "ngram")))
    found = compare_claims(PUBLISHED, folder)[0]
    assert (found.inside, found.note) == (None, "no interval")
    assert found.value > 1


def test_the_same_rig_measured_again_repeats_and_a_faster_one_does_not(stored: Path, tmp_path: Path) -> None:
    again = read_run(write_run(tmp_path / "again", simulate(seed=1)))
    count = held(compare_runs(read_run(stored), again))
    assert count["held"] >= 20
    assert count["did not"] <= 0.1 * count["held"]
    rows = simulate(seed=1)
    for row in rows["requests"]:
        if row["arm"] == "ngram":
            row["ended_ns"] = row["sent_ns"] + (row["ended_ns"] - row["sent_ns"]) // 2
            row["chunk_ns"] = [row["sent_ns"] + (t - row["sent_ns"]) // 2 for t in row["chunk_ns"]]
    faster = compare_runs(read_run(stored), read_run(write_run(tmp_path / "faster", rows)))
    speedups = [
        one for one in faster if one.stored.metric == "speedup" and one.stored.arm == "ngram" and one.stored.concurrency == 1
    ]
    assert speedups
    assert all(one.held is False for one in speedups)


def test_a_cell_that_was_not_measured_again_is_not_judged(stored: Path, tmp_path: Path) -> None:
    part = deepcopy(simulate())
    part["requests"] = [row for row in part["requests"] if row["concurrency"] == 1]
    found = compare_runs(read_run(stored), read_run(write_run(tmp_path / "part", part)))
    assert {one.held for one in found if one.stored.concurrency == 2} == {None}


@pytest.fixture(scope="module")
def confounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows, but ngram was served in another dtype."""
    rows = simulate()
    for row in rows["servings"]:
        if row["arm"] == "ngram":
            row["resolved"]["dtype"] = '"bfloat16"'
    return write_run(tmp_path_factory.mktemp("results") / "confounded", rows)


def test_no_number_of_a_confounded_pair_is_printed_or_judged_beside_another_run(stored: Path, confounded: Path) -> None:
    for pair in ((stored, confounded), (confounded, stored), (confounded, confounded)):
        found = compare_runs(*map(read_run, pair))
        ratios = [one for one in found if one.stored.metric == "speedup" and one.stored.arm == "ngram"]
        assert ratios
        assert all(one.held is None and one.is_confounded for one in ratios)
        assert held(found)["confounded"] == len(ratios)
        out = io.StringIO()
        print_repeated([], found, Console(file=out, width=160))
        lines = [line.split() for line in out.getvalue().splitlines()]
        rows = [line for line in lines if line[2:4] == ["ngram", "speedup"]]
        assert len(rows) == len(ratios)
        assert all("confounded" in row and row[-1] == "-" for row in rows)
        assert pair != (confounded, confounded) or all(row[4:] == ["confounded", "confounded", "-"] for row in rows)
        assert out.getvalue().splitlines()[-1].endswith(f"{len(ratios)} not judged: the pair is confounded in one of the runs")


def test_no_number_of_a_confounded_pair_stands_beside_a_published_one(confounded: Path) -> None:
    found = compare_claims(PUBLISHED, confounded)
    by_row = {(c.claim.row, c.measure): c for c in found}
    for row in ("claims:1", "claims:2", "claims:3"):
        assert (by_row[row, "speedup"].value, by_row[row, "speedup"].inside) == (None, None)
    assert by_row["claims:1", "acceptance_length"].inside is True, "what is of one arm alone stays"
    lines = list(told(found))
    assert lines[0] == "2 of 2 published numbers lie inside the measured intervals"
    assert "3 without an answer: confounded" in lines
    out = io.StringIO()
    print_claims(found, Console(file=out, width=200))
    assert ["ngram", "HumanEval", "1", "speedup", "2.5", "confounded", "-"] in [x.split() for x in out.getvalue().splitlines()]


def test_differences_of_environment_are_listed_and_what_always_changes_is_not(stored: Path, tmp_path: Path) -> None:
    rows = simulate()
    for row in rows["servings"]:
        row["host"] = {**row["host"], "cpu_model": '"Other CPU"', "load_1m": "9"}
        row["versions"] = {**row["versions"], "torch": "2.14.0"}
    before = read_run(stored)
    after = read_run(write_run(tmp_path / "other", rows))
    before, after = (
        replace(run, facts={**run.facts, "code_hash": code}) for run, code in ((before, "a" * 64), (after, "b" * 64))
    )
    found = {one.what: (one.stored, one.here) for one in environment(before, after)}
    assert found == {
        "host cpu_model": ('"Test CPU"', '"Other CPU"'),
        "versions torch": ("2.13.0", "2.14.0"),
        "code": ("a" * 12, "b" * 12),
    }
    assert environment(before, before) == []


class Prompts:
    """Prompts of the synthetic run; `changed` has another hash."""

    stop_ids = ()

    def __init__(self, changed: str = "") -> None:
        self.changed = changed

    def measured(self, prompt_set, concurrency):
        return [Asked(f"p{i}", "code", (1,), "other" if f"p{i}" == self.changed else f"hash of p{i}") for i in range(6)]

    def warmup(self, prompt_set, count):
        return []


def test_prompts_are_compared_by_hash(stored: Path) -> None:
    run = read_run(stored)
    composed = compose_run("cpu_smollm2")
    sets = [one for one in composed.run.workload.sets if one.set in ("humaneval", "chat")]
    composed = replace(
        composed, run=composed.run.model_copy(update={"workload": composed.run.workload.model_copy(update={"sets": sets})})
    )
    assert list(prompt_lines(run, composed, Prompts())) == ["prompts: 24 have the same hash"]
    lines = list(prompt_lines(run, composed, Prompts("p2")))
    assert lines[0] == "prompts: 20 have the same hash, 4 cells differ"
    assert "prompts of humaneval at concurrency 1: 1 differ, first p2" in lines


def test_a_configuration_that_was_changed_after_the_run_is_told(tmp_path: Path) -> None:
    composed = compose_run("cpu_smollm2")
    (tmp_path / "config.yaml").write_text(composed.yaml)
    (tmp_path / "run.json").write_text(json.dumps({"config_hash": composed.config_hash}))
    again = compose_run(str(tmp_path / "config.yaml"))
    assert hash_line(tmp_path, again).endswith(": the same hash")
    changed = yaml.safe_load(composed.yaml) | {"draft_budget": 5}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(changed))
    assert "was changed since" in hash_line(tmp_path, compose_run(str(tmp_path / "config.yaml")))


def test_a_run_takes_no_substitutions(capsys: pytest.CaptureFixture[str], stored: Path) -> None:
    assert cli.main(["replay", str(stored), "--substitute", "machine=auto"]) == 2
    assert "takes no substitutions" in capsys.readouterr().err


def test_two_measured_runs_are_compared_without_measuring(
    capsys: pytest.CaptureFixture[str], stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    part = simulate(seed=1)
    part["requests"] = [row for row in part["requests"] if row["concurrency"] == 1]
    other = write_run(tmp_path / "other", part)
    (other / "run.json").write_text(json.dumps({**json.loads((other / "run.json").read_text()), "config_hash": "f" * 64}))
    assert cli.main(["replay", str(stored), "--measured", str(other)]) == 0
    out = capsys.readouterr().out
    assert "configurations differ: " in out
    assert "environment: no difference" in out
    assert "not measured" in out
    assert " repeated, " in out.splitlines()[-1]


def test_a_measured_run_is_compared_without_measuring(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = write_run(tmp_path / "mine", simulate(), CONFIG)
    assert cli.main(["replay", CARD, "--measured", str(folder), "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "published numbers lie inside the measured intervals" in out
    assert "plain" in out
