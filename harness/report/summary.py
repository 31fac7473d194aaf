"""Every number of a run, tidy: one line per (content class, concurrency, arm, metric). The table prints nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from harness import metrics as m
from harness.control import Control
from harness.metrics import Maybe, Missing, Percentiles, Row, Rows
from harness.report.acceptance import acceptance_numbers
from harness.report.baselines import best_numbers
from harness.report.reasons import reason_numbers
from harness.report.run import FinishedRun, read_run
from harness.speedup import bootstrapped_speedup, claims, decode_speedup, floor_of, latency_speedup, output_speedup
from harness.stats import Speedup

ALL = "all"
Speedups = Mapping[str, Mapping[str, Speedup | Missing]]


@dataclass(frozen=True, slots=True)
class Number:
    """One number with what it takes to read it. `value` null has its reason in `note`; `low` and `high` are a 95 % interval.

    `budget` is K where the metric depends on it; `n` counts what `of` names.
    """

    content_class: str
    concurrency: int
    arm: str
    metric: str
    value: float | None
    unit: str = ""
    n: int | None = None
    of: str = ""
    low: float | None = None
    high: float | None = None
    budget: int | None = None
    note: str = ""

    @property
    def is_confounded(self) -> bool:
        """A ratio of two arms between which something beside the drafter differed: it is neither shown nor counted."""
        return self.note.startswith("CONFOUNDED")


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table: an arm on some content classes at one concurrency, every arm's rows beside it.

    `arms` holds all measured rows; `rows` this arm's on prompts that failed in no arm; `speedups` those of every arm.
    """

    run: FinishedRun
    label: str
    concurrency: int
    arm: str
    arms: dict[str, list[Row]]
    rows: list[Row]
    control: Control | None
    speedups: Speedups

    @property
    def budget(self) -> int | None:
        return self.run.budget(self.arm)

    def number(self, metric: str, value: Maybe | int | None, unit: str, n: int | None, of: str) -> Number:
        missing = value.reason if isinstance(value, Missing) else ""
        found = None if isinstance(value, Missing) or value is None else float(value)
        return Number(self.label, self.concurrency, self.arm, metric, found, unit, n, of, note=missing)


def summary(folder: Path) -> pd.DataFrame:
    """All numbers of a run folder, one line each, with the columns of `Number` and the run's id."""
    return frame(read_run(folder))


def frame(run: FinishedRun) -> pd.DataFrame:
    """The numbers of a run that was read; no line, but all columns, when nothing is measured yet."""
    columns = [field.name for field in fields(Number)]
    found = pd.DataFrame([asdict(number) for cell in cells(run) for number in numbers(cell)], columns=columns)
    found.insert(0, "run_id", run.run_id)
    return found


def cells(run: FinishedRun) -> Iterator[Cell]:
    """Every line of the table in its order: by concurrency, content class (then all of them), arm."""
    for concurrency in run.levels():
        classes = run.classes(concurrency)
        groups = [(name, (name,)) for name in classes] + ([(ALL, tuple(classes))] if len(classes) > 1 else [])
        for label, members in groups:
            arms = run.measured(concurrency, members)
            kept, speedups = m.common_prompts(arms), _all_speedups(run, arms, concurrency)
            for arm in run.methods:
                rows = [r for r in arms[arm] if (int(r["block"]), *m.prompt_key(r)) in kept]
                yield Cell(run, label, concurrency, arm, arms, rows, run.control(arm, concurrency, members), speedups)


def numbers(cell: Cell) -> list[Number]:
    """All numbers of one line."""
    parts = (_throughput, _speedups, best_numbers, _times, acceptance_numbers, _memory, _quality, reason_numbers)
    return [number for part in parts for number in part(cell)]


def _throughput(cell: Cell) -> Iterator[Number]:
    parts = list(_by_cell(cell.arms[cell.arm]).values())
    found: tuple[tuple[str, Callable[[Rows], m.Throughput | Missing]], ...] = (
        ("output_tps", lambda rows: m.output_tps(rows, cell.concurrency)),
        ("output_tps_end_to_end", m.output_tps_end_to_end),
    )
    for name, rate in found:
        pooled = m.pool_throughput([rate(rows) for rows in parts])
        value = pooled if isinstance(pooled, Missing) else pooled.tps
        yield cell.number(name, value, "tok/s", len(parts), "cells")
    peaks = [p for p in (m.peak_tps(rows, cell.concurrency) for rows in parts) if not isinstance(p, Missing)]
    yield cell.number("peak_tps", max(peaks) if peaks else Missing("no_requests"), "tok/s", len(peaks), "cells")


def _by_cell(rows: Rows) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["cell_id"]), []).append(row)
    return found


def _all_speedups(run: FinishedRun, arms: dict[str, list[Row]], concurrency: int) -> Speedups:
    """Metric -> arm -> its speedup over plain, for one line group of the table: claims look at all arms together."""
    if (plain := run.plain) is None:
        return {}
    budgets, within = {arm: run.budget(arm) for arm in run.methods}, run.within_sessions(arms)
    others = [arm for arm in run.methods if arm not in (plain, run.plain_best)]
    found: Speedups = {
        "speedup": {arm: output_speedup(within, arm, plain, concurrency) for arm in others},
        "decode_speedup": {arm: decode_speedup(within, arm, plain, budgets) for arm in others},
        "latency_speedup": {arm: latency_speedup(within, arm, plain) for arm in others},
    }
    torn = {arm: Missing("two_sessions") for arm in others if run.is_torn(arms, arm)}
    return {metric: {**by_arm, **torn} for metric, by_arm in found.items()}


