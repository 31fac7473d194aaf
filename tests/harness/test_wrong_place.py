"""A place that cannot be read from or written to is refused before anything is worked out, and where a file went is said."""

from pathlib import Path

import pytest

from harness import cli
from harness.rigs import ROOT

SAMPLE = next(path.parent for path in sorted((ROOT / "results" / "sample").glob("*/run.json")))


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "smoke"],
        ["bench", "smoke"],
        ["bench", "-m", "smoke", "draft_budget=1,2"],
        ["doctor", "smoke"],
        ["report"],
        ["audit", "smoke:plain", "smoke:ngram"],
        ["replay", "smoke", "--plan"],
        ["verdict", "mine"],
    ],
    ids=" ".join,
)
def test_a_file_in_place_of_the_results_folder_is_refused_by_every_command(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert cli.main([*words, "--results", str(file)]) == 2
    out = capsys.readouterr()
    assert out.err == f"error: --results {file}: is a file; name a folder, which bench makes where there is none\n"
    assert (out.out, file.read_text()) == ("", "mine")


def _places(folder: Path, kind: str) -> dict[str, Path]:
    """Files that cannot be written, by why; also to root."""
    (folder / "text").write_text("")
    (folder / f"dir{kind}").mkdir()
    return {"folder": folder / f"dir{kind}", "below a file": folder / "text" / f"x{kind}", "proc": Path(f"/proc/x{kind}")}


@pytest.mark.parametrize("why", ["folder", "below a file", "proc"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.report.figures.source", lambda folder: pytest.fail("the run was read"))
    monkeypatch.setattr("harness.claims.show.read_claims", lambda: pytest.fail("the claims were read"))
    for kind, words in ((".svg", ["report", str(SAMPLE), "--figure"]), (".csv", ["claims", "--csv"])):
        (folder := tmp_path / kind[1:]).mkdir()
        file = _places(folder, kind)[why]
        assert cli.main([*words, str(file)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {words[-1]} {file}: ")
        assert err.count("\n") == 1


def test_a_figure_of_an_unknown_kind_is_refused_with_the_known_ones_before_the_run_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.report.figures.source", lambda folder: pytest.fail("the run was read"))
    assert cli.main(["report", str(SAMPLE), "--figure", str(tmp_path / "new" / "f.txt")]) == 2
    err = capsys.readouterr().err
    assert "no figure is written as .txt; known: " in err
    assert ".png" in err
    assert ".svg " in err
    assert list(tmp_path.iterdir()) == []


def test_claims_are_written_into_a_folder_that_is_made_and_the_place_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "not" / "there" / "x.csv"
    assert cli.main(["claims", "method=mtp", "--csv", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: ")
    assert file.read_text("utf-8").startswith("claim_id,")
