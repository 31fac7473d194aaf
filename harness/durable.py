"""Files that are whole or not there, whatever happens meanwhile: written aside, synced, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ASIDE = ".tmp-"


def write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)
    sync(path)


def replace(table: pa.Table, path: Path) -> None:
    aside = path.with_name(ASIDE + path.name)
    write(table, aside)
    os.replace(aside, path)
    sync(path.parent)


def replace_text(text: str, path: Path) -> None:
    aside = path.with_name(ASIDE + path.name)
    aside.write_text(text, "utf-8")
    sync(aside)
    os.replace(aside, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """To disk: a rename must not outlive the bytes it names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
