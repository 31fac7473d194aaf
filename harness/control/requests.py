"""Findings from the requests: what must hold in each arm by itself, under the load that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from harness.control.factors import remedy
from harness.control.findings import Finding, Side
from harness.metrics import (
    EMPTY_LIMIT,
    Missing,
    Row,
    Rows,
    as_map,
    effective_concurrency,
    error_rate,
    integer,
    is_null,
    outcome,
)

LAG_LIMIT_MS = 1.0
SOURCE_LIMIT = 0.01
# Engine counter, and the request column whose sum it must equal.
COUNTED = {
    "output_tokens": "output_tokens",
    "verify_steps": "steps_with_draft",
    "draftless_steps": "steps_without_draft",
    "drafted": "drafted",
    "accepted": "accepted_by_engine",
}
# True holds, False is broken, null cannot be told; with the value to show.
Held = tuple[bool | None, str]


def each_side(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """What must hold in each arm by itself; the finding shows both values."""
    checks: dict[str, Callable[[Side, int], Held]] = {
        "error_rate": _errors,
        "concurrency_reached": _concurrency,
        "preemptions": _preemptions,
        "repeated_prompts": _repeats,
        "warmup_prompts": _warmed,
        "acceptance_sources": _counters,
    }
    for factor, check in checks.items():
        (a, a_shown), (b, b_shown) = check(plain, concurrency), check(arm, concurrency)
        if a is False or b is False:
            yield Finding(factor, "confounder", a_shown, b_shown, remedy(factor))
        elif None in (a, b):
            yield Finding(factor, "unknown", a_shown, b_shown, "not readable in every arm")


def _errors(side: Side, concurrency: int) -> Held:
    rate = error_rate(side.measured(concurrency))
    return (None, "no requests") if isinstance(rate, Missing) else (rate <= EMPTY_LIMIT, f"{100 * rate:.1f} %")


def _concurrency(side: Side, asked: int) -> Held:
    """The worst cell of this arm. An open load asks for a rate, not for a concurrency: there is nothing to reach."""
    if any(row["scheduled_ns"] != row["sent_ns"] for row in side.measured(asked)):
        return True, "open load"
    cells: dict[str, list[Row]] = {}
    for row in side.measured(asked):
        cells.setdefault(str(row["cell_id"]), []).append(row)
    steps: dict[str, list[Row]] = {cell_id: [] for cell_id in cells}
    for step in side.steps:
        if str(step["cell_id"]) in steps:
            steps[str(step["cell_id"])].append(step)
    found = [_cell_concurrency(cell, steps[cell_id], asked) for cell_id, cell in cells.items()]
    worst_first = sorted(found, key=lambda held: {False: 0, None: 1, True: 2}[held[0]])
    return worst_first[0] if found else (None, "no requests")


def _cell_concurrency(cell: list[Row], steps: list[Row], asked: int) -> Held:
    running = effective_concurrency(cell, steps, asked)
    if isinstance(running, Missing):
        return (False if running.reason == "concurrency_not_reached" else None), running.reason
    return running.reached(asked), f"{running.typical:g} of {asked}"


def _preemptions(side: Side, concurrency: int) -> Held:
    total = side.counted("preemptions", concurrency)
    return (None, "not reported") if total is None else (total == 0, str(total))


def _repeats(side: Side, concurrency: int) -> Held:
    keys = [(str(r["cell_id"]), str(r["prompt_hash"])) for r in side.measured(concurrency)]
    return len(keys) == len(set(keys)), str(len(keys) - len(set(keys)))


def _warmed(side: Side, concurrency: int) -> Held:
    warm = {str(r["prompt_hash"]) for r in side.requests if r["phase"] == "warmup"}
    both = warm & {str(r["prompt_hash"]) for r in side.measured(concurrency)}
    return not both, str(len(both))


def sources_agree(one: float, other: float) -> bool:
    """Two sources of one quantity agree within 1 % of the larger."""
    return abs(one - other) <= SOURCE_LIMIT * max(abs(one), abs(other))


def counters_disagree(counters: Mapping[str, int], rows: Rows) -> Iterator[tuple[str, int, int]]:
    """(counter, told, sum over the requests) where an engine's counter contradicts the requests that it served.

    Nothing is said where a request failed, whose share never arrived here, or where one source is missing.
    """
    if any(outcome(row) != "ok" for row in rows):
        return
    for counter, column in COUNTED.items():
        told, parts = integer(counters.get(counter)), [integer(row[column]) for row in rows]
        total = sum(part for part in parts if part is not None)
        if told is not None and parts and None not in parts and not sources_agree(told, total):
            yield counter, told, total


def _counters(side: Side, concurrency: int) -> Held:
    """Counters over each measured window against its requests; over a whole serving that ended, where windows have none."""
    cells = side.measured_cells(concurrency)
    groups = [(cell, [r for r in side.measured(concurrency) if r["cell_id"] == cell["cell_id"]]) for cell in cells]
    if not cells:
        ended = [serving for serving in side.servings if not is_null(serving["ended_ns"])]
        groups = [(s, [r for r in side.requests if r["serving_id"] == s["serving_id"]]) for s in ended]
    for told, rows in groups:
        for counter, counted, total in counters_disagree(as_map(told["counters"]), rows):
            return False, f"{counter}: the engine counts {counted}, its requests {total}"
    return True, "equal"