def _speedups(cell: Cell) -> Iterator[Number]:
    """A speedup carries its claim and its control verdict in the note; the primary one has a check beside it."""
    run, verdict = cell.run, cell.control.verdict if cell.control else "UNKNOWN"
    for metric, by_arm in cell.speedups.items():
        found = by_arm.get(cell.arm)
        if isinstance(found, Missing):
            yield cell.number(metric, found, "ratio", 0, "blocks")
        elif found is not None:
            claim = claims(by_arm, run.a_a, floor_of(cell.speedups["speedup"], run.a_a))[cell.arm]
            number = cell.number(metric, found.ratio, "ratio", found.blocks, "blocks")
            yield replace(number, low=found.low, high=found.high, note=f"{verdict}: {claim}")
    primary = cell.speedups.get("speedup", {}).get(cell.arm)
    if run.plain is not None and isinstance(primary, Speedup) and primary.log is not None:
        yield _bootstrapped(cell, run.plain, verdict)


def _bootstrapped(cell: Cell, plain: str, verdict: str) -> Number:
    found = bootstrapped_speedup(cell.run.within_sessions(cell.arms), cell.arm, plain, cell.concurrency)
    if isinstance(found, Missing):
        return cell.number("speedup_bootstrap", found, "ratio", 0, "blocks")
    number = cell.number("speedup_bootstrap", found[0], "ratio", None, "blocks")
    return replace(number, low=found[1], high=found[2], note=f"{verdict}: check of the interval, claims nothing")


def _times(cell: Cell) -> Iterator[Number]:
    rows, budget = cell.rows, cell.budget
    found: tuple[tuple[str, str, list[Maybe]], ...] = (
        ("ttft_ms", "ms", [m.ttft_ms(r) for r in rows]),
        ("ttfa_ms", "ms", [m.ttfa_ms(r) for r in rows]),
        ("tpot_ms", "ms", [m.tpot_ms(r, budget) for r in rows]),
        ("per_user_tps", "tok/s", [m.per_user_tps(r, budget) for r in rows]),
        ("request_tps", "tok/s", [m.request_tps(r) for r in rows]),
        ("chunk_gap_ms", "ms", _flat([m.chunk_gaps_ms(r, budget) for r in rows])),
        ("step_ms", "ms", _flat([m.step_ms(r, budget) for r in rows])),
        ("prefill_tps", "tok/s", [m.prefill_tps(r) for r in rows]),
    )
    for name, unit, values in found:
        yield from _percentiles(cell, name, unit, values)
    for depth in sorted({m.depth_bucket(int(r["prompt_tokens"])) for r in rows}):
        at_depth = [m.prefill_tps(r) for r in rows if m.depth_bucket(int(r["prompt_tokens"])) == depth]
        yield from _percentiles(cell, f"prefill_tps_to_{depth}", "tok/s", at_depth)
    tokens = [int(r["prompt_tokens"]) for r in rows]
    yield cell.number("prompt_tokens_p50", float(np.median(tokens)) if tokens else None, "tokens", len(tokens), "requests")


def _flat(lists: list[list[float] | Missing]) -> list[Maybe]:
    """Gaps of all requests; one that is refused refuses them all."""
    if missing := next((x for x in lists if isinstance(x, Missing) and x.reason != "one_chunk"), None):
        return [missing]
    return [gap for gaps in lists if not isinstance(gaps, Missing) for gap in gaps]


def _percentiles(cell: Cell, name: str, unit: str, values: list[Maybe]) -> Iterator[Number]:
    """p50 and p95; a coalesced stream in one request refuses the metric for the line."""
    refused = next((v for v in values if v == Missing("coalesced")), None)
    found = m.percentiles([refused] if refused else values)
    for tail in ("p50", "p95"):
        value: Maybe = getattr(found, tail) if isinstance(found, Percentiles) else found
        yield cell.number(f"{name}_{tail}", value, unit, found.n if isinstance(found, Percentiles) else 0, "values")


def _memory(cell: Cell) -> Iterator[Number]:
    servings = [s for s in cell.run.servings if s["arm"] == cell.arm]
    peaks = [m.peak_memory(s, cell.run.samples) for s in servings]
    drafts = [m.drafter_memory(s) for s in servings]
    for name, found in (("peak_memory", peaks), ("drafter_memory", drafts)):
        known = [x for x in found if not isinstance(x, Missing)]
        value = max(known) if known else found[0]
        yield cell.number(name, value, "bytes", len(known), "servings")


def _quality(cell: Cell) -> Iterator[Number]:
    all_rows, rows, plain = cell.arms[cell.arm], cell.rows, cell.run.plain
    yield cell.number("error_rate", m.error_rate(all_rows), "share", len(all_rows), "requests")
    yield cell.number("eos_share", m.eos_share(rows), "share", len(rows), "requests")
    yield cell.number("cap_hit_rate", m.cap_hit_rate(rows), "share", len(rows), "requests")
    yield cell.number("repetition_score", m.mean([m.repetition_score(r) for r in rows]), "share", len(rows), "requests")
    yield cell.number("output_tokens_mean", m.mean([float(r["output_tokens"]) for r in rows]), "tokens", len(rows), "requests")
    if plain is not None and cell.arm != plain:
        parity = m.length_parity(cell.arms[plain], all_rows)
        fixed = "fixed length" if not isinstance(parity, Missing) and parity.fixed else ""
        median: Maybe = parity if isinstance(parity, Missing) else parity.median
        n = 0 if isinstance(parity, Missing) else parity.prompts
        number = cell.number("length_difference", median, "share", n, "prompts")
        yield replace(number, note=number.note or fixed)
