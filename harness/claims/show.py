"""`samerig claims`: the rows that were asked for, one a line, with their flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.claims.flags import FLAGS
from harness.claims.store import NUMBERS, filter_claims, read_claims, unmet
from harness.folders import require_place

LEGEND = (
    "K drafts per step, the anchor not counted · c concurrency · speedup over plain, else over what stands beside it ·"
    " length tokens per step, bonus included · rate share of drafted tokens · -: not stated or not readable"
)
# Every row has its own; these say that something is not stated, which the row shows by a dash.
_SEEN = ("hardware_not_stated", "engine_not_stated", "budget_not_stated", "range")


def print_claims(conditions: Sequence[str], limit: int, console: Console) -> None:
    """The table of the rows that meet all conditions, at most `limit` of them (0: all), then how many there are.

    Where there is none, why.
    """
    claims = read_claims()
    found = filter_claims(claims, conditions)
    if found.empty:
        console.print("no claim meets this")
        for line in unmet(claims, conditions):
            console.print(f"  {escape(line)}", soft_wrap=True)
        return
    shown = found if limit == 0 else found.head(limit)
    console.print(_table(shown))
    more = f"; the first {len(shown)} are shown, --limit 0 shows all" if len(shown) < len(found) else ""
    console.print(f"{len(found)} claims of {found['source'].nunique()} sources{more}")
    for line in _flag_lines(found):
        console.print(line, soft_wrap=True)
    console.print(f"[dim]{escape(LEGEND)}[/]")


def write_claims(conditions: Sequence[str], path: Path) -> int:
    """The rows that meet all conditions as CSV, flags joined by spaces; how many there are.

    Makes the folder of the file. Raises ValueError where it cannot be written.
    """
    require_place("--csv", path)
    found = filter_claims(read_claims(), conditions)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.assign(flags=found["flags"].map(" ".join)).drop(columns=list(NUMBERS)).to_csv(path, index=False)
    return len(found)


def print_flags(console: Console) -> None:
    """Every flag, how many rows carry it, and its rule in words."""
    counts = Counter(flag for flags in read_claims()["flags"] for flag in flags)
    for flag, text in FLAGS.items():
        console.print(f"{flag:<22} {counts[flag]:>4}  {text}", soft_wrap=True, markup=False)


def _flag_lines(found: pd.DataFrame) -> Iterator[str]:
    counts = Counter(flag for flags in found["flags"] for flag in flags if flag not in _SEEN)
    for flag, count in counts.most_common():
        yield f"  {flag} {count}: {escape(FLAGS[flag])}"


def _table(rows: pd.DataFrame) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in ("claim", "target", "method @K", "machine", "engine", "task"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=22)
    for name in ("c", "tok/s", "speedup", "length", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        table.add_row(*(escape(text) for text in _cells({str(k): v for k, v in row.items()})))
    return table


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield row["claim_id"]
    yield _words(row["target"])
    budget = "" if row["method"] == "plain" else f" @{_whole(row['budget'])}"
    yield f"{_words(row['method'])}{budget}"
    yield (f"{_whole(row['gpus'])}x " if row["gpus"] == row["gpus"] and row["gpus"] > 1 else "") + _words(row["hardware"])
    yield _words(row["engine"])
    yield _words(row["task"])
    yield _whole(row["concurrency"])
    yield _number(row, "tok_s")
    yield _number(row, "speedup") + (f" /{row['over']}" if isinstance(row["over"], str) else "")
    yield _number(row, "acceptance_length")
    yield _number(row, "acceptance_rate")


def _words(value: Any) -> str:
    return value if isinstance(value, str) and value else "-"


def _whole(value: Any) -> str:
    return "-" if value is None or pd.isna(value) else f"{int(value)}"


def _number(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low is None or pd.isna(low):
        return "-"
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"
