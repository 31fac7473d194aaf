"""A run.json that lacks something counts as unfinished or is one clear error, wherever it is read; writers do not collide."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from pathlib import Path

import pytest
from synthetic import simulate, write_run

from harness import cli
from harness.folders import new_folder
from harness.report.run import read_run
from harness.run_file import facts_of, is_finished, runs_in
from harness.store import Store, find_finished, find_resumable, left_by_other_code, open_store, read_tables

KEYS = ("run_id", "schema", "config_hash", "code_hash", "started_at", "argv", "finished_at")


def started(results: Path) -> Store:
    return open_store(results, "rig", "name: rig\n", "c" * 64, "code", fresh=False)


def without(folder: Path, *keys: str) -> None:
    facts = {key: value for key, value in facts_of(folder).items() if key not in keys}
    (folder / "run.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("keys", [(key,) for key in KEYS] + [KEYS])
def test_a_run_that_lacks_a_fact_can_be_reported_alone_and_beside_another(
    keys: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (write_run(tmp_path / name, simulate(1, ("plain", "ngram"))) for name in ("one", "two"))
    without(one, *keys)
    assert is_finished(one) is ("finished_at" not in keys)
    assert len(read_tables(one).requests) > 0
    assert cli.main(["report", str(one)]) == 0
    assert cli.main(["report", str(one), str(two)]) == 0
    assert cli.main(["report", str(one), "--html"]) == 0
    assert "ngram" in capsys.readouterr().out


@pytest.mark.parametrize("keys", [(key,) for key in KEYS] + [KEYS])
def test_a_neighbour_that_lacks_a_fact_stops_no_search(keys: tuple[str, ...], tmp_path: Path) -> None:
    first = started(tmp_path)
    first.close()
    without(first.folder, *keys)
    continued = find_resumable(tmp_path, "c" * 64, "code")
    assert (continued == first.folder) is not bool({"config_hash", "code_hash"} & set(keys))
    assert find_finished(tmp_path, "c" * 64, "code") is None
    assert (left_by_other_code(tmp_path, "c" * 64, "new") == first.folder) is ("config_hash" not in keys)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\udcff"])
def test_what_is_no_object_of_facts_is_one_clear_error_and_stops_no_neighbour(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "one", simulate(1, ("plain", "ngram")))
    (folder / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    for read in (facts_of, is_finished, read_tables, read_run):
        with pytest.raises(ValueError, match=r"run\.json: .*; restore it, or move the folder away"):
            read(folder)
    assert cli.main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {folder}/run.json: ")
    assert runs_in(tmp_path) == []
    started(tmp_path).close()
    assert len(runs_in(tmp_path)) == 1


def test_a_run_that_ends_while_it_is_read_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "one", simulate(1, ("plain", "ngram")))
    whole = len(read_tables(folder).requests)
    facts = facts_of(folder)
    without(folder, "finished_at")
    (folder / "cells").mkdir()

    def end(*paths: Path) -> list[Path]:
        if (folder / "cells").exists():
            shutil.rmtree(folder / "cells")
            (folder / "run.json").write_text(json.dumps(facts))
        return sorted(*paths)

    monkeypatch.setattr("harness.store.sorted", end, raising=False)
    assert len(read_tables(folder).requests) == whole


def test_a_folder_that_another_process_made_a_moment_ago_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rig-1").mkdir()
    monkeypatch.setattr(Path, "exists", lambda path: False)  # what the other made is not seen yet
    assert [new_folder(tmp_path, "rig-1").name for _ in range(2)] == ["rig-1-2", "rig-1-3"]


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=r"cannot lock files \(No locks available\); mount it with locks"):
        started(tmp_path)
