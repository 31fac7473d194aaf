"""Notebooks run, show figures, define no metric, and their two forms are equal."""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.report.notebook import run_folder, run_folders

FOLDER = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
ALLOWED = ("harness.metrics", "harness.report", "pandas", "numpy", "matplotlib", "pathlib", "os")


def cells(source: Path) -> list[tuple[str, str]]:
    """Kind and text of every cell of a percent file; markdown without its comment signs."""
    found: list[tuple[str, str]] = []
    for part in source.read_text("utf-8").split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(("markdown", "\n".join(lines).strip()))
        else:
            found.append(("code", body.strip()))
    return found


def run(source: Path) -> tuple[list[Any], dict[str, Any]]:
    """Execute the code cells; what each would display, and the names at the end."""
    names: dict[str, Any] = {"__name__": source.stem}
    shown = []
    for kind, text in cells(source):
        if kind == "code":
            tree = ast.parse(text)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, str(source), "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), str(source), "eval"), names))
    return shown, names


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample, whatever the caller's shell says."""
    monkeypatch.delenv("RESULTS", raising=False)


def test_the_five_notebooks_are_there() -> None:
    assert [source.stem for source in SOURCES] == ["acceptance", "decomposition", "memory", "published", "speedup"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
@pytest.mark.usefixtures("results")
def test_a_notebook_runs_and_shows_a_figure(source: Path) -> None:
    shown, _ = run(source)
    figures = [value._repr_png_() for value in shown if hasattr(value, "_repr_png_")]
    assert figures
    assert all(png.startswith(b"\x89PNG") and len(png) > 5000 for png in figures)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_calls_only_metrics_and_report_and_defines_nothing(source: Path) -> None:
    tree = ast.parse(source.read_text("utf-8"))
    imported = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    imported += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in imported if not name.startswith(ALLOWED)] == []
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_executed_notebook_equals_its_source_and_has_output(source: Path) -> None:
    notebook = json.loads(source.with_suffix(".ipynb").read_text("utf-8"))
    assert [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in notebook["cells"]] == cells(source)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize("source", [s for s in SOURCES if s.stem != "published"], ids=lambda source: source.stem)
def test_the_executed_notebook_shows_the_sample(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESULTS", raising=False)
    assert run_folder().name in source.with_suffix(".ipynb").read_text("utf-8")


def test_results_names_another_run_and_a_folder_without_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{}")
    monkeypatch.setenv("RESULTS", str(tmp_path))
    assert run_folder() == tmp_path / "b"
    monkeypatch.setenv("RESULTS", str(tmp_path / "b"))
    assert run_folder() == tmp_path / "b"
    monkeypatch.setenv("RESULTS", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="set RESULTS"):
        run_folder()


def test_of_several_runs_the_first_by_name_is_shown_and_all_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cpu_rig-20260101-000000-aaaaaa", "cpu_rig_other-20260101-000000-bbbbbb"):  # the base rig comes first
        shutil.copytree(small_run, tmp_path / name)
    monkeypatch.setenv("RESULTS", str(tmp_path))
    assert [folder.name.split("-")[0] for folder in run_folders()] == ["cpu_rig", "cpu_rig_other"]
    assert run_folder() == run_folders()[0]
    run(FOLDER / "speedup.py")
    told = capsys.readouterr().out
    assert told.startswith("cpu_rig-")
    assert "\ncpu_rig_other-" in told
