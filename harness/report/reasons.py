"""Numbers of a line that say why an arm is as fast as it is, and whether its answers are worth it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.decompose import Decomposition
from harness.gates.identity import Identity
from harness.metrics import Maybe, Missing
from harness.metrics.decomposition import step_cost
from harness.report.decomposition import decomposition_of, steps_of
from harness.report.gates import gates_of

if TYPE_CHECKING:
    from harness.report.summary import Cell, Number

PARTS = ("draft_ms", "verify_ms", "sample_ms", "other_ms", "total_ms")


def reason_numbers(cell: Cell) -> Iterator[Number]:
    """Parts of a step for every arm; for drafting arms what they would need, what was measured and predicted, and the gates."""
    every = tuple(cell.run.classes(cell.concurrency))
    classes = (cell.label,) if cell.label in every else every
    cost = step_cost(steps_of(cell.run, cell.arm, cell.concurrency, classes), cell.concurrency)
    for part in PARTS:
        value: Maybe = cost if isinstance(cost, Missing) else getattr(cost, part)
        steps = 0 if isinstance(cost, Missing) else cost.steps
        yield cell.number(f"step_{part}", value, "ms", steps, "steps")
    if cell.run.plain is None or cell.run.methods[cell.arm] == "plain":
        return
    found = _beside_plain(cell, classes)
    yield _with_interval(cell, "break_even_length", found, "tokens/step")
    yield _with_interval(cell, "predicted_step_speedup", found, "ratio")
    yield _with_interval(cell, "step_speedup", found, "ratio")
    yield from _gates(cell, classes)


def _beside_plain(cell: Cell, classes: tuple[str, ...]) -> Decomposition | Missing:
    """What the arm's steps say beside plain's: nothing where something else differed, or where no session measured both."""
    if cell.control is not None and cell.control.verdict == "CONFOUNDED":
        return Missing("confounded")
    if cell.run.is_torn(cell.arms, cell.arm):
        return Missing("two_sessions")
    return decomposition_of(cell.run, cell.arm, cell.concurrency, classes)


def _with_interval(cell: Cell, metric: str, found: Decomposition | Missing, unit: str) -> Number:
    if isinstance(found, Missing):
        return cell.number(metric, found, unit, 0, "blocks")
    low, high = found.measured.low, found.measured.high
    value, interval = {
        "break_even_length": (found.break_even, found.break_even_interval),
        "predicted_step_speedup": (found.predicted, found.predicted_interval),
        "step_speedup": (found.measured.ratio, None if low is None or high is None else (low, high)),
    }[metric]
    number = cell.number(metric, value, unit, found.measured.blocks, "blocks")
    low, high = interval or (None, None)
    return replace(number, low=low, high=high, budget=cell.budget)


def _gates(cell: Cell, classes: tuple[str, ...]) -> Iterator[Number]:
    """`quality_marks` counts them and names them in its note; `identical_share` is of requests compared with plain's."""
    found = gates_of(cell.run, cell.arm, cell.concurrency, classes)
    if found is None:
        return
    yield replace(cell.number("quality_marks", len(found.marks), "", None, ""), note=", ".join(found.marks))
    same = found.identity
    share: Maybe = same.identical / same.compared if isinstance(same, Identity) else same
    yield cell.number("identical_share", share, "share", same.compared if isinstance(same, Identity) else 0, "requests")
    yield cell.number("looping_share", found.looping.arm, "share", None, "")
    for task, (both, n) in found.accuracy.items():
        yield cell.number(f"accuracy: {task}", both.arm, "share", n, "requests")
