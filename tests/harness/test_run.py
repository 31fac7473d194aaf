"""A whole run on the scripted engine: every cell once, failures as rows, honest servings, clear ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scripted_bench import NGRAM, PLAIN, run_bench, scripted_run

from harness import probe, serving
from harness import run as run_module
from harness.engines.base import EngineError, RefusedError
from harness.engines.scripted import ScriptedEngine
from harness.report import summary
from harness.report.run import read_run
from harness.schedule import plan_servings
from harness.store import code_hash, read_tables

QUICK = {"blocks": 1, "warmup_prompts": 0}


def measure(tmp_path: Path, flags: dict[str, Any] | None = None, protocol: dict[str, Any] | None = None, **changes: Any) -> Any:
    return read_tables(run_bench(scripted_run(flags, protocol, **changes), tmp_path))


def expected_cells(run: Any) -> set[str]:
    return {cell.cell_id for serving in plan_servings(run, code_hash()) for cell in serving.cells}


def test_every_cell_is_there_once_with_its_distinct_prompts(tmp_path: Path) -> None:
    run = scripted_run(protocol={"prompts_per_set": 5})
    tables = read_tables(run_bench(run, tmp_path))
    measured = tables.requests[tables.requests.phase == "measured"]
    assert set(measured.cell_id) == expected_cells(run)
    assert (measured.groupby("cell_id").prompt_id.nunique() == 5).all()
    assert (measured.groupby("cell_id").size() == 5).all()
    assert tables.requests.request_id.is_unique
    assert set(tables.requests.serving_id) == set(tables.servings.serving_id)


def test_arms_are_asked_the_same_and_the_ledger_holds_on_every_row(tmp_path: Path) -> None:
    tables = measure(tmp_path, protocol=QUICK)
    rows = tables.requests
    by_arm = {arm: set(zip(g.prompt_hash, g.max_tokens, g.concurrency, strict=True)) for arm, g in rows.groupby("arm")}
    assert by_arm["plain"] == by_arm["ngram"]
    right = rows.prefill_tokens + rows.steps_with_draft + rows.steps_without_draft + rows.accepted - rows.ended_inside_run
    assert (rows.output_tokens == right).all()
    assert (rows[rows.arm == "plain"].drafted == 0).all()
    assert (rows[rows.arm == "ngram"].accepted > 0).any()


def test_servings_carry_facts_and_are_valid(tmp_path: Path) -> None:
    tables = measure(tmp_path, {"step_ms": 2})
    servings = tables.servings.sort_values(["block", "order_in_block"])
    assert list(servings.arm) == ["plain", "ngram", "ngram", "plain"]
    assert [list(reasons) for reasons in tables.cells.invalid] == [[]] * 16
    one = servings.iloc[1]
    assert (one.method, one.draft_budget, one.block) == ("ngram", 3, 0)
    counters = dict(one.counters)
    own = tables.requests[tables.requests.serving_id == one.serving_id]
    assert counters["output_tokens"] == own.output_tokens.sum()
    assert json.loads(dict(one.host)["physical_cores"]) >= 1
    assert json.loads(dict(one.resolved)["engine"]) == "scripted"
    assert one.ended_ns > one.launched_ns
    assert dict(one.memory)["sampled_peak_bytes"] > 2**20
    assert set(servings.session_id) == {one.session_id}
    assert set(tables.samples.serving_id) == set(servings.serving_id)


def test_steps_belong_to_cells_and_phases(tmp_path: Path) -> None:
    tables = measure(tmp_path, protocol={"blocks": 1})
    measured = tables.requests[(tables.requests.phase == "measured") & (tables.requests.arm == "ngram")]
    steps = tables.steps[(tables.steps.phase == "measured") & (tables.steps.arm == "ngram")]
    assert steps.groupby("cell_id").emitted.sum().to_dict() == measured.groupby("cell_id").output_tokens.sum().to_dict()
    assert set(tables.steps.phase) == {"warmup", "measured"}


def test_each_concurrency_is_warmed_once_per_serving_with_prompts_that_are_not_measured(tmp_path: Path) -> None:
    rows = measure(tmp_path, protocol={"blocks": 1}).requests
    warm, measured = rows[rows.phase == "warmup"], rows[rows.phase == "measured"]
    assert not set(warm.prompt_hash) & set(measured.prompt_hash)
    assert (warm.groupby("serving_id").cell_id.nunique() == 2).all()
    assert set(warm.groupby("cell_id").size()) <= {2, 3, 4, 6, 8}


def test_every_cell_has_a_row_with_the_counters_of_its_own_window(tmp_path: Path) -> None:
    tables = measure(tmp_path, {"step_ms": 1}, {"blocks": 1})
    measured = tables.requests[tables.requests.phase == "measured"]
    assert set(tables.cells.cell_id) == set(measured.cell_id)
    for row in tables.cells.itertuples():
        own = measured[measured.cell_id == row.cell_id]
        assert dict(row.counters)["output_tokens"] == own.output_tokens.sum(), "warm-up is not in the window"
        assert (row.started_ns, row.ended_ns) == (own.sent_ns.min(), own.ended_ns.max())
    warm = tables.cells.groupby("serving_id").warmup_batches.agg(lambda batches: int((batches > 0).sum()))
    assert set(warm) == {2}, "one warm-up per concurrency"
    assert tables.cells[tables.cells.warmup_batches == 0].warmed_up.isna().all()


def test_one_bad_cell_leaves_the_other_cells_of_its_serving_comparable(tmp_path: Path) -> None:
    """A cap of one request bites at concurrency 2 alone: concurrency 1 of the same servings stays controlled."""
    folder = run_bench(scripted_run({"cap": 1, "step_ms": 1}, {"blocks": 1, "prompts_per_set": 4}), tmp_path)
    cells = read_tables(folder).cells
    bad = cells[[len(reasons) > 0 for reasons in cells.invalid]]
    assert set(bad.concurrency) == {2}
    assert len(bad) == 4
    run = read_run(folder)
    assert run.control("ngram", 1).verdict == "CONTROLLED"
    assert [f.factor for f in run.control("ngram", 2).of("confounder")] == ["concurrency_reached"]
    numbers = summary(folder)
    notes = numbers[numbers.metric == "speedup"].groupby("concurrency").note.agg(lambda notes: {n.split(":")[0] for n in notes})
    assert notes.to_dict() == {1: {"CONTROLLED"}, 2: {"CONFOUNDED"}}


def test_kernels_made_inside_the_window_make_the_cell_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ScriptedEngine.generate

    async def compiles(self: Any, request: Any) -> Any:
        if "-m-0" in request.request_id and self._budget:
            with self._log_path.open("a") as log:
                log.write("Capturing CUDA graphs (decode, FULL): 3 of 7\n")
        async for chunk in honest(self, request):
            yield chunk

    monkeypatch.setattr(ScriptedEngine, "generate", compiles)
    folder = run_bench(scripted_run(protocol=QUICK, concurrency=[1]), tmp_path)
    cells = read_tables(folder).cells
    assert {(arm, len(reasons)) for arm, reasons in zip(cells.arm, cells.invalid, strict=True)} == {("plain", 0), ("ngram", 1)}
    assert [f.factor for f in read_run(folder).control("ngram", 1).of("confounder")] == ["validity"]


def test_a_failing_arm_keeps_its_rows_and_is_invalid(tmp_path: Path) -> None:
    tables = measure(tmp_path, {"fail_every": 4}, QUICK)
    failed = tables.requests[tables.requests.error.notna()]
    assert len(failed) == 6
    assert failed.finish.isna().all()
    assert sum(any(reason.startswith("errors: 33.3 %") for reason in reasons) for reasons in tables.cells.invalid) == 6


def test_empty_answers_are_failures_in_the_table(tmp_path: Path) -> None:
    tables = measure(tmp_path, {"empty_every": 12}, QUICK)
    assert set(tables.requests.error.dropna()) == {"empty: the stream ended without a token"}


def test_a_ledger_that_contradicts_itself_makes_the_cell_invalid_and_keeps_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ScriptedEngine._chunk

    def overstated(self: Any, beat: Any, ids: Any, finish: Any) -> Any:
        chunk = honest(self, beat, ids, finish)
        return type(chunk)(chunk.arrived_ns, ids, None if beat.drafted is None else 9, beat.accepted, finish)

    monkeypatch.setattr(ScriptedEngine, "_chunk", overstated)
    tables = measure(tmp_path, protocol=QUICK)
    assert len(tables.requests) == 2 * 4 * 3
    assert tables.requests.accepted.isna().all()
    assert all(drafted == 9 for steps in tables.requests.step_drafted for drafted in steps)
    assert all("ledger: request" in reasons[0] for reasons in tables.cells.invalid)


def test_an_engine_that_tells_no_steps_gives_nulls_and_no_step_table(tmp_path: Path) -> None:
    tables = measure(tmp_path, {"tells_steps": False}, QUICK)
    assert tables.requests.accepted.isna().all()
    assert len(tables.steps) == 0
    assert all(dict(counters) == {} for counters in tables.servings.counters)


def test_open_load_is_measured_at_its_rate_with_the_schedule_kept(tmp_path: Path) -> None:
    rows = measure(tmp_path, protocol={**QUICK, "load": "open", "rate_rps": 200}, concurrency=[1]).requests
    assert (rows.sent_ns >= rows.scheduled_ns).all()
    first = rows.groupby("cell_id").scheduled_ns.transform("min")
    gaps = {tuple(sorted(group)) for _, group in (rows.scheduled_ns - first).groupby(rows.cell_id)}
    assert len(gaps) == 1


def test_an_a_a_arm_is_a_third_serving(tmp_path: Path) -> None:
    servings = measure(tmp_path, protocol={**QUICK, "a_a": True}).servings
    assert dict(zip(servings.arm, servings.method, strict=True)) == {"plain": "plain", "ngram": "ngram", "plain2": "plain"}


def test_an_arm_that_does_not_start_is_one_error_and_other_cells_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = ScriptedEngine.launch

    async def fails_for_ngram(self: Any) -> Any:
        if self._budget:
            raise EngineError("did not start; last log lines: CUDA out of memory")
        return await launch(self)

    monkeypatch.setattr(ScriptedEngine, "launch", fails_for_ngram)
    with pytest.raises(EngineError, match="arm ngram, block 0: did not start; last log lines: CUDA out of memory"):
        measure(tmp_path, protocol=QUICK)
    (folder,) = tmp_path.iterdir()
    tables = read_tables(folder)
    assert set(tables.requests.arm) == {"plain"}
    assert tables.requests.cell_id.nunique() == 4
    monkeypatch.undo()
    assert run_bench(scripted_run(protocol=QUICK), tmp_path) == folder
    assert read_tables(folder).requests.cell_id.nunique() == 8


@pytest.mark.parametrize(("kind", "resumes"), [(EngineError, True), (RefusedError, False)])
def test_only_what_may_go_well_another_time_is_said_to_be_resumed(
    kind: type[EngineError], resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Any) -> Any:
        raise kind("checkpoint: no such tensor")

    monkeypatch.setattr(ScriptedEngine, "launch", fails)
    with pytest.raises(EngineError) as caught:
        measure(tmp_path, protocol=QUICK)
    assert ("the same command resumes" in str(caught.value)) is resumes


def test_a_cell_whose_engine_died_is_not_complete(tmp_path: Path) -> None:
    run = scripted_run({"die_after": 7}, QUICK)
    with pytest.raises(EngineError, match="arm plain, block 0: scripted engine died"):
        run_bench(run, tmp_path)
    (folder,) = tmp_path.iterdir()
    tables = read_tables(folder)
    assert (tables.requests.groupby("cell_id").size() == 3).all()
    assert tables.requests.cell_id.nunique() == 2
    assert tables.servings.ended_ns.isna().all()


def test_a_finished_run_is_measured_anew_when_asked_again(tmp_path: Path) -> None:
    run = scripted_run(protocol=QUICK, concurrency=[1])
    assert run_bench(run, tmp_path) != run_bench(run, tmp_path)


def test_without_a_terminal_progress_is_plain_lines(tmp_path: Path) -> None:
    text = io.StringIO()
    run_bench(scripted_run(protocol=QUICK, concurrency=[1]), tmp_path, console=Console(file=text, width=100))
    lines = text.getvalue().splitlines()
    assert len(lines) == 2 * 3
    assert "launching" in lines[0]
    assert lines[0].startswith("  0 %  ETA   --:--")
    assert "\x1b" not in text.getvalue()


def test_on_a_terminal_the_bar_is_drawn_by_the_run_and_not_by_a_thread(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True)
    run_bench(scripted_run(protocol=QUICK, concurrency=[1]), tmp_path, console=console)
    drawn = text.getvalue().count("ETA")
    assert 6 <= drawn <= 10, "six things are told; a thread that redraws would draw many more"
    assert "100%" in text.getvalue()


def test_sources_that_change_during_a_run_end_it_and_its_cells_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter(["as it was", "edited"])
    monkeypatch.setattr(serving, "code_hash", lambda: next(hashes))
    monkeypatch.setattr(run_module, "code_hash", lambda: "as it was")
    with pytest.raises(RuntimeError, match="sources of harness or drafters changed"):
        run_bench(scripted_run(protocol=QUICK, concurrency=[1]), tmp_path)
    (folder,) = tmp_path.glob("*/run.json")
    assert len(set(read_tables(folder.parent).requests.serving_id)) == 1


def test_a_busy_machine_is_a_flag_of_a_cpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "foreign_load", lambda: {"load_busy_cores": 0.5})
    tables = measure(tmp_path, protocol=QUICK, machine={"kind": "cpu", "max_load": 0.3}, concurrency=[1])
    flagged = [any(flag.startswith("load:") for flag in flags) for flags in tables.servings["flags"]]
    assert all(flagged)


def test_fixed_length_output_is_labelled_on_every_row(tmp_path: Path) -> None:
    workload = {"name": "w", "sets": [{"set": "alpha", "max_tokens": 9}], "stop": "fixed", "seed": 1}
    rows = measure(tmp_path, protocol=QUICK, workload=workload, arms={"plain": PLAIN, "ngram": NGRAM}).requests
    assert rows.ignore_eos.all()
    assert set(rows.output_tokens) == {9}


def test_a_resume_says_which_block_two_sessions_share_and_is_silent_between_blocks() -> None:
    servings = plan_servings(scripted_run(protocol={"blocks": 2}, concurrency=[1]), "code")
    first = [cell.cell_id for one in servings if one.block == 0 for cell in one.cells]
    for complete, told in ((set(first[:1]), "block 0 now spans two sessions"), (set(first), ""), (set(), "")):
        todo = run_module._left(servings, complete)
        said = run_module._torn(servings, todo)
        assert told in said
        assert bool(told) == bool(said)
