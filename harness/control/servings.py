"""Findings from the servings: what was built, where and when it ran, and what the harness itself calls invalid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf, isinf
from statistics import median

from harness.control.factors import remedy
from harness.control.findings import Finding, Kind, Side, items_of, show, values_of
from harness.metrics import Row, Rows, as_map, is_null

# Facts read at a launch that move by themselves; what they do is measured elsewhere.
VOLATILE = ("load", "available", "free", "used", "temperature", "clock", "mhz", "steal", "uptime", "power_w", "time", "pid")
# Reasons that the ledger finds again in the rows, and tells with both arms' values.
RECOMPUTED = ("concurrency:", "errors:", "preemptions:", "counters:")
PACE_LIMIT = 0.1  # by which the medians of the fixed work may differ; 16 launches on an idle virtual machine lay within 2 %
LAUNCH_ONLY = ("throttle", "compute_processes")


def builds(plain: Side, arm: Side) -> Iterator[Finding]:
    """Hashes of configuration and code, versions, and environment."""
    for column in ("config_hash", "code_hash"):
        a, b = ({str(row[column])[:12] for row in side.servings} for side in (plain, arm))
        if len(a | b) > 1:
            yield Finding(column, "confounder", show(a), show(b), remedy(column))
    for column in ("versions", "env"):
        theirs, ours = values_of(plain, column), values_of(arm, column)
        for name in sorted(theirs.keys() | ours.keys()):
            a, b = theirs.get(name, set()), ours.get(name, set())
            if a != b or len(a) > 1:
                yield Finding(f"{column}: {name}", "confounder", show(a), show(b), remedy(column))


def validity(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """Cells of this level that the harness itself calls invalid; those of other levels accuse nobody here."""
    a, b = (set(_reasons(side, concurrency)) for side in (plain, arm))
    if a | b:
        yield Finding("validity", "confounder", show(a, "-"), show(b, "-"), remedy("validity"))


def _reasons(side: Side, concurrency: int) -> Iterator[str]:
    for cell in side.measured_cells(concurrency):
        reasons = (str(reason) for reason in cell["invalid"])
        yield from (f"block {cell['block']}, {cell['prompt_set']}: {r}" for r in reasons if not r.startswith(RECOMPUTED))


def sessions(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """Cells of a resumed run that the two arms measured in different sessions. No speedup uses them, so this is a note."""
    session_of = {str(row["serving_id"]): str(row["session_id"]) for side in (plain, arm) for row in side.servings}
    a, b = ({_block_and_set(r): session_of[str(r["serving_id"])] for r in s.measured(concurrency)} for s in (plain, arm))
    mixed = sorted({block for block, name in a.keys() & b.keys() if a[block, name] != b[block, name]})
    what = "machines drift between sessions, so no speedup uses these cells; --fresh measures all of them in one"
    yield from (Finding(f"session of block {n}", "note", "one session", "another", what) for n in mixed)


def _block_and_set(row: Row) -> tuple[int, str]:
    return int(row["block"]), str(row["prompt_set"])


def host(plain: Side, arm: Side) -> Iterator[Finding]:
    """Facts of host and devices, throttling, and neighbours. A neighbour on a GPU takes its time and memory: it confounds."""
    theirs, ours = values_of(plain, "host"), values_of(arm, "host")
    for fact in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(fact, set()), ours.get(fact, set())
        if a != b and not _is_volatile(fact):
            factor = "power_limit" if "power_limit" in fact else "host"
            yield Finding(f"host {fact}", "confounder", show(a), show(b), remedy(factor))
    a, b = items_of(plain, "throttle_reasons"), items_of(arm, "throttle_reasons")
    if a != b:
        yield Finding("throttling", "confounder", show(a, "none"), show(b, "none"), remedy("throttling"))
    a, b = items_of(plain, "foreign_processes"), items_of(arm, "foreign_processes")
    if on_gpu := {name for name in a | b if name.startswith("gpu")}:
        yield Finding(
            "foreign_processes", "confounder", show(a & on_gpu, "-"), show(b & on_gpu, "-"), remedy("foreign_processes")
        )
    if others := (a | b) - on_gpu:
        seen = f"{len(a & others)} seen", f"{len(b & others)} seen"
        yield Finding("other processes", "note", *seen, "an idle machine gives tighter intervals")


def cpu_neighbours(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """Cores that others took in the measured windows, weighted by time, where the machine has a limit for them.

    On a CPU a neighbour takes the cores that the target runs on, as one on a GPU does, and rarely from all arms alike. Cells of
    which this was not read, as of a server that was there before, leave it unknown.
    """
    limit = min((_limit(row) for side in (plain, arm) for row in side.servings), default=inf)
    if isinf(limit):
        return
    for column, name in (("busy_cores", "busy cores"), ("stolen_cores", "stolen cores")):
        a, b = (_mean_cores(side.measured_cells(concurrency), column) for side in (plain, arm))
        allowed = f"{remedy('busy_cores')} {limit:g}"
        if max(a, b) > limit:
            yield Finding(name, "confounder", f"{a:.2f}", f"{b:.2f}", allowed, limit=f"{limit:g}")
        told = [_unread(side, concurrency, column) for side in (plain, arm)]
        if any(told):
            yield Finding(name, "unknown", told[0] or f"{a:.2f}", told[1] or f"{b:.2f}", "not readable in every cell")


def pace(plain: Side, arm: Side) -> Iterator[Finding]:
    """Fixed work that took longer before one arm's launches than before the other's. It runs on the CPU: where the target does
    not (no limit for neighbours), this is a note."""
    told = [[fact for row in side.servings if (fact := _host_number(row, "calibration_time_ms"))] for side in (plain, arm)]
    if not all(told):
        return
    a, b = map(median, told)
    if max(a, b) / min(a, b) - 1 > PACE_LIMIT:
        kind: Kind = "note" if isinf(_limit(plain.servings[0])) else "confounder"
        yield Finding("pace of the machine", kind, f"{a:.3f} ms", f"{b:.3f} ms", remedy("calibration"))


def _limit(serving: Row) -> float:
    limit = _host_number(serving, "load_limit_cores")
    return inf if limit is None else limit


def _host_number(serving: Row, fact: str) -> float | None:
    value = json.loads(str(as_map(serving["host"]).get(fact, "null")))
    return None if value is None else float(value)


def _unread(side: Side, concurrency: int, column: str) -> str:
    """How many cells with measured requests do not tell a column; empty where all do."""
    cells = side.measured_cells(concurrency)
    measured = {str(row["cell_id"]) for row in (*side.measured(concurrency), *cells)}
    unread = measured - {str(cell["cell_id"]) for cell in cells if not is_null(cell.get(column))}
    return f"not read in {len(unread)} of {len(measured)} cells" if unread else ""


def _mean_cores(cells: Rows, column: str) -> float:
    known = [(float(c[column]), int(c["ended_ns"]) - int(c["started_ns"])) for c in cells if not is_null(c.get(column))]
    return sum(cores * ns for cores, ns in known) / max(1, sum(ns for _, ns in known))


def _is_volatile(fact: str) -> bool:
    """`power_limit_w` is set by somebody, `power_w` is drawn."""
    return "power_limit" not in fact and (any(word in fact.lower() for word in VOLATILE) or fact.endswith(LAUNCH_ONLY))


def flags(plain: Side, arm: Side) -> Iterator[Finding]:
    """What the harness observed and wants told; it changes no verdict."""
    a, b = items_of(plain, "flags"), items_of(arm, "flags")
    yield from (Finding("flag", "note", "yes" if f in a else "no", "yes" if f in b else "no", f) for f in sorted(a | b))
