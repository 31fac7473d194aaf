"""The account of one arm of a results folder: what its servings read back, and what it was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from harness.audit.account import Account, Fact, Scalar
from harness.audit.meaning import DTYPES
from harness.audit.rig import from_run
from harness.compose import ConfigError, compose_run
from harness.control.factors import is_draft
from harness.metrics import as_map
from harness.store import Tables, read_tables

# Facts of a host that say which machine it is; the others move while it runs.
MACHINE = ("cpu_model", "physical_cores", "memory_bytes", "gpu", "gpu_names", "gpu_name", "driver", "kernel", "power_limit_w")


def arms_of(folder: Path) -> list[str]:
    """The arms that a run folder has servings of. Raises FileNotFoundError on another folder."""
    return sorted({str(arm) for arm in read_tables(folder).servings["arm"]})


def from_results(folder: Path, arm: str) -> Account:
    """The account of one arm of a run. Raises ValueError when no serving of it is there."""
    tables = read_tables(folder)
    rows = _rows(tables.servings, arm)
    if not rows:
        raise ValueError(f"{folder}: no serving of arm '{arm}'; it has {', '.join(arms_of(folder))}")
    facts = {**_asked_for(folder, arm), **{name: Fact(value, "found", where) for name, value, where in _found(rows)}}
    facts |= {name: Fact(value, "found", "requests") for name, value in _asked(tables, arm)}
    notes = [f"{arm}: {reason}" for cell in _rows(tables.cells, arm) for reason in cell["invalid"]]
    return Account(f"{folder.name}:{arm}", "results", facts, str(folder.resolve()), notes=tuple(dict.fromkeys(notes)))


def _rows(table: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table[table["arm"] == arm].to_dict("records")]


def _asked_for(folder: Path, arm: str) -> dict[str, Fact]:
    """What the run's own rig holds; what its servings read back goes above it. Null for a rig of another version."""
    try:
        run = compose_run(str(folder / "config.yaml")).run
    except ConfigError:
        return {}
    return dict(from_run(run, arm, folder.name).facts) if arm in run.arms else {}


def _found(rows: list[dict[str, Any]]) -> Iterator[tuple[str, Scalar, str]]:
    resolved = {name: value for name, value in _all(rows, "resolved").items() if value != "null"}
    method = str(rows[0]["method"])
    for name, text in resolved.items():
        value = _canonical(name, text)
        if name == "draft_options" and isinstance(value, str):
            yield from ((f"draft_options.{key}", option, "resolved") for key, option in json.loads(value).items())
        elif method != "plain" or not is_draft(name):
            yield "graph_count" if name == "cuda_graphs" and isinstance(value, int) else name, value, "resolved"
    yield "method", method, "servings.method"
    for name, value in _all(rows, "versions").items():
        yield f"versions.{name}", value, "servings.versions"
    for name, value in _all(rows, "env").items():
        yield f"env.{name}", value, "servings.env"
    host = _all(rows, "host")
    for name in MACHINE:
        if name in host:
            yield f"host.{name}", _scalar(host[name]), "servings.host"
    yield "code_hash", " or ".join(sorted({str(row["code_hash"])[:12] for row in rows})), "servings.code_hash"


def _all(rows: list[dict[str, Any]], column: str) -> dict[str, str]:
    """Every key of a map column with the one value it took, or with all of them, joined."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for name, value in as_map(row[column]).items():
            found.setdefault(name, set()).add(str(value))
    return {name: " or ".join(sorted(values)) for name, values in found.items()}


def _canonical(name: str, text: str) -> Scalar:
    """A JSON scalar; precisions under one spelling."""
    value = _scalar(text)
    return DTYPES.get(value.lower(), value) if name.endswith("dtype") and isinstance(value, str) else value


def _scalar(text: str) -> Scalar:
    """A JSON scalar as such; what several servings told differently stays text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text


def _asked(tables: Tables, arm: str) -> Iterator[tuple[str, Scalar]]:
    """What the measured requests were: prompts by hash, limits, stop rule, concurrency."""
    rows = [row for row in _rows(tables.requests, arm) if row["phase"] == "measured"]
    if not rows:
        return
    for column in ("prompt_hash", "max_tokens"):
        parts = sorted({f"{r['prompt_set']}/{r['prompt_id']}={r[column]}" for r in rows})
        yield column, hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    yield "ignore_eos", " or ".join(sorted({str(bool(r["ignore_eos"])).lower() for r in rows}))
    yield "concurrency", json.dumps(sorted({int(r["concurrency"]) for r in rows}))
