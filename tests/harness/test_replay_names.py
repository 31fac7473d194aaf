"""What `samerig replay` is given, and what it says of a name that is nothing."""

from pathlib import Path

import pytest

from harness import cli
from harness.compose import ConfigError
from harness.replay_names import near_names, run_or_rig


def _run(results: Path, name: str) -> Path:
    (results / name).mkdir(parents=True)
    (results / name / "run.json").write_text("{}")
    return results / name


def _mistake(what: str, results: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        run_or_rig(what, results)
    line = str(caught.value)
    assert "\n" not in line
    assert "replay takes the name of a rig (samerig rigs lists them), a rig file (.yaml), or the folder of a run" in line
    return line


def test_a_run_is_found_by_path_and_by_name_and_a_rig_by_name_and_file(tmp_path: Path) -> None:
    run = _run(tmp_path, "smoke-20260101-120000-0f345d")
    assert run_or_rig(str(run), Path("elsewhere")) == run_or_rig(run.name, tmp_path) == run
    (tmp_path / "mine.yaml").write_text("defaults: [smoke, _self_]\n")
    for rig in ("smoke", "published/h200_qwen27b_card", str(tmp_path / "mine.yaml")):
        assert run_or_rig(rig, tmp_path) is None


def test_a_run_that_lies_elsewhere_names_the_place_and_the_near_runs_there(tmp_path: Path) -> None:
    run = _run(tmp_path / "theirs", "smoke-20260101-120000-0f345d")
    line = _mistake(str(run)[:-1], tmp_path / "results")
    assert line.startswith(f"'{str(run)[:-1]}': there is no {str(run)[:-1]}; ")
    assert f"did you mean '{run}'" in line


def test_a_bare_word_was_looked_for_as_run_and_as_rig(tmp_path: Path) -> None:
    _run(tmp_path, "smoke-20260101-120000-0f345d")
    line = _mistake("smoke-20260101", tmp_path)
    assert f"no run of that name in {tmp_path}, no rig of that name" in line
    assert "did you mean 'smoke-20260101-120000-0f345d' or 'smoke'?" in line
    assert "did you mean 'published/h200_qwen27b_card'" in _mistake("published/h200_qwen27b_cart", tmp_path)
    assert _mistake("zzz", tmp_path).endswith("nothing near that is here")


def test_a_folder_of_runs_names_the_runs_in_it_and_any_other_folder_or_file_what_it_is(tmp_path: Path) -> None:
    run = _run(tmp_path / "runs", "smoke-20260101-120000-0f345d")
    line = _mistake(str(tmp_path / "runs"), tmp_path)
    assert "is no run (no run.json), it holds 1 run, name one" in line
    assert line.endswith(f"did you mean '{run}'?")
    (tmp_path / "empty").mkdir()
    assert "is no run (no run.json), nor does it hold any" in _mistake(str(tmp_path / "empty"), tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert f"the file {tmp_path / 'notes.txt'} is no rig file" in _mistake(str(tmp_path / "notes.txt"), tmp_path)


def test_a_rig_file_that_is_no_rig_keeps_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="a rig is a mapping of keys"):
        run_or_rig(str(tmp_path / "list.yaml"), tmp_path)


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", str(tmp_path / "gone" / "run-1"), "--results", str(tmp_path)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"error: '{tmp_path}/gone/run-1': there is no ")
    assert "\n" not in told


def test_the_nearest_name_comes_first_and_short_words_are_near_nothing_they_begin() -> None:
    known = ["cpu_smollm2", "cpu_smollm2-20261130-031238-587f0d", "cpu_smollm2-20261130-033653-737fb9"]
    assert near_names("cpu_smollm2-20261130-033653-737fb", known)[0] == known[2]
    assert near_names("x", ["xpress_qwen3_8b"]) == []
