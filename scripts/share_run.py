"""Copy a finished run without what is private: paths of this machine are cut, logs and the page stay behind.

python scripts/share_run.py results/<run> results/sample/<run>

The checkout becomes `.` and the home folder `~` wherever they stand in a text column; every other value is as measured.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]


def share(run: Path, to: Path) -> None:
    """Raises FileNotFoundError when `run` holds no tables, FileExistsError when `to` exists."""
    tables = sorted(run.glob("*.parquet"))
    if not tables:
        raise FileNotFoundError(f"{run}: no .parquet files; name the folder of a finished run")
    to.mkdir(parents=True)
    for path in tables:
        table = pq.read_table(path)
        columns = [cut(column) for column in table.columns]
        pq.write_table(pa.table(columns, schema=table.schema), to / path.name, compression="zstd", compression_level=19)
    for name in ("config.yaml", "run.json"):
        shutil.copy(run / name, to / name)


def cut(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts, or of lists of texts, with the private prefixes replaced; any other column as it is."""
    if pa.types.is_string(column.type):
        for prefix, short in ((str(ROOT), "."), (str(Path.home()), "~")):
            column = pc.replace_substring(column, prefix, short)
        return column
    if pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
        rows = column.combine_chunks()
        inner = cut(pa.chunked_array([rows.values])).combine_chunks()
        return pa.chunked_array([pa.ListArray.from_arrays(rows.offsets, inner, mask=rows.is_null()).cast(column.type)])
    return column


if __name__ == "__main__":
    share(Path(sys.argv[1]), Path(sys.argv[2]))
