"""The run folder: atomic, locked, resumable, and readable at any moment."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.folders import acquire, is_held
from harness.records import CELLS, REQUESTS, SAMPLES, SCHEMA_VERSION, SERVINGS, STEPS, TABLES, Table
from harness.records_after import AFTER, GRADES, REPLAYS, WIDTHS
from harness.store import ALL_TABLES, Store, code_hash, compact, find_resumable, left_by_other_code, open_store, read_tables

KEYS = {"run_id": "r", "serving_id": "s", "block": 0, "arm": "plain"}


def filled(table: Any, **values: Any) -> dict[str, Any]:
    """A row with an empty value of the right type wherever the table asks for one."""
    empty = {"int64": 0, "double": 0.0, "string": "", "bool": False}
    row = {c.name: None if c.nullable else empty.get(str(c.type), []) for c in table.columns}
    return {**row, **KEYS, **values}


def start(results: Path, config_hash: str = "c" * 64, fresh: bool = False) -> Store:
    return open_store(results, "rig", "name: rig\n", config_hash, "code", fresh)


def write(store: Store, cell_id: str, requests: int = 2) -> None:
    rows = [filled(REQUESTS, cell_id=cell_id, request_id=f"{cell_id}-{i}", phase="measured") for i in range(requests)]
    told = {"cells": [filled(CELLS, cell_id=cell_id)], "steps": [filled(STEPS, cell_id=cell_id)], "samples": [filled(SAMPLES)]}
    store.write_cell(cell_id, {"requests": rows, **told})


def test_a_report_that_looks_at_the_lock_turns_no_bench_away_and_a_bench_does(tmp_path: Path) -> None:
    glance = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(glance, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, (glance,)).start()
    lock = acquire(tmp_path)
    assert is_held(tmp_path)
    with pytest.raises(RuntimeError, match=r"another process is measuring .*; wait for it; .*--fresh only once it has ended"):
        acquire(tmp_path)
    os.close(lock)
    assert not is_held(tmp_path)


def test_a_finished_run_is_one_file_per_table_and_its_configuration(tmp_path: Path) -> None:
    store = start(tmp_path)
    write(store, "a")
    write(store, "b", 3)
    store.write_serving(filled(SERVINGS))
    store.finish()
    store.close()
    names = {path.name for path in store.folder.iterdir()} - {".lock"}
    assert names == {"config.yaml", "run.json", *(f"{table.name}.parquet" for table in ALL_TABLES)}
    tables = read_tables(store.folder)
    found = (tables.servings, tables.cells, tables.requests, tables.steps, tables.samples)
    assert [len(table) for table in found] == [1, 2, 5, 2, 2]
    facts = json.loads((store.folder / "run.json").read_text("utf-8"))
    assert (facts["config_hash"], facts["code_hash"], facts["schema"]) == ("c" * 64, "code", SCHEMA_VERSION)


def test_the_run_id_names_rig_time_and_configuration(tmp_path: Path) -> None:
    run_id = start(tmp_path, "abcdef" + "0" * 58).run_id
    rig, day, time, short = run_id.split("-")
    assert (rig, len(day), len(time), short) == ("rig", 8, 6, "abcdef")


def test_an_unfinished_run_can_be_read_and_compacted(tmp_path: Path) -> None:
    store = start(tmp_path)
    write(store, "a")
    assert len(read_tables(store.folder).requests) == 2
    compact(store.folder)
    write(store, "b")
    assert len(read_tables(store.folder).requests) == 4, "an early compaction must not hide later cells"
    assert len(read_tables(store.folder).servings) == 0


def finished(results: Path, **facts: Any) -> Path:
    """A finished run of one cell, with these facts in run.json beside its own."""
    store = start(results)
    write(store, "a")
    store.finish()
    store.close()
    file = store.folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **facts}))
    return store.folder


def test_a_run_that_was_measured_before_cells_had_rows_can_be_read(tmp_path: Path) -> None:
    folder = finished(tmp_path, schema=1)
    (folder / "cells.parquet").unlink()
    assert len(read_tables(folder).cells) == 0
    assert len(read_tables(folder).requests) == 2


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@pytest.mark.parametrize("facts", [{}, {"schema": None}, {"finished_at": None}], ids=["finished", "no schema", "no end"])
def test_a_table_that_every_run_of_this_schema_has_is_missed(table: Table, facts: dict[str, None], tmp_path: Path) -> None:
    """Reasons that forbid a comparison are rows of cells: without them a run would look better than it was."""
    folder = finished(tmp_path, **facts)
    (folder / f"{table.name}.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=rf"/{table.name}\.parquet: no such file; restore it"):
        read_tables(folder)


def test_what_was_looked_at_after_the_cells_and_a_run_that_has_just_begun_may_be_without_a_table(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    for table in AFTER:
        (folder / f"{table.name}.parquet").unlink()
    assert len(read_tables(folder).requests) == 2
    begun = start(tmp_path)
    assert len(read_tables(begun.folder).cells) == 0
    (begun.folder / "cells").rmdir()
    assert len(read_tables(begun.folder).requests) == 0


def test_a_cell_with_a_bad_row_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    store = start(tmp_path)
    with pytest.raises(ValueError, match="requests: missing or unknown columns"):
        store.write_cell("a", {"cells": [], "requests": [{"cell_id": "a"}], "steps": [], "samples": []})
    assert store.complete_cells() == set()


def test_an_unfinished_run_is_continued_only_with_equal_hashes(tmp_path: Path) -> None:
    store = start(tmp_path)
    write(store, "a")
    store.close()
    assert find_resumable(tmp_path, "c" * 64, "other code") is None
    assert find_resumable(tmp_path, "d" * 64, "code") is None
    again = start(tmp_path)
    assert (again.folder, again.resumed, again.complete_cells()) == (store.folder, True, {"a"})


def test_fresh_starts_a_new_run_beside_an_unfinished_one(tmp_path: Path) -> None:
    first = start(tmp_path)
    second = start(tmp_path, fresh=True)
    assert first.folder != second.folder
    assert not second.resumed


def test_a_finished_run_is_not_continued(tmp_path: Path) -> None:
    first = start(tmp_path)
    write(first, "a")
    first.finish()
    first.close()
    second = start(tmp_path)
    assert second.folder != first.folder


def test_a_run_that_is_killed_between_its_end_and_the_last_of_its_pieces_is_finished_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    store = start(tmp_path)
    write(store, "a")
    monkeypatch.setattr("harness.store.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        store.finish()
    store.close()
    assert (store.folder / "cells" / "a").is_dir()
    assert set(read_tables(store.folder).requests.cell_id) == {"a"}
    assert start(tmp_path).folder != store.folder


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    store = start(tmp_path)
    write(store, "a")
    store.close()
    (store.folder / "cells" / ".tmp-b").mkdir()
    (store.folder / "cells" / ".tmp-b" / "requests.parquet").write_bytes(b"half")
    (store.folder / "servings" / ".tmp-s.parquet").write_bytes(b"half")
    assert len(read_tables(store.folder).requests) == 2
    again = start(tmp_path)
    assert again.complete_cells() == {"a"}
    assert not list(again.folder.rglob(".tmp-*"))


def test_a_second_process_gets_one_clear_error(tmp_path: Path) -> None:
    store = start(tmp_path)
    program = (
        "import sys; from pathlib import Path; from harness.store import open_store\n"
        "try: open_store(Path(sys.argv[1]), 'rig', '', 'c' * 64, 'code', False)\n"
        "except RuntimeError as error: print(error); sys.exit(3)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    root = Path(__file__).parents[2]
    second = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert (second.returncode, second.stderr) == (3, "")
    assert "another process is measuring this run" in second.stdout
    assert len(second.stdout.splitlines()) == 1
    store.close()
    third = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert third.returncode == 0


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run here"):
        read_tables(tmp_path)


def test_the_code_hash_is_stable_and_covers_both_packages() -> None:
    assert code_hash() == code_hash()
    assert len(code_hash()) == 64


def test_an_unfinished_run_of_other_sources_is_found_so_that_it_can_be_named(tmp_path: Path) -> None:
    store = open_store(tmp_path, "rig", "a: 1", "c" * 64, "code", fresh=True)
    store.close()
    assert left_by_other_code(tmp_path, "c" * 64, "other code") == store.folder
    assert left_by_other_code(tmp_path, "c" * 64, "code") is None
    assert left_by_other_code(tmp_path, "d" * 64, "other code") is None


def test_a_results_folder_that_cannot_be_is_one_line_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ValueError, match=r"--results .*file: cannot be made a folder"):
        open_store(tmp_path / "file", "rig", "a: 1", "c" * 64, "code", fresh=True)


def test_what_was_looked_at_after_the_cells_is_kept_whole_and_compacted(tmp_path: Path) -> None:
    store = start(tmp_path)
    write(store, "a")
    widths = [filled(WIDTHS, width=w) for w in (1, 5)]
    store.write_after("b0-plain-s", {"widths": widths, "replays": [filled(REPLAYS)], "grades": [filled(GRADES)]})
    with pytest.raises(ValueError, match="widths"):
        store.write_after("b0-ngram-s", {"widths": [{"width": 1}], "replays": [], "grades": []})
    found = read_tables(store.folder)
    assert (len(found.widths), len(found.replays), len(found.grades)) == (2, 1, 1)
    store.finish()
    store.close()
    assert list(read_tables(store.folder).widths["width"]) == [1, 5]


def test_a_run_from_before_there_were_such_tables_has_none_of_their_rows(tmp_path: Path) -> None:
    folder = finished(tmp_path, schema=1)
    for name in ("cells", "widths", "replays", "grades"):
        (folder / f"{name}.parquet").unlink()
    found = read_tables(folder)
    assert len(found.requests) == 2
    assert [len(t) for t in (found.cells, found.widths, found.replays, found.grades)] == [0, 0, 0, 0]
