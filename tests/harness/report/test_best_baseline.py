"""Case E04: overlap that a drafter switches off, told with both named baselines of one run.

Servings say what recorded servers said, with overlap off in every arm but `plain_best`; its steps take 16 ms, plain's 20.
"""

from __future__ import annotations

import io
import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from recorded_servings import sglang_resolved, vllm_resolved
from rich.console import Console
from scripted_bench import NGRAM, PLAIN, FixedPrompts, scripted_run
from synthetic import simulate, write_run

from harness.best_budget import sweep_run
from harness.compose import compose_run, composed_of
from harness.report import print_report
from harness.report.baselines import METRIC, best_lines
from harness.report.command import show
from harness.report.decomposition import decomposition_lines
from harness.report.export import csv, markdown
from harness.report.html import write_html
from harness.report.run import FinishedRun, read_run
from harness.report.summary import frame
from harness.report.verdict import sentences
from harness.run import bench
from harness.verdict import recommend
from harness.verdict_matrix import load_matrix
from harness.verdict_profile import load_profile
from harness.verdict_scores import decision_matrix

OVERLAP = {"vllm": "vllm_config.scheduler_config.async_scheduling", "sglang": "disable_overlap_schedule"}
RIGS = {"vllm": ("cpu_smollm2_vllm", []), "sglang": ("h200_qwen27b", ["+engine.flags.disable-overlap-schedule=true"])}
RESOLVED = {"vllm": vllm_resolved, "sglang": sglang_resolved}
ARMS = ("plain", "ngram", "plain_best", "plain2")


def told(engine: str, arm: str, **changed: Any) -> dict[str, str]:
    """What a serving of this arm told: overlap is on in the best plain alone.

    The recorded n-gram serving also moved a switch that only data parallelism reads; it is held here, so that one thing moves.
    """
    on = arm == "plain_best"
    found = RESOLVED[engine]("ngram" if arm == "ngram" else "plain", OVERLAP[engine], on if engine == "vllm" else not on)
    found |= {"dp_synchronization": False} if engine == "vllm" else {}
    return {name: json.dumps(value) for name, value in {"engine": engine, **found, **changed}.items()}


def measured(folder: Path, engine: str, blocks: int = 3, **of_best: Any) -> FinishedRun:
    """A run of plain, ngram, the A/A arm and the opt-in; `of_best` are factors that its server resolved otherwise."""
    rig, overrides = RIGS[engine]
    asked = compose_run(rig, [*overrides, "+arm@arms.plain_best=plain_best"]).run
    rows = simulate(blocks, ARMS)
    given = {arm: told(engine, arm, **(of_best if arm == "plain_best" else {})) for arm in ARMS}
    rows["servings"] = [row | {"resolved": given[str(row["arm"])]} for row in rows["servings"]]
    config = asked.model_dump(mode="json") | {"concurrency": [1, 2]}
    config["arms"] = {name: config["arms"][name] for name in ("plain", "ngram", "plain_best")}
    return read_run(write_run(folder, rows, config))


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / str(request.param)
    measured(path, str(request.param))
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> FinishedRun:
    return read_run(folder)


@pytest.fixture(scope="module")
def numbers(run: FinishedRun) -> pd.DataFrame:
    return frame(run)


def line(numbers: pd.DataFrame, metric: str, arm: str) -> Any:
    """One number over all classes at concurrency 1, its fields as attributes."""
    at = (numbers.metric == metric) & (numbers.arm == arm) & (numbers.content_class == "all") & (numbers.concurrency == 1)
    return next(numbers[at].itertuples())


def test_e04_both_named_baselines_stand_in_one_run_and_each_says_its_own(run: FinishedRun, numbers: pd.DataFrame) -> None:
    """Over plain the drafter alone differs; over plain_best it pays for the overlap that it costs: 20 / 16 less."""
    assert (run.plain, run.plain_best, run.a_a) == ("plain", "plain_best", "plain2")
    matched, best = (line(numbers, metric, "ngram") for metric in ("speedup", METRIC))
    assert matched.value / best.value == pytest.approx(20 / 16, rel=0.05)
    assert (matched.value > matched.low > best.high, best.low < best.value < best.high) == (True, True)
    assert line(numbers, METRIC, "plain").value == pytest.approx(16 / 20, rel=0.05), "what the pins cost plain"
    assert matched.note == "CONTROLLED: faster"
    assert best.note.startswith("CONTROLLED beside the flags of plain_best: ")


