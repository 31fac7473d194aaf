"""The sections on answers and causes, and their numbers, from rows whose story is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from synthetic import CONFIG, MS, simulate, write_run

from harness.metrics import REASONS
from harness.records_after import AFTER
from harness.report.decomposition import decomposition_lines
from harness.report.gates import gate_lines
from harness.report.run import FinishedRun, read_run
from harness.report.summary import cells, numbers
from harness.report.table import tables

WIDTH_MS = {1: 18.0, 5: 21.0}


def steps(rows: Sequence[Mapping[str, Any]], draft_ms: float, verify_ms: float) -> Iterator[dict[str, Any]]:
    """A step row for every decode step of these requests, alone in the batch."""
    for row in rows:
        budget = 4 if row["arm"] == "ngram" else 0
        for drafted, accepted in zip(row["step_drafted"], row["step_accepted"], strict=True):
            keys = {
                k: row[k]
                for k in ("run_id", "serving_id", "block", "arm", "cell_id", "prompt_set", "content_class", "concurrency")
            }
            spent = (draft_ms if budget else 0.0, verify_ms if budget else WIDTH_MS[1], 0.5)
            ns = [int(ms * MS) for ms in spent]
            yield {
                **keys,
                "phase": "measured",
                "started_ns": 0,
                "kind": "decode",
                "requests": 1,
                "rows": 1 + drafted,
                "context_tokens": 50,
                **dict(zip(("draft_ns", "verify_ns", "sample_ns"), ns, strict=True)),
                "total_ns": sum(ns) + MS // 2,
                "drafted": drafted,
                "accepted": accepted,
                "emitted": accepted + 1,
            }


def made(
    folder: Path,
    draft_ms: float = 1.0,
    verify_ms: float = 21.0,
    texts: bool = True,
    of_ngram: Mapping[str, Any] | None = None,
    **after: Any,
) -> FinishedRun:
    """Three blocks at concurrency 1 in which ngram accepts two of four drafts on average; `of_ngram` changes its servings."""
    rows: dict[str, list[dict[str, Any]]] = simulate(3, ("plain", "ngram"))
    rows["requests"] = [row for row in rows["requests"] if row["concurrency"] == 1]
    if texts:
        for row in rows["requests"]:
            row["token_ids"] = [100 + i for i in range(row["output_tokens"])]
            row["max_tokens"] = 200
    rows["steps"] = list(steps(rows["requests"], draft_ms, verify_ms))
    for serving in rows["servings"]:
        serving |= (of_ngram or {}) if serving["arm"] == "ngram" else {}
    config = {**CONFIG, "concurrency": [1], "protocol": {**CONFIG["protocol"], "a_a": False}}
    write_run(folder, rows, config)
    for table in AFTER:
        pq.write_table(table.to_arrow(after.get(table.name, [])), folder / f"{table.name}.parquet")
    return read_run(folder)


def sweep(times: Mapping[int, float]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": "r",
            "serving_id": f"b{b}-plain",
            "block": b,
            "arm": "plain",
            "requests": 1,
            "width": width,
            "context_tokens": 50,
            "round": 0,
            "verify_ns": int(ms * MS),
        }
        for b in range(3)
        for width, ms in times.items()
    ]


def numbers_of(run: FinishedRun, arm: str) -> dict[str, Any]:
    return {n.metric: n for cell in cells(run) if cell.label == "all" and cell.arm == arm for n in numbers(cell)}


def test_a_winning_arm_its_parts_its_break_even_and_what_the_sweep_predicts(tmp_path: Path):
    run = made(tmp_path / "run", widths=sweep(WIDTH_MS))
    text = "\n".join(decomposition_lines(run))
    assert "draft 1.00 + verify 21.00 + sample 0.50 + other 0.50" in text
    assert "predicted from the parts" in text
    assert "ngram decodes faster than plain" in text
    assert "acceptance" in text
    assert "width sweep at 1: one row 18.00 ms" in text
    got = numbers_of(run, "ngram")
    assert got["step_total_ms"].value == pytest.approx(23.0)
    assert got["break_even_length"].value == pytest.approx(23 / 19)
    assert got["break_even_length"].budget == 4
    # Pooled against the mean over blocks.
    assert got["predicted_step_speedup"].value == pytest.approx(got["step_speedup"].value, rel=0.01)
    assert got["step_speedup"].low < got["step_speedup"].value < got["step_speedup"].high
    plain = numbers_of(run, "plain")
    assert plain["step_total_ms"].value == pytest.approx(19.0)
    assert "break_even_length" not in plain


def test_a_losing_arm_is_told_why(tmp_path: Path):
    assert ": verify cost." in "\n".join(decomposition_lines(made(tmp_path / "a", verify_ms=90.0)))
    assert ": draft cost." in "\n".join(decomposition_lines(made(tmp_path / "b", draft_ms=70.0)))


@pytest.mark.parametrize(
    ("of_ngram", "reason"), [({"host": {"cpu_model": "another"}}, "confounded"), ({"session_id": "later"}, "two_sessions")]
)
def test_a_pair_that_cannot_be_compared_has_the_arm_s_own_parts_and_neither_ratio_nor_cause(
    of_ngram: dict[str, Any], reason: str, tmp_path: Path
):
    """Something beside the drafter differed, or a run was interrupted between the arms: in the text and in the numbers."""
    run = made(tmp_path / "run", of_ngram=of_ngram, widths=sweep(WIDTH_MS))
    (line,) = (line for line in decomposition_lines(run) if ", ngram:" in line)
    assert "draft 1.00 + verify 21.00" in line
    assert line.endswith(f"no cause: {REASONS[reason]}")
    assert not any("than plain" in line or "measured" in line for line in decomposition_lines(run))
    got = numbers_of(run, "ngram")
    assert {
        (got[metric].value, got[metric].note) for metric in ("break_even_length", "predicted_step_speedup", "step_speedup")
    } == {(None, reason)}
    if reason == "two_sessions":
        assert (got["speedup"].value, got["speedup"].note) == (None, reason)


def test_without_a_sweep_nothing_is_predicted(tmp_path: Path):
    run = made(tmp_path / "run")
    assert "not predicted (no width sweep was stored" in "\n".join(decomposition_lines(run))
    number = numbers_of(run, "ngram")["predicted_step_speedup"]
    assert (number.value, number.note) == (None, "no_width_sweep")


def test_an_engine_without_steps_gives_the_difference_of_its_streams(tmp_path: Path):
    rows = simulate(1, ("plain", "ngram"))
    rows["requests"] = [row for row in rows["requests"] if row["concurrency"] == 1]
    text = "\n".join(decomposition_lines(read_run(write_run(tmp_path / "run", rows))))
    assert "for drafting and the wider pass together (the engine does not tell what this needs)" in text


def test_identical_answers_are_told_with_the_floor(tmp_path: Path):
    run = made(tmp_path / "run")
    rows = [dict(r) for r in run.requests]
    for row in rows:  # equal lengths, so equal texts
        row["token_ids"] = list(range(30))
        row["output_tokens"] = 30
    same = FinishedRun(run.run_id, run.config, run.facts, run.servings, rows, run.steps, run.samples)
    lines = list(gate_lines(same))
    assert len(lines) == 1
    assert "identical to plain in 36 of 36, plain against itself 12 of 12" in lines[0]
    assert "!!" not in lines[0]


def test_an_arm_that_loops_is_marked_in_the_section_and_in_the_table(tmp_path: Path):
    run = made(tmp_path / "run")
    rows = [dict(r) for r in run.requests]
    for row in rows:
        row["token_ids"] = [7, 8, 9, 10] * 10 if row["arm"] == "ngram" else list(range(40))
        row["output_tokens"] = 40
    looping = FinishedRun(run.run_id, run.config, run.facts, run.servings, rows, run.steps, run.samples)
    assert "!! loops" in next(gate_lines(looping))
    groups: dict[str, dict[str, Any]] = {}
    for cell in cells(looping):
        groups.setdefault(cell.label, {})[cell.arm] = {n.metric: n for n in numbers(cell)}
    assert groups["all"]["ngram"]["quality_marks"].note == "loops"
    shown = [str(text) for table in tables(groups, 200) for column in table.columns for text in column.cells]
    assert any("!!" in text for text in shown)
    assert not any("!!" in text for text in shown if "baseline" in text)
