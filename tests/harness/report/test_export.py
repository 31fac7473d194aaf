"""Exports hold the numbers of the summary and say where they come from."""

import io
import shlex

import pandas as pd
import pytest
from synthetic import simulate, write_run

from harness import cli
from harness.report import export, summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("results") / "run-one", simulate(2))


def test_the_csv_is_the_summary_with_its_provenance_on_top(folder):
    text = export.csv(folder)
    assert text.startswith("# samerig ")
    found, told = pd.read_csv(io.StringIO(text), comment="#"), summary(folder)
    assert len(found) == len(told)
    assert found.value.sum() == pytest.approx(told.value.sum())


def test_the_markdown_has_a_line_for_every_class_and_arm_and_one_of_provenance(folder):
    lines = export.markdown(folder).splitlines()
    rows = [line for line in lines if line.startswith("| ") and " n=" in line]
    assert len(rows) == 2 * 3 * 3
    assert len({line.count(" | ") for line in lines if line.startswith("| ")}) == 1
    assert "CONTROLLED: faster" in next(row for row in rows if "| ngram |" in row)
    assert lines[-1].startswith("<sub>samerig ")
    assert "repeat: samerig bench results/run-one/config.yaml</sub>" in lines[-1]


def test_the_csv_says_how_to_repeat_the_run_from_where_it_lies(tmp_path):
    folder = write_run(tmp_path / "r é" / "run-one", simulate(1))
    first = export.csv(folder).splitlines()[0]
    assert shlex.split(first.rpartition("repeat: ")[2]) == ["samerig", "bench", str(folder / "config.yaml")]
    plain = export.csv(folder.rename(tmp_path / "plain")).splitlines()[0]
    assert plain.endswith(f"repeat: samerig bench {tmp_path}/plain/config.yaml")


def test_an_unfinished_run_says_so_in_its_provenance(tmp_path):
    text = export.markdown(write_run(tmp_path / "run", simulate(1)))
    assert "incomplete: 12 of 36 cells" in text


@pytest.mark.parametrize(("flag", "start"), [("--csv", "# samerig"), ("--markdown", "**concurrency 1**")])
def test_the_command_line_prints_an_export_and_nothing_else(folder, flag, start, capsys):
    assert cli.main(["report", str(folder), flag]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_a_figure_is_written_by_its_suffix(folder, tmp_path):
    for name, start in (("a.svg", b"<svg"), ("a.png", b"\x89PNG")):
        assert cli.main(["report", str(folder), "--figure", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)


def test_a_figure_of_two_runs_is_refused(folder, capsys):
    assert cli.main(["report", str(folder), str(folder), "--figure", "a.svg"]) == 2
    assert "draws one run, 2 were named" in capsys.readouterr().err
