"""Which run this is, where it ran, and how to repeat it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from harness.metrics import Missing, Row, as_map, is_null, peak_memory
from harness.report.run import FinishedRun

SERVING_HEADINGS = (
    "serving",
    "block",
    "order",
    "launched (UTC)",
    "start-up s",
    "peak GiB",
    "client lag p99 ms",
    "energy J",
    "told",
)
SHOWN_HASH = 16


def identity(run: FinishedRun) -> list[tuple[str, str]]:
    """Hashes, times and the command of the run."""
    facts = run.facts
    times = " to ".join(str(facts[key]) for key in ("started_at", "finished_at") if facts.get(key))
    found = [("measured", times), ("command", " ".join(str(word) for word in facts.get("argv", [])))]
    for name, key in (("configuration", "config_hash"), ("code", "code_hash")):
        found.append((name, ", ".join(sorted({str(row[key])[:SHOWN_HASH] for row in run.servings})) or "-"))
    return [(name, value) for name, value in found if value]


def replay(folder: Path) -> str:
    """Commands that repeat the run from its folder as it was named, and the table from its rows."""
    config = shlex.quote(str(folder / "config.yaml"))
    return (
        f"samerig bench {config}   # the same rig, arms, workload and protocol again\n"
        f"samerig report {shlex.quote(str(folder))}   # the table, from the raw rows beside this file"
    )


def environment(run: FinishedRun) -> list[tuple[str, str]]:
    """Versions and host facts, each once; a fact that differed between servings shows all its values."""
    values: dict[str, dict[str, None]] = {}
    for row in run.servings:
        for column in ("versions", "host"):
            for key, text in as_map(row[column]).items():
                values.setdefault(str(key), {})[_scalar(text)] = None
    return [(key, _listed(list(found))) for key, found in values.items()]


def _scalar(text: Any) -> str:
    """A JSON scalar's text, or the text itself."""
    try:
        return str(json.loads(text))
    except (TypeError, ValueError):
        return str(text)


def _listed(values: list[str]) -> str:
    return ", ".join(values) if len(values) <= 3 else f"{', '.join(values[:3])} and {len(values) - 3} more values"


def servings(run: FinishedRun) -> list[list[str]]:
    """A row for each launch, in the order of time."""
    return [_serving(run, row) for row in sorted(run.servings, key=lambda row: str(row["launched_at"]))]


def _serving(run: FinishedRun, row: Row) -> list[str]:
    peak = peak_memory(row, run.samples)
    told = [str(text) for column in ("flags", "throttle_reasons") for text in row[column]] + _invalid(run, row)
    return [
        str(row["serving_id"]),
        str(row["block"]),
        str(row["order_in_block"]),
        str(row["launched_at"]).removesuffix("+00:00"),
        f"{row['startup_s']:.1f}",
        "-" if isinstance(peak, Missing) else f"{peak / 2**30:.2f}",
        "-" if is_null(row["client_lag_p99_ms"]) else f"{row['client_lag_p99_ms']:.2f}",
        "-" if is_null(row["energy_j"]) else f"{row['energy_j']:.0f}",
        "; ".join(told) or "-",
    ]


def _invalid(run: FinishedRun, serving: Row) -> list[str]:
    """Why the serving, in runs that say it there, or one of its cells may not be compared; each reason once."""
    cells = [cell for cell in run.cell_rows if cell["serving_id"] == serving["serving_id"]]
    reasons = [str(text) for row in (serving, *cells) for text in row.get("invalid") or ()]
    return [f"invalid: {reason}" for reason in dict.fromkeys(reasons)]
