"""How long a run will take, from what earlier runs on the same machine, engine and target took. Unknown without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from harness.config import Run
from harness.schedule import plan_servings
from harness.store import Tables, read_tables
from harness.workloads import prompt_count

SAME = ("machine", "engine", "target")


@dataclass(frozen=True, slots=True)
class Pace:
    """What an earlier run took: seconds per token asked for, by concurrency, and seconds per serving outside its cells."""

    run_id: str
    seconds_per_token: Mapping[int, float]
    serving_seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Wall time of a run. Rough: from a run with other engine settings, or without some of the levels."""

    seconds: float
    run_id: str
    is_rough: bool


def estimate(runs: Sequence[Run], results: Path) -> Estimate | None:
    """Seconds of all of `runs` together by the newest pace of their rig, else by a rough one. Null where neither can tell."""
    exact, rough = last_pace(runs[0], results), rough_pace(runs[0], results)
    levels = [level for run in runs for level in run.concurrency]
    for pace, is_rough in (
        (exact, False),
        (exact and reaching(exact, levels), True),
        (rough and reaching(rough, levels), True),
    ):
        parts = [estimate_seconds(run, pace) if pace else None for run in runs]
        if pace and None not in parts:
            return Estimate(sum(part or 0.0 for part in parts), pace.run_id, is_rough)
    return None


def reaching(pace: Pace, levels: Sequence[int]) -> Pace:
    """The pace with every level that it lacks at the rate of the nearest lower one: a batch takes no longer per token."""
    known = pace.seconds_per_token
    lower = {level: max((one for one in known if one <= level), default=None) for level in levels}
    return replace(pace, seconds_per_token={**{level: known[one] for level, one in lower.items() if one}, **known})


def estimate_seconds(run: Run, pace: Pace) -> float | None:
    """Seconds of wall time, or null when the pace lacks one of the concurrency levels."""
    if set(run.concurrency) - set(pace.seconds_per_token):
        return None
    servings = plan_servings(run, code_hash="")
    cells = [cell for serving in servings for cell in serving.cells]
    asked = [(c.concurrency, prompt_count(run.protocol, c.concurrency) * run.max_tokens(c.prompt_set)) for c in cells]
    return len(servings) * pace.serving_seconds + sum(pace.seconds_per_token[level] * tokens for level, tokens in asked)


def last_pace(run: Run, results: Path) -> Pace | None:
    """The pace of the newest finished run with the same machine, engine and target, or null."""
    wanted = run.model_dump(mode="json", include=set(SAME))
    return _newest_pace(results, lambda config: all(config.get(part) == wanted[part] for part in SAME))


def rough_pace(run: Run, results: Path) -> Pace | None:
    """The same for another setting of the engine: chunks, caps and caches may differ, the adapter and what it serves do not."""
    wanted = run.model_dump(mode="json", include=set(SAME))
    return _newest_pace(
        results,
        lambda config: (
            all(config.get(part) == wanted[part] for part in ("machine", "target"))
            and config.get("engine", {}).get("adapter") == run.engine.adapter
        ),
    )


def _newest_pace(results: Path, is_wanted: Callable[[Mapping[str, Any]], bool]) -> Pace | None:
    for folder in _newest_first(results):
        config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
        if is_wanted(config) and (pace := pace_of(folder.name, read_tables(folder))):
            return pace
    return None


def _newest_first(results: Path) -> Iterator[Path]:
    finished = [path.parent for path in results.glob("*/run.json") if (path.parent / "requests.parquet").is_file()]
    yield from sorted(finished, key=lambda folder: folder.stat().st_mtime, reverse=True)


def pace_of(run_id: str, tables: Tables) -> Pace | None:
    """The pace of one run, or null when it has no measured request."""
    measured = tables.requests[(tables.requests["phase"] == "measured") & tables.requests["error"].isna()]
    if measured.empty:
        return None
    cells = measured.groupby("cell_id").agg(
        concurrency=("concurrency", "first"), sent=("sent_ns", "min"), ended=("ended_ns", "max"), asked=("max_tokens", "sum")
    )
    cells["seconds"] = (cells["ended"] - cells["sent"]) / 1e9
    levels = cells.groupby("concurrency")[["seconds", "asked"]].sum()
    by_level = {int(level): float(s / a) for level, s, a in zip(levels.index, levels["seconds"], levels["asked"], strict=True)}
    return Pace(run_id, by_level, _serving_seconds(tables.servings, measured))


def _serving_seconds(servings: pd.DataFrame, measured: pd.DataFrame) -> float:
    """Mean time before the first measured request (boot, load, warm-up) and behind the last (reading again, answers)."""
    first: dict[Any, Any] = measured.groupby("serving_id")["sent_ns"].min().to_dict()
    last: dict[Any, Any] = measured.groupby("serving_id")["ended_ns"].max().to_dict()
    spent = [
        first[serving] - launched + (0 if pd.isna(ended) else ended - last[serving])
        for serving, launched, ended in zip(servings["serving_id"], servings["launched_ns"], servings["ended_ns"], strict=True)
        if serving in first
    ]
    return sum(spent) / len(spent) / 1e9 if spent else 0.0
