"""Reading and filtering the store of published claims."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from harness.claims.build import FOLDER, STORE
from harness.claims.flags import FLAGS
from harness.config_errors import near

MOST = 8  # words of a column that are shown to who asks for one that it does not hold
NUMBERS = ("tok_s", "speedup", "acceptance_length", "acceptance_rate")
_COMPARE: dict[str, Callable[[Any, float], pd.Series[bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"(?P<key>\w+)(?P<how>>=|<=|!=|=|~|>|<)(?P<value>.*)")


def read_claims(folder: Path = FOLDER) -> pd.DataFrame:
    """All claims. `tok_s`, `speedup`, ... are the middle of low and high; `flags` is a tuple."""
    frame: pd.DataFrame = pq.read_table(folder / STORE).to_pandas()
    for name in NUMBERS:
        frame[name] = (frame[f"{name}_low"] + frame[f"{name}_high"]) / 2
    frame["flags"] = [tuple(flags) for flags in frame["flags"]]
    return frame


def filter_claims(frame: pd.DataFrame, conditions: Iterable[str]) -> pd.DataFrame:
    """Rows that meet every condition, in their order. Raises ValueError that names what it does not know.

    `key=a,b` one of these (case ignored; also the text as printed), `key!=a,b` none of these, `key~text` holds the text,
    `key>=2` and the like for numbers. `flag=` and `flag!=` ask for flags; a value `null` asks for what is not stated.
    """
    for condition in conditions:
        frame = frame[_mask(frame, condition)]
    return frame


def unmet(frame: pd.DataFrame, conditions: Iterable[str]) -> list[str]:
    """Why nothing meets the conditions: those that no row meets by itself, with near matches of their words; else that no row
    meets all of them."""
    alone = [condition for condition in conditions if not _mask(frame, condition).any()]
    return [_nobody(frame, condition) for condition in alone] or ["every condition is met by some row, but no row meets all"]


def _nobody(frame: pd.DataFrame, condition: str) -> str:
    found = _CONDITION.fullmatch(condition)
    if not found or found["how"] not in ("=", "~") or found["key"] not in frame.columns:
        return f"{condition}: no row meets it"
    words = frame[found["key"]].dropna().map(_text)
    told = near(found["value"].strip(), words)
    if told.startswith("known: "):  # hundreds, of some columns
        told = "most rows have " + ", ".join(words.value_counts().index[:MOST])
    return f"{condition}: no row meets it; {told}"


def _mask(frame: pd.DataFrame, condition: str) -> pd.Series[bool]:
    found = _CONDITION.fullmatch(condition)
    if not found:
        raise ValueError(f"'{condition}': not a condition; write key=value, key!=value, key~text or key>=number")
    key, how, value = found["key"], found["how"], found["value"].strip()
    if key in ("flag", "flags"):
        return _flag_mask(frame, how, value)
    if key not in frame.columns:
        raise ValueError(f"{key}: no such column of the claims; {near(key, [*frame.columns, 'flag'])}")
    if how in _COMPARE:
        return _number_mask(frame, key, how, value)
    text = frame[key].map(_text).str.lower()
    beside = frame[f"{key}_printed"].str.lower() if f"{key}_printed" in frame.columns else text
    if how == "~":
        return text.str.contains(value.lower(), regex=False) | beside.str.contains(value.lower(), regex=False)
    wanted = [part.strip().lower() for part in value.split(",")]
    is_number = pd.api.types.is_numeric_dtype(frame[key])
    if beside is text and is_number and (words := [w for w in wanted if not _is_number(w)]):
        raise ValueError(f"{key}={words[0]}: {key} is a number; write {key}=8, {key}>=8 or {key}=null")
    hit = text.isin(wanted) | beside.isin(wanted)
    if is_number:  # 2 and 2.0 are one number, however it is written here or was printed
        hit |= frame[key].isin([float(word) for word in wanted if word not in ("null", "nan") and _is_number(word)])
    return hit if how == "=" else ~hit


def _text(value: Any) -> str:
    """A cell as it is asked for: 8.0 is `8`, a missing one `null`."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "null"
    return True


def _number_mask(frame: pd.DataFrame, key: str, how: str, value: str) -> pd.Series[bool]:
    try:
        limit = float(value)
        numbers = pd.to_numeric(frame[key])
    except (ValueError, TypeError):
        raise ValueError(f"{key}{how}{value}: compares numbers; use {key}=value or {key}~text for words") from None
    return _COMPARE[how](numbers, limit)


def _flag_mask(frame: pd.DataFrame, how: str, value: str) -> pd.Series[bool]:
    if how not in ("=", "!="):
        raise ValueError(f"flag{how}{value}: use flag=NAME or flag!=NAME")
    wanted = {part.strip() for part in value.split(",")}
    if unknown := sorted(wanted - FLAGS.keys()):
        raise ValueError(f"flag {unknown[0]}: unknown; {near(unknown[0], FLAGS)} (samerig claims --flags lists them)")
    hit = frame["flags"].map(lambda flags: bool(wanted & set(flags))).astype(bool)
    return hit if how == "=" else ~hit
