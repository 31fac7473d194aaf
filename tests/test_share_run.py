"""A run that is shared holds no path of the machine that measured it, and is otherwise as measured."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.share_run import ROOT, share


def test_paths_are_cut_and_all_else_stays(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    schema = pa.schema([("argv", pa.list_(pa.string())), ("engine", pa.string()), ("n", pa.int64())], {"schema": "2"})
    rows = [
        {"argv": [f"{ROOT}/.venv/bin/python", f"{Path.home()}/.cache/x", "-m"], "engine": f"at {ROOT}", "n": 3},
        {"argv": None, "engine": None, "n": None},
        {"argv": [], "engine": "reference", "n": 4},
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema), run / "servings.parquet")
    (run / "config.yaml").write_text("name: x\n")
    (run / "run.json").write_text("{}")
    share(run, tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "servings.parquet")
    assert table.schema.names == schema.names
    assert table.schema.metadata == schema.metadata
    assert table.to_pylist() == [
        {"argv": ["./.venv/bin/python", "~/.cache/x", "-m"], "engine": "at .", "n": 3},
        *rows[1:],
    ]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.yaml", "run.json", "servings.parquet"]


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.parquet files; name the folder of a finished run"):
        share(tmp_path, tmp_path / "out")