def test_e04_the_ledger_of_the_pair_keeps_the_class_and_gives_the_stated_difference_as_the_reason(run: FinishedRun) -> None:
    pair = run.pair("plain_best", "ngram", 1)
    assert pair is not None
    (found,) = pair.findings_that_count
    assert (found.factor, found.kind, found.plain, found.arm) == ("async_scheduling", "implied", "true", "false")
    assert found.remedy == "the stated difference of plain_best, not the drafter's doing"
    assert (pair.verdict, pair.beside_stated.verdict) == ("IMPLIED", "CONTROLLED")
    plains = run.control("plain_best", 1)
    assert plains is not None
    assert [f.kind for f in plains.findings_that_count] == ["confounder"], "between two plain arms nothing is implied"
    assert plains.verdict == "CONFOUNDED"


def test_the_report_has_a_line_per_level_with_flags_intervals_and_control(run: FinishedRun, numbers: pd.DataFrame) -> None:
    flags, matched, first, *rest = best_lines(run)
    off = "no-async-scheduling" if "vllm" in run.config["engine"]["adapter"] else "disable-overlap-schedule"
    assert flags.startswith("flags of plain_best: ")
    assert f"{off}: none of its own, where the rig has true" in flags
    assert matched.startswith("plain pays what the rig pins for every arm: it is plain_matched, the baseline of the table")
    over = [line(numbers, METRIC, arm) for arm in ("plain", "ngram")]
    words = [f"{number.value:.2f}x [{number.low:.2f}, {number.high:.2f}]" for number in over]
    assert first == f"concurrency 1, over plain_best, all classes: plain_matched {words[0]}, ngram {words[1]}"
    stated = "stated: async_scheduling (false against true) · beside that CONTROLLED"
    assert f"control: ngram against plain_best IMPLIED · {stated}" in rest
    assert sum(line.startswith("concurrency 2, over plain_best, all classes: ") for line in rest) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_moves_beside_the_stated_flags_confounds_and_takes_the_number_away(engine: str, tmp_path: Path) -> None:
    run = measured(tmp_path / "run", engine, cuda_graphs="off")
    assert "ngram confounded" in list(best_lines(run))[2]
    assert any("beside that CONFOUNDED, cuda_graphs (" in line for line in best_lines(run))
    numbers = frame(run)
    assert set(numbers[numbers.metric == METRIC].note.str.partition(" ")[0]) == {"CONFOUNDED"}
    over_plain = numbers[(numbers.metric == "speedup") & (numbers.arm == "ngram")]
    assert all(note.startswith("CONTROLLED: ") for note in over_plain.note), "the pair with plain is not touched"


def test_it_is_no_drafter_and_no_baseline_of_a_verdict(run: FinishedRun, numbers: pd.DataFrame) -> None:
    assert set(numbers[numbers.metric == "speedup"].arm) == {"ngram", "plain2"}
    assert not numbers[numbers.arm == "plain_best"].metric.isin(["break_even_length", "quality_marks", METRIC]).any()
    assert all("plain_best" not in sentence for sentence in sentences(run, numbers))
    assert all("ngram" in sentence for sentence in sentences(run, numbers))
    found = recommend(run, load_profile("chat"))
    assert ([one.arm for one in found.weighed], found.baseline, found.fallback) == (["ngram"], "plain", "plain")
    assert {scored.arm for scored in decision_matrix(run, load_matrix("default"))} == {"plain", "ngram"}
    assert not any(line.startswith("plain_best") for line in decomposition_lines(run))


def test_speedups_over_plain_are_those_of_a_run_without_the_second_baseline(run: FinishedRun, numbers: pd.DataFrame) -> None:
    """No claim of the table is adjusted for it, and no noise floor comes from it."""
    kept = [[row for row in rows if row["arm"] != "plain_best"] for rows in (run.servings, run.requests)]
    found = frame(FinishedRun(run.run_id, run.config, run.facts, kept[0], kept[1], run.steps, run.samples))
    ours, theirs = (t[t.metric.str.endswith("speedup")].reset_index(drop=True) for t in (numbers, found))
    assert len(ours) >= 18
    assert ours.equals(theirs)


