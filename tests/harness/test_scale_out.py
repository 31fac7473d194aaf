"""Jobs of several rigs run at once and write into one results folder: nothing is lost and nothing is mixed."""

from __future__ import annotations

import io
import multiprocessing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import scaled
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from rich.console import Console
from scripted_bench import run_bench, scripted_run

from harness import cli
from harness.compose import ConfigError
from harness.launch import is_of_hydra, jobs_of, launcher_of
from harness.progress import RunProgress
from harness.rigs import RIGS
from harness.run_file import facts_of
from harness.store import read_tables
from harness.sweep import Job, matched_schemas, print_outcomes, run_job

LAUNCHERS = sorted((RIGS / "hydra" / "launcher").glob("*.yaml"))


def measure(results: str, name: str, barrier: Any) -> None:
    barrier.wait(60)
    run_bench(scripted_run({"step_ms": 2.0, "prefill_ms": 2.0}, {"blocks": 1}, name=name), Path(results), fresh=True)


def measured(folder: Path) -> pd.DataFrame:
    rows = read_tables(folder).requests
    return rows[rows.phase == "measured"]


def test_processes_that_measure_at_once_into_one_folder_lose_and_mix_nothing(tmp_path: Path) -> None:
    names = ["one", "two", "same", "same"]  # the last two are one rig, started in one second
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(names))
    processes = [context.Process(target=measure, args=(str(tmp_path), name, barrier)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * len(names)
    folders = sorted(file.parent for file in tmp_path.glob("*/run.json"))
    assert [folder.name.split("-")[0] for folder in folders] == sorted(names)
    whole = len(measured(run_bench(scripted_run(None, {"blocks": 1}, name="alone"), tmp_path / "alone")))
    for folder in folders:
        tables = read_tables(folder)
        assert facts_of(folder)["finished_at"]
        assert {row for table in (tables.requests, tables.servings, tables.cells) for row in table.run_id} == {folder.name}
        assert len(measured(folder)) == whole
        assert tables.requests.request_id.is_unique
    assert scaled.at_once([(facts_of(f)["started_at"], facts_of(f)["finished_at"]) for f in folders])


def test_two_rigs_are_two_jobs_of_one_sweep_and_each_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rigs = scaled.write_rigs(tmp_path)
    results = tmp_path / "results"
    assert cli.main(["bench", ",".join(map(str, rigs)), "-m", "draft_budget=1", "--results", str(results)]) == 0
    scaled.check_runs(results, rigs, budgets=(1,))
    assert [outcome["error"] for outcome in scaled.outcomes(results)] == [None, None]
    told = capsys.readouterr()
    assert "sweep: 2 jobs" in told.out
    places = [line for line in told.err.splitlines() if line.startswith("job ")]
    assert [line.partition(": ")[0] for line in places] == ["job 1 of 2", "job 2 of 2"]
    assert all(rig.stem in line for rig, line in zip(rigs, places, strict=True))


@pytest.mark.filterwarnings("error")
def test_a_launcher_of_a_plugin_s_name_is_judged_by_the_plugin_without_a_warning() -> None:
    """Hydra matches our file with the schema of its name, which only an installed plugin brings: it is put there here."""
    schemas, name = ConfigStore.instance(), "submitit_local"
    file = yaml.safe_load((RIGS / "hydra" / "launcher" / f"{name}.yaml").read_text("utf-8"))
    schemas.store(group="hydra/launcher", name=name, node={**file, "mem_gb": None}, provider="test")
    words = [f"hydra/launcher={name}"]
    try:
        with initialize_config_dir(str(RIGS), version_base="1.3"):
            with pytest.warns(UserWarning, match="validated against ConfigStore schema"):
                compose(overrides=words, return_hydra_config=True)
            with matched_schemas():
                found = compose(overrides=words, return_hydra_config=True)
    finally:
        del schemas.repo["hydra"]["launcher"][f"{name}.yaml"]
    assert found.hydra.launcher.mem_gb is None
    assert found.hydra.launcher.timeout_min == 60


def test_a_line_of_progress_is_never_broken_where_nobody_looks_at_a_terminal() -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=80), 100) as progress:
        progress.tell("block 0, " + "an arm with a long name and more " * 5)
        progress.warn("a serving that " * 12)
    assert out.getvalue().count("\n") == 2


def test_words_of_hydra_are_no_part_of_what_is_measured() -> None:
    assert [is_of_hydra(word) for word in ("hydra/launcher=ray", "+hydra.launcher.partition=a", "draft_budget=1")] == [1, 1, 0]
    jobs = list(jobs_of(["smoke", "cpu_smollm2"], ["draft_budget=1,3"]))
    assert [(job.rig, job.overrides) for job in jobs] == [
        (rig, (f"draft_budget={budget}",)) for rig in ("smoke", "cpu_smollm2") for budget in (1, 3)
    ]
    assert len({job.name for job in jobs}) == 4


def test_a_launcher_without_a_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "smoke", "hydra/launcher=ray", "--results", str(tmp_path)]) == 2
    assert "'hydra/launcher=ray': says how the jobs of a sweep are launched; add -m" in capsys.readouterr().err


def test_a_launcher_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launch.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"hydra/launcher: 'ray' is not installed; pip install -e '\.\[ray\]'"):
        launcher_of(["hydra/launcher=ray"])
    assert launcher_of(["draft_budget=1", "hydra/launcher=basic"]) is None


def test_a_job_whose_results_are_not_shared_is_refused_before_it_measures(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not shared with the machine that launched the sweep"):
        run_job(Job("smoke", (), "smoke"), tmp_path, tmp_path / ".sweeps" / "elsewhere", fresh=False)
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_left_no_outcome_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "outcome.json").write_text('{"folder": "results/a", "error": null}')
    jobs = [Job("smoke", (), "first"), Job("smoke", (), "second")]
    assert print_outcomes(tmp_path, jobs[:1], Console(width=200)) == 0
    assert print_outcomes(tmp_path, jobs, Console(width=200)) == 1
    assert f"second  failed: left no outcome; see {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("file", LAUNCHERS, ids=lambda file: file.stem)
def test_a_shipped_launcher_gives_a_machine_to_one_job_and_its_file_stands_alone(file: Path) -> None:
    config = yaml.safe_load(file.read_text("utf-8"))
    assert config["_target_"].startswith("hydra_plugins.")
    if file.stem == "ray":
        assert config["ray"]["remote"] == {"num_cpus": 0, "resources": {"samerig": 1}, "max_calls": 1, "max_retries": 0}
    if file.stem == "submitit_slurm":
        assert (config["nodes"], config["tasks_per_node"], config["additional_parameters"]["exclusive"]) == (1, 1, True)


def test_the_launchers_of_the_issue_are_shipped() -> None:
    assert {"ray", "submitit_slurm"} <= {file.stem for file in LAUNCHERS}
