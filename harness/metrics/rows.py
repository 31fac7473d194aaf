"""Rows of the four tables as plain mappings, whatever Parquet and pandas made of nulls, lists and maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Row = Mapping[str, Any]
Rows = Sequence[Row]
EMPTY_LIMIT = 0.005  # share of failed or empty requests above which an arm is not comparable


def rows_of(table: pd.DataFrame, **equal: object) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries, those alone whose columns equal the given values."""
    for column, value in equal.items():
        table = table[table[column] == value]
    columns = {str(name): [_plain(value) for value in table[name]] for name in table.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    """Arrays as lists, once: every metric walks them."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def is_null(value: Any) -> bool:
    """True for None, NaN and pandas.NA: the ways in which a table says "not reported"."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def integer(value: Any) -> int | None:
    """An integer column's value: pandas turns nullable integers into floats."""
    return None if is_null(value) else int(value)


def integers(value: Any) -> list[int]:
    """A list column's value, not to be changed; null is an empty list."""
    if isinstance(value, list):
        return value
    return [] if is_null(value) else [int(v) for v in value]


def as_map(value: Any) -> dict[str, Any]:
    """A map column's value: Parquet gives a list of pairs, a fresh row a dictionary."""
    if is_null(value):
        return {}
    return dict(value.items() if isinstance(value, Mapping) else value)


def outcome(row: Row) -> str:
    """`failed` when there is an error, `empty` when it ended without one token, else `ok`."""
    if not is_null(row["error"]):
        return "failed"
    return "ok" if int(row["output_tokens"]) > 0 else "empty"


def succeeded(rows: Iterable[Row]) -> list[Row]:
    """The measured requests that count in time and acceptance metrics: neither warm-up, failed nor empty."""
    return [row for row in rows if row["phase"] == "measured" and outcome(row) == "ok"]


def prompt_key(row: Row) -> tuple[str, str]:
    """The pairing unit between arms: prompt set and prompt."""
    return str(row["prompt_set"]), str(row["prompt_id"])


def common_prompts(arms: Mapping[str, Rows]) -> set[tuple[int, str, str]]:
    """(block, set, prompt) that failed in no arm: every arm is judged on these alone, with the failures shown beside it."""
    rows = [row for arm in arms.values() for row in arm if row["phase"] == "measured"]
    keys = {outcome(row) == "ok": set[tuple[int, str, str]]() for row in rows}
    for row in rows:
        keys[outcome(row) == "ok"].add((int(row["block"]), *prompt_key(row)))
    return keys.get(True, set()) - keys.get(False, set())