def test_a_sweep_of_budgets_leaves_it_out() -> None:
    composed = compose_run("h200_qwen27b", ["best_budget=true", "+arm@arms.plain_best=plain_best"])
    assert "plain" in sweep_run(composed).run.arms
    assert "plain_best" not in sweep_run(composed).run.arms


def test_a_whole_run_serves_it_with_its_own_flags_and_every_form_of_report_shows_it(tmp_path: Path) -> None:
    """On the scripted engine: steps of 4 ms, of 2 ms in the best plain, in three forms and beside itself."""
    flags = {"step_ms": 2, "max_running_requests": 128}
    arms = {"plain_best": {**PLAIN, "engine_flags": flags}, "plain": PLAIN, "ngram": NGRAM}
    asked = scripted_run({"step_ms": 4}, {"blocks": 2}, arms=arms, concurrency=[1])
    folder = bench(composed_of(asked, "scripted"), tmp_path, False, Console(quiet=True), FixedPrompts(asked))
    run = read_run(folder)
    argv = {str(row["arm"]): list(row["argv"]) for row in run.servings}
    assert ("step_ms=2" in argv["plain_best"], "step_ms=4" in argv["plain"], "step_ms=4" in argv["ngram"]) == (True,) * 3
    pair = run.pair("plain_best", "ngram", 1)
    assert pair is not None
    assert [(f.factor, f.kind, f.stated) for f in pair.findings_that_count] == [("max_running_requests", "confounder", True)]
    console = Console(record=True, width=300, file=io.StringIO())
    print_report(folder, console)
    printed, page = console.export_text(), write_html(folder).read_text("utf-8")
    for text in (printed, page):
        assert "Against plain at its best" in text
        assert "flags of plain_best: step_ms: 2, where the rig has 4; max_running_requests: 128, where the rig has 64" in text
        assert "concurrency 1, over plain_best, all classes: plain_matched 0." in text
    assert f",ngram,{METRIC}," in csv(folder)


def side_by_side(one: Path, other: Path) -> str:
    out = io.StringIO()
    assert show([one, other], Console(file=out, width=400), "table") == 0
    return out.getvalue()


def test_the_markdown_lists_the_section_between_the_tables_and_the_provenance(run: FinishedRun, folder: Path) -> None:
    text = markdown(folder)
    before, after = text.split("\n**Against plain at its best**\n\n")
    listed, provenance = after.split("\n\n")
    assert [line.replace("\\~", "~") for line in listed.splitlines()] == [f"- {line}" for line in best_lines(run)]
    assert "**concurrency 2**" in before
    assert provenance.startswith("<sub>samerig ")
    assert "~" not in text.replace("\\~", ""), "an interval's mark is no strike-through"


def test_two_runs_tell_each_its_own_best_baseline_and_what_they_share_once(tmp_path: Path) -> None:
    run, other = measured(tmp_path / "one", "sglang", blocks=2), measured(tmp_path / "other", "sglang", blocks=1)
    text = side_by_side(tmp_path / "one", tmp_path / "other")
    section = text.split("Against plain at its best\n")[1].splitlines()
    flags, *_ = best_lines(run)
    assert [line for line in section if flags in line] == [f"A and B, {flags}"]
    for name, found in (("A", run), ("B", other)):
        (first,) = (line for line in best_lines(found) if line.startswith("concurrency 1, over plain_best, all classes: "))
        assert f"{name}, {first}" in section
    assert text.rstrip().endswith("machines drift between sessions")


def test_two_runs_whose_speeds_are_refused_show_no_speed_over_the_best_baseline_either(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    config = deepcopy(dict(measured(one, "vllm", blocks=1).config))
    config["engine"]["kv_tokens"] += 16
    shutil.copytree(one, other)
    (other / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    text = side_by_side(one, other)
    assert "refused: speeds, by engine.kv_tokens" in text
    assert "over plain_best" not in text
    assert "Against plain at its best" not in text


def test_a_run_without_the_arm_has_no_such_section_in_any_form(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", simulate(2))
    assert "at its best" not in markdown(folder)
    assert "at its best" not in side_by_side(folder, folder)
