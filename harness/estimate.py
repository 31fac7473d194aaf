"""How long a run will take, from what an earlier run on the same machine, engine and target took. Unknown without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.baselines import plain_of
from harness.config import Run
from harness.pace import Pace, pace_of
from harness.schedule import Serving, plan_servings
from harness.store import read_tables
from harness.workloads import prompt_count

SAME = ("machine", "engine", "target")
UNLIKE = 2.0  # drafters of other methods took up to so many times as long per token at one level of stored runs


@dataclass(frozen=True, slots=True)
class Estimate:
    """Wall time of a run, from `low` to `high` seconds: apart where methods, levels, answers or warm-up are not the earlier
    run's. Rough: not from the same rig, or apart."""

    low: float
    high: float
    run_id: str
    is_rough: bool


def estimate(runs: Sequence[Run], results: Path) -> Estimate | None:
    """Seconds of all of `runs` together by the newest pace of their rig, else by one of other engine settings; else null."""
    for pace, is_other in ((last_pace(runs[0], results), False), (rough_pace(runs[0], results), True)):
        if pace is not None:
            parts = [estimate_seconds(run, pace) for run in runs]
            low, high = sum(part[0] for part in parts), sum(part[1] for part in parts)
            return Estimate(low, high, pace.run_id, is_other or high > 1.15 * low)
    return None


def estimate_seconds(run: Run, pace: Pace) -> tuple[float, float]:
    """Seconds of wall time, the least and the most that the pace allows for."""
    servings = plan_servings(run, code_hash="")
    low, high = (sum(_serving(run, pace, serving, most) for serving in servings) for most in (False, True))
    return low, high


def _serving(run: Run, pace: Pace, serving: Serving, most: bool) -> float:
    protocol, drafts = run.protocol, serving.arm.method != "plain"
    unlike = UNLIKE if most and serving.arm.method not in pace.methods else 1.0
    seconds = pace.boot_seconds
    warmed: set[tuple[int, int | None]] = set()
    for cell in serving.cells:
        prompt, answer = cell.prompt_set.depth or pace.prompt_tokens, _answer(run.max_tokens(cell.prompt_set), pace, most)
        one = prompt * pace.prompt_seconds + answer * rate(pace, drafts, cell.concurrency)[most] * unlike
        seconds += one * prompt_count(protocol, cell.concurrency)
        if protocol.warmup_prompts and (level := (cell.concurrency, cell.prompt_set.depth)) not in warmed:
            warmed.add(level)
            seconds += one * max(protocol.warmup_prompts, cell.concurrency) * _batches(protocol.warmup_batches, pace, most)
    if protocol.width_rounds or protocol.replays_per_set or protocol.check_answers != "none":
        seconds += pace.after_seconds
    if serving.arm_name == plain_of(run) and protocol.width_rounds:
        seconds += sum(run.concurrency) * (pace.width_seconds + protocol.width_rounds * pace.round_seconds)
    return seconds


def _answer(limit: int, pace: Pace, most: bool) -> float:
    """Tokens of an answer: with a limit above the earlier run's, from what answers had there up to the limit."""
    share = pace.answer_tokens / pace.limit_tokens
    if limit <= pace.limit_tokens:
        return limit * share
    return limit if most else pace.answer_tokens


def _batches(cap: int, pace: Pace, most: bool) -> float:
    """Warm-up ends after two batches at least, and at the cap. The earlier run's number, where it was not cut off below it."""
    return min(cap, max(2.0, pace.warmup_batches)) if not most else float(cap)


def rate(pace: Pace, drafts: bool, level: int) -> tuple[float, float]:
    """Least and most seconds per token at a level; of the other kind of arm where the run had none of this one.

    Between levels a batch costs no less in total and no more per token than the next smaller one, so a level that was not
    measured lies between: a larger batch as fast as the smaller (least), or as slow per token (most).
    """
    kinds = {one: seconds for (kind, one), seconds in pace.token_seconds.items() if kind == drafts}
    known = kinds or {one: seconds for (_, one), seconds in pace.token_seconds.items()}
    if level in known:
        return known[level], known[level]
    below, above = max((one for one in known if one < level), default=None), min((o for o in known if o > level), default=None)
    least = max([known[below] * below / level if below else 0.0, known[above] if above else 0.0])
    most = min([known[below] if below else float("inf"), known[above] * above / level if above else float("inf")])
    return min(least, most), max(least, most)


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
