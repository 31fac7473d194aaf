"""A folder of runs is one table: every run with what it asked differently, and every number as the run alone has it."""

from __future__ import annotations

import io
import shutil
from copy import deepcopy
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from synthetic import CONFIG, simulate, write_run

from harness import cli
from harness.metrics import REASONS
from harness.report import export
from harness.report.folder import print_folder, run_folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one rig with other engines, one of another rig, and a folder that is no run."""
    found = tmp_path_factory.mktemp("results")
    for seed, (name, rig, graphs) in enumerate((("a", "one", "off"), ("b", "one", "full"), ("c", "other", "off"))):
        config = deepcopy(CONFIG) | {"name": rig}
        config["engine"] = {**CONFIG["engine"], "graphs": graphs}
        write_run(found / name, simulate(1, ("plain", "ngram"), seed=seed), config)
    (found / ".sweeps" / "x").mkdir(parents=True)
    return found


def test_runs_of_one_rig_stand_together_with_what_they_asked_differently(folder: Path) -> None:
    out = io.StringIO()
    print_folder(folder, Console(file=out, width=160, force_terminal=False))
    lines = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert [lines.index(text) for text in ("one  2 runs", "a", "b", "other  1 runs", "c")] == sorted(
        lines.index(text) for text in ("one  2 runs", "a", "b", "other  1 runs", "c")
    )
    assert lines[lines.index("a") + 1] == "engine.graphs=off"
    assert lines[lines.index("b") + 1] == "engine.graphs=full"
    assert sum(line.startswith("ngram at 1, n=") for line in lines) == 3
    assert "no ratio between the runs is formed" in " ".join(lines)


def test_numbers_of_all_runs_are_one_csv_with_a_line_of_provenance_each(folder: Path) -> None:
    text = export.csv_of(run_folders(folder))
    assert text.count("# samerig ") == 3
    merged = pd.read_csv(io.StringIO(text), comment="#")
    alone = [pd.read_csv(io.StringIO(export.csv(folder / name)), comment="#") for name in "abc"]
    pd.testing.assert_frame_equal(merged, pd.concat(alone, ignore_index=True))
    assert list(dict.fromkeys(merged.run_id)) == ["a", "b", "c"]


def test_the_command_line_takes_a_folder_of_runs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(folder)]) in (0, 1)
    assert "engine.graphs=full" in capsys.readouterr().out
    assert cli.main(["report", str(folder), "--markdown"]) == 0
    assert capsys.readouterr().out.count("<sub>samerig") == 3
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "no run here; give the folder of a run, or one that holds runs" in capsys.readouterr().err


def test_a_folder_that_only_looks_like_a_run_is_named_and_the_others_are_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "a", tmp_path / "a")
    for name, files in {"empty": {}, "torn": {"config.yaml": "a: [", "x": ""}, "nameless": {"config.yaml": "{}"}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    assert cli.main(["report", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "ngram at 1, n=" in told
    for name in ("empty", "torn", "nameless"):
        assert any(line.startswith(f"left out: {tmp_path / name}") for line in told.splitlines())
    shutil.rmtree(tmp_path / "a")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "no run here can be read" in capsys.readouterr().err


def test_a_figure_makes_the_folder_that_it_is_written_into_and_says_where_it_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "not" / "there" / "speedup.svg"
    assert cli.main(["report", str(folder / "a"), "--figure", str(file)]) == 0
    assert capsys.readouterr().out == f"figure: {file}\n"
    assert file.read_text("utf-8").startswith("<svg")


def test_an_arm_without_a_speedup_says_why_in_its_line_and_below_the_table(tmp_path: Path) -> None:
    tables = simulate(1, ("plain", "ngram"))
    for serving in tables["servings"]:
        serving["session_id"] = f"session of {serving['arm']}"
    write_run(tmp_path / "torn", tables)
    out = io.StringIO()
    print_folder(tmp_path, Console(file=out, width=160, force_terminal=False))
    line = next(text for text in out.getvalue().splitlines() if text.startswith("  ngram at 1"))
    assert line.rstrip().endswith("two sessions")
    assert f"refused: speedup: {REASONS['two_sessions']}" in " ".join(out.getvalue().split())
