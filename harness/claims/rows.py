"""A row of the CSV files as a row of the store: canonical names, numbers, baselines, flags. Nothing printed is lost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from harness.claims import arithmetic
from harness.claims.arithmetic import Printed, printed
from harness.claims.flags import limits, number_flags, text_flags
from harness.claims.numbers import Read, read_budget, read_count, read_gain, read_number, read_temperature

NAMES = Path(__file__).with_name("names.yaml")
MEASURES = ("tok_s", "speedup", "acceptance_length", "acceptance_rate")
_RIG = ("source", "hardware", "num_gpus", "engine", "engine_version", "target_model", "precision", "kv_dtype", "tp", "context")
_CELL = (*_RIG, "temperature", "task", "concurrency")


@cache
def canonical(column: str, text: str) -> str | None:
    """The canonical name of a printed one, by `names.yaml`; null where nothing is stated."""
    for pattern, name in _names()[column]:
        if found := re.search(pattern, text, re.I):
            return " ".join(found.expand(_safe(name, found)).split()) or None
    return text.strip().lower() or None


def _safe(name: str, found: re.Match[str]) -> str:
    """The template with groups that did not take part left empty."""
    return re.sub(r"\\(\d)", lambda m: found[int(m[1])] or "", name)


@cache
def _names() -> dict[str, list[list[str]]]:
    names: dict[str, list[list[str]]] = yaml.safe_load(NAMES.read_text("utf-8"))
    return names


def store_rows(kind: str, rows: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Rows of one CSV file (`claims` or `seed`) with ids `kind:N` from 1, each with its baseline where one is at hand."""
    printed_rows = list(rows)
    found = [_row(f"{kind}:{i}", row) for i, row in enumerate(printed_rows, 1)]
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for source, row in zip(printed_rows, found, strict=True):
        cells[tuple(source[key] for key in _CELL)].append(row)
    for cell in cells.values():
        for row in cell:
            _add_baseline(row, cell)
    _flag_averages(printed_rows, found)
    return found


def _row(claim_id: str, row: Mapping[str, str]) -> dict[str, Any]:
    numbers = {name: read_number(row[name]) for name in MEASURES}
    gain = read_gain(row["speedup"])
    method = canonical("method", row["draft_method"])
    budget = 0 if method == "plain" else read_budget(row["draft_budget"])
    target = row["target_model"].strip()
    found: dict[str, Any] = {
        "claim_id": claim_id,
        "source": row["source"],
        "date": row["date"] or None,
        "hardware": canonical("hardware", row["hardware"]),
        "gpus": read_count(row["num_gpus"]),
        "engine": canonical("engine", row["engine"]),
        "engine_version": row["engine_version"] or None,
        "target": None if re.match(r"\(|not |first ", target) else _models(target),
        "precision": canonical("precision", row["precision"]),
        "kv_dtype": None if "not stated" in row["kv_dtype"] else row["kv_dtype"].partition(" (")[0] or None,
        "context": row["context"] or None,
        "method": method,
        "drafter": row["draft_model"] or None,
        "budget": budget,
        "temperature": read_temperature(row["temperature"]),
        "task": canonical("task", row["task"]),
        "concurrency": read_count(row["concurrency"]),
        "over": _over(numbers["speedup"]),
        "gain": gain[0] if gain else None,
        "baseline_tok_s": gain[1] if gain else _told_baseline(row["notes"]),
        "baseline_from": "the speedup's cell" if gain else "notes" if _told_baseline(row["notes"]) else None,
        "notes": row["notes"] or None,
        "held_fixed": row.get("held_fixed") or None,
        "moved": row.get("moved") or None,
    }
    for name, number in numbers.items():
        found |= {f"{name}_low": number and number.low, f"{name}_high": number and number.high}
    for name in ("hardware", "engine", "target_model", "precision", "draft_method", "draft_budget", "task", *MEASURES):
        found[f"{name}_printed"] = row[name]
    words = set(text_flags(row))
    found["flags"] = sorted({*words, *number_flags(numbers, {m: row[m] for m in MEASURES}), *_stated(found, row, words)})
    return found


def _models(target: str) -> str | None:
    """A model's name without its owner; several, printed as `A / B`, stay one text that `target~A` and `target~B` find."""
    return " / ".join(model.rpartition("/")[2].strip() for model in re.split(r"\s/\s", target)) or None


