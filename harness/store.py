"""The run folder: what is written, when, and what survives a kill.

    results/<run_id>/config.yaml, run.json, .lock
                     cells/<cell_id>/{cells,requests,steps,samples}.parquet   written aside, then renamed: there or not there
                     servings/<serving_id>.parquet                      replaced atomically as the serving goes on
                     after/<serving_id>/{widths,replays,grades}.parquet       what was looked at after its cells, if it was
                     servings.parquet requests.parquet ...              made of the above when the run ends, which then goes

A run is unfinished until run.json says `finished_at`. One process at a time holds the folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.clock import utc_now
from harness.durable import ASIDE, replace, replace_text, sync, write
from harness.folders import acquire, new_folder, remove_leftovers, require_folder
from harness.records import CELLS, REQUESTS, SAMPLES, SCHEMA_VERSION, SERVINGS, STEPS, TABLES, Table
from harness.records_after import AFTER, GRADES, REPLAYS, WIDTHS
from harness.run_file import FILE, facts_of, is_finished, runs_in, where_runs_are

CELL_TABLES = (CELLS, REQUESTS, STEPS, SAMPLES)
ALL_TABLES = (*TABLES, *AFTER)
CELLS_SINCE = 2  # the schema in which cells got rows; what is looked at after them came without a schema of its own
PIECES = ("cells", "servings", "after")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one run; those that an old one was measured without (`_may_lack`) are empty for it."""

    servings: pd.DataFrame
    requests: pd.DataFrame
    steps: pd.DataFrame
    samples: pd.DataFrame
    cells: pd.DataFrame = field(default_factory=lambda: CELLS.to_arrow([]).to_pandas())
    widths: pd.DataFrame = field(default_factory=lambda: WIDTHS.to_arrow([]).to_pandas())
    replays: pd.DataFrame = field(default_factory=lambda: REPLAYS.to_arrow([]).to_pandas())
    grades: pd.DataFrame = field(default_factory=lambda: GRADES.to_arrow([]).to_pandas())


