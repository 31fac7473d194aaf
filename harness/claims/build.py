"""`python -m harness.claims.build`: results/published/claims.parquet and its README, from the CSV files beside them.

`--check` writes nothing and fails when they are out of date. The CSV files are the source: facts as people published them, with
what readers noted. Nothing else goes into the store.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.claims.columns import CLAIMS
from harness.claims.flags import FLAGS
from harness.claims.rows import store_rows

FOLDER = Path(__file__).resolve().parents[2] / "results" / "published"
FILES = {"seed": "seed_claims.csv", "claims": "claims.csv"}
STORE = "claims.parquet"
# What two rows share that tell of one measurement; acceptance is left out, for one table may have it and the other not.
_SAME = ("hardware", "engine", "target", "method", "budget", "task", "concurrency", "tok_s_low", "tok_s_high", "speedup_low")


def build(folder: Path = FOLDER) -> pa.Table:
    """The store from the CSV files of a folder. Raises ValueError for a row that does not fit the columns."""
    rows: list[dict[str, Any]] = []
    for kind, name in FILES.items():
        with (folder / name).open(newline="", encoding="utf-8") as file:
            rows += store_rows(kind, csv.DictReader(file))
    return CLAIMS.to_arrow(marked(rows))


def marked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, those of the seed table with a flag whose rig and numbers a row of the large table has too."""
    large = {_measurement(row) for row in rows if not _is_seed(row)}
    return [
        row | {"flags": sorted([*row["flags"], "repeated"])} if _is_seed(row) and _measurement(row) in large else row
        for row in rows
    ]


def _is_seed(row: dict[str, Any]) -> bool:
    return str(row["claim_id"]).startswith("seed:")


def _measurement(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)


def readme(table: pa.Table) -> str:
    """Columns and flags, with how many rows carry each."""
    counts = Counter(flag for flags in table["flags"].to_pylist() for flag in flags)
    columns = [f"| `{c.name}` | {c.type} | {c.unit} | {'yes' if c.nullable else ''} | {c.doc} |" for c in CLAIMS.columns]
    flags = [f"| `{flag}` | {counts[flag]} | {text} |" for flag, text in FLAGS.items()]
    return "\n".join(
        [
            "# Published measurements",
            "",
            f"{table.num_rows} rows that others published, as facts with their sources: `seed_claims.csv` and `claims.csv`.",
            "`python -m harness.claims.build` makes `claims.parquet` and this page of them; a test fails when they are stale.",
            "`samerig claims` filters it, and `rigs/published/` holds the rigs of the seed claims.",
            "",
            CLAIMS.doc,
            "",
            "| column | type | unit | may be null | meaning |",
            "|---|---|---|---|---|",
            *columns,
            "",
            "## Flags",
            "",
            "A flag is a reason to look, not a verdict. Those about arithmetic come from `harness/claims/arithmetic.py`.",
            "",
            "| flag | rows | meaning |",
            "|---|---|---|",
            *flags,
            "",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.claims.build", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="fail when the store or its README is out of date")
    check = parser.parse_args(argv).check
    table = build()
    page = readme(table)
    if check:
        fresh = pq.read_table(FOLDER / STORE).equals(table) and (FOLDER / "README.md").read_text("utf-8") == page
        print(
            "up to date" if fresh else "out of date; run: python -m harness.claims.build",
            file=sys.stdout if fresh else sys.stderr,
        )
        return 0 if fresh else 1
    pq.write_table(table, FOLDER / STORE, compression="zstd")
    (FOLDER / "README.md").write_text(page, "utf-8")
    print(f"{FOLDER / STORE}: {table.num_rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