def _flag_averages(printed_rows: list[Mapping[str, str]], found: list[dict[str, Any]]) -> None:
    """A `mean of N` of acceptance lengths against the N tasks of the same arm, where they are all there with one value each."""
    arms: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    keys = [
        tuple(row[k] for k in (*_RIG, "temperature", "draft_method", "draft_model", "draft_budget")) for row in printed_rows
    ]
    for key, row in zip(keys, found, strict=True):
        if re.fullmatch(r"\d+(\.\d+)?", row["acceptance_length_printed"]):
            arms[key][row["task_printed"]].add(row["acceptance_length_printed"])
    for key, row in zip(keys, found, strict=True):
        if not (count := re.match(r"mean of (\d+)", row["task_printed"])) or row["acceptance_length_low"] is None:
            continue
        parts = [values for task, values in arms[key].items() if task != row["task_printed"]]
        if len(parts) == int(count[1]) and all(len(values) == 1 for values in parts):
            each = [printed(value) for values in parts for value in values]
            if arithmetic.average_outside_parts(printed(row["acceptance_length_printed"]), each, equal_weights=True):
                row["flags"] = sorted({*row["flags"], "average_outside_parts"})


def _over(speedup: Read | None) -> str | None:
    return None if speedup is None or speedup.over is None else canonical("method", speedup.over)


def _told_baseline(notes: str) -> float | None:
    found = re.search(r"\b(?:baseline|AR floor|AR) (\d+(?:\.\d+)?)(?![\d.]*-)(?: tok/s)?\b", notes)
    return float(found[1]) if found else None


def _stated(found: Mapping[str, Any], row: Mapping[str, str], words: set[str]) -> Iterable[str]:
    """Flags of what is outside its limits or not stated. A length without the bonus has other limits."""
    length, rate = (_printed(row[name], found[f"{name}_low"]) for name in ("acceptance_length", "acceptance_rate"))
    length = None if "no_bonus" in words else length
    yield from limits(length, rate, found["budget"])
    if found["method"] != "plain" and not row["draft_budget"]:
        yield "budget_not_stated"
    yield from (f"{name}_not_stated" for name in ("hardware", "engine") if found[name] is None)


def _printed(text: str, low: float | None) -> Printed | None:
    """The rounding interval of a plain number; a cell with more in it is not held to its digits."""
    return printed(text) if low is not None and re.fullmatch(r"\d+(\.\d+)?", text.strip()) else None


def _add_baseline(row: dict[str, Any], cell: list[dict[str, Any]]) -> None:
    """The rate that the row's speedup is over: a single other row of the same cell, unless its notes told one."""
    over = row["over"] or "plain"
    others = [r for r in cell if r["method"] == over and r is not row and r["tok_s_low"] is not None]
    if row["baseline_tok_s"] is None and len(others) == 1:
        row |= {"baseline_tok_s": others[0]["tok_s_low"], "baseline_from": others[0]["claim_id"]}
    row["flags"] = sorted({*row["flags"], *_ratio_flags(row, others[0]["tok_s_printed"] if len(others) == 1 else None)})


def _ratio_flags(row: Mapping[str, Any], baseline: str | None) -> Iterable[str]:
    """What the row's own rate, its baseline and its speedup say of each other."""
    tok_s = _printed(row["tok_s_printed"], row["tok_s_low"])
    text = baseline or (str(row["baseline_tok_s"]) if row["baseline_tok_s"] else None)
    base = printed(text) if text and re.fullmatch(r"\d+(\.\d+)?", text) else None
    speedup = _printed(re.sub(r"\s+vs .*|\s+over .*", "", row["speedup_printed"]), row["speedup_low"])
    if tok_s is None or base is None or base.low <= 0:
        return
    if speedup is not None and arithmetic.speedup_mismatch(speedup, tok_s, base):
        yield "speedup_mismatch"
    rate = _printed(row["acceptance_rate_printed"], row["acceptance_rate_low"])
    ratio = Printed(tok_s.low / base.high, tok_s.high / base.low)
    if row["gain"] is not None and rate is not None and arithmetic.rate_as_gain(printed(row["gain"]), rate, ratio):
        yield "rate_as_gain"