class Store:
    """An open run folder, locked against other processes until `close`."""

    def __init__(self, folder: Path, lock: int, resumed: bool) -> None:
        self.folder = folder
        self.run_id = folder.name
        self.resumed = resumed
        self._lock = lock

    def complete_cells(self) -> set[str]:
        return {path.name for path in (self.folder / "cells").iterdir() if not path.name.startswith(ASIDE)}

    def write_cell(self, cell_id: str, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Write all tables of a cell, or none. `rows` by table name. Raises ValueError on a row that does not fit its table."""
        self._write_together(f"cells/{ASIDE}{cell_id}", {t.name: t.to_arrow(rows[t.name]) for t in CELL_TABLES})

    def write_after(self, serving_id: str, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Write all that was looked at after the cells of a serving, or nothing."""
        self._write_together(f"after/{ASIDE}{serving_id}", {t.name: t.to_arrow(rows[t.name]) for t in AFTER})

    def _write_together(self, name: str, tables: Mapping[str, pa.Table]) -> None:
        aside = self.folder / name
        aside.mkdir()
        for table_name, table in tables.items():
            write(table, aside / f"{table_name}.parquet")
        sync(aside)
        aside.rename(aside.with_name(aside.name.removeprefix(ASIDE)))
        sync(aside.parent)

    def write_serving(self, row: Mapping[str, Any]) -> None:
        """Write or replace the row of one serving."""
        replace(SERVINGS.to_arrow([row]), self.folder / "servings" / f"{row['serving_id']}.parquet")

    def finish(self) -> None:
        """Compact the run into one file per table, say that it is finished, and drop the pieces."""
        compact(self.folder)
        replace_text(json.dumps({**facts_of(self.folder), "finished_at": utc_now()}, indent=1) + "\n", self.folder / FILE)
        for pieces in PIECES:
            shutil.rmtree(self.folder / pieces)

    def close(self) -> None:
        """Let the folder go. Safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_store(results: Path, name: str, config: str, config_hash: str, code_hash: str, fresh: bool) -> Store:
    """Continue the newest unfinished run with equal hashes, or start one. Raises RuntimeError when another process holds it."""
    require_folder(results)
    found = None if fresh else find_resumable(results, config_hash, code_hash)
    folder = found or new_folder(results, f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{config_hash[:6]}")
    store = Store(folder, acquire(folder), found is not None)
    if found is None:
        _start(folder, config, config_hash, code_hash)
    elif is_finished(folder):
        store.close()
        raise RuntimeError(f"{folder}: another process has just finished this run; ask again to start a new one")
    remove_leftovers(folder)
    return store


def left_by_other_code(results: Path, config_hash: str, code_hash: str) -> Path | None:
    """The newest unfinished run of this configuration by other sources of the instrument: its cells may not be continued."""
    found = [
        (str(facts.get("started_at")), folder)
        for folder, facts in runs_in(results)
        if facts.get("finished_at") is None and facts.get("config_hash") == config_hash and facts.get("code_hash") != code_hash
    ]
    return max(found)[1] if found else None


def find_resumable(results: Path, config_hash: str, code_hash: str) -> Path | None:
    """The newest unfinished run folder with these hashes, or null."""
    return _newest(results, config_hash, code_hash, finished=False)


def find_finished(results: Path, config_hash: str, code_hash: str) -> Path | None:
    """The newest finished run folder with these hashes, or null."""
    return _newest(results, config_hash, code_hash, finished=True)


def _newest(results: Path, config_hash: str, code_hash: str, finished: bool) -> Path | None:
    wanted = config_hash, code_hash, finished
    found = [
        (str(facts.get("started_at")), folder)
        for folder, facts in runs_in(results)
        if (facts.get("config_hash"), facts.get("code_hash"), facts.get("finished_at") is not None) == wanted
    ]
    return max(found)[1] if found else None


def read_tables(folder: Path) -> Tables:
    """The tables of a finished run, or of what there is of an unfinished one.

    One that ends meanwhile is read again, since its pieces go away. Raises FileNotFoundError on another folder, ValueError
    where its run.json cannot be read.
    """
    if not (folder / FILE).exists():
        raise FileNotFoundError(f"{folder}: no run here; {where_runs_are(folder)}")
    if not is_finished(folder):
        try:
            found = _read_all(folder)
        except FileNotFoundError:
            if not is_finished(folder):
                raise
        else:
            if not is_finished(folder):
                return found
    return _read_all(folder)


def _read_all(folder: Path) -> Tables:
    return Tables(**{table.name: _read(folder, table).to_pandas() for table in ALL_TABLES})


def compact(folder: Path) -> None:
    """Write the files of a run from its pieces, also while it is unfinished. Each is replaced atomically."""
    for table in ALL_TABLES:
        replace(_read(folder, table), folder / f"{table.name}.parquet")


def code_hash() -> str:
    """sha256 over the paths and contents of *.py of harness/ and drafters/, without importing them."""
    digest = hashlib.sha256()
    for package in ("harness", "drafters"):
        spec = importlib.util.find_spec(package)
        for root in sorted((spec.submodule_search_locations or ()) if spec else ()):
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode())
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _read(folder: Path, table: Table) -> pa.Table:
    file = folder / f"{table.name}.parquet"
    if is_finished(folder) or not (folder / "cells").is_dir():
        return table.to_arrow([]) if not file.exists() and _may_lack(folder, table) else _parquet(file)
    pieces_of = "after" if table in AFTER else "cells"
    pattern = "servings/*.parquet" if table is SERVINGS else f"{pieces_of}/*/{table.name}.parquet"
    paths = [path for path in sorted(folder.glob(pattern)) if not path.relative_to(folder).parts[1].startswith(ASIDE)]
    pieces = [_parquet(path) for path in paths]
    return pa.concat_tables(pieces) if pieces else table.to_arrow([])


def _may_lack(folder: Path, table: Table) -> bool:
    """Whether a run without pieces may be without this table: it was measured before there were such rows, or has no row yet.

    A table of cells that is gone takes with it what forbids comparisons, so only a run that says it is older may lack it.
    """
    facts = facts_of(folder)
    if table in AFTER:
        return True
    schema = facts.get("schema")
    if table is CELLS and isinstance(schema, int) and schema < CELLS_SINCE:
        return True
    return facts.get("finished_at") is None and not any((folder / f"{t.name}.parquet").exists() for t in TABLES)


def _parquet(file: Path) -> pa.Table:
    """Raises FileNotFoundError, and ValueError for what is no Parquet, with the file and what to do."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; restore it, or move the run away and measure again")
    try:
        return pq.ParquetFile(file).read()
    except pa.ArrowException as error:
        raise ValueError(f"{file}: cannot be read as Parquet ({error}); restore it, or move the run away") from None


def _start(folder: Path, config: str, config_hash: str, code_hash: str) -> None:
    for pieces in PIECES:
        (folder / pieces).mkdir()
    replace_text(config, folder / "config.yaml")
    facts = {
        "run_id": folder.name,
        "schema": SCHEMA_VERSION,
        "config_hash": config_hash,
        "code_hash": code_hash,
        "started_at": utc_now(),
        "argv": sys.argv,
        "finished_at": None,
    }
    replace_text(json.dumps(facts, indent=1) + "\n", folder / FILE)
