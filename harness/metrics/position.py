"""Acceptance by draft position, with its denominators kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.metrics.rows import Row, integer, integers, is_null
from harness.metrics.value import Maybe, Missing


@dataclass(frozen=True, slots=True)
class PositionRates:
    """Counts per draft position i (index 0 is the first draft): steps that drafted it, steps that accepted it, and all steps
    with a draft. Three rates with three denominators; name the one that is shown."""

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    steps: int

    @property
    def marginal(self) -> tuple[Maybe, ...]:
        """`acc_i / S`: share of speculating steps that got at least i drafts accepted."""
        return tuple(_share(a, self.steps) for a in self.accepted)

    @property
    def conditional(self) -> tuple[Maybe, ...]:
        """`acc_i / drafted_i`: the same among the steps that drafted so deep."""
        return tuple(_share(a, d) for a, d in zip(self.accepted, self.drafted, strict=True))

    @property
    def ratio(self) -> tuple[Maybe, ...]:
        """`acc_i / acc_(i-1)`: given that everything before was accepted; the first is over S."""
        return tuple(_share(a, before) for a, before in zip(self.accepted, (self.steps, *self.accepted), strict=False))


def _share(part: int, whole: int) -> Maybe:
    return part / whole if whole else Missing("no_steps")


def position_rate(rows: Iterable[Row], budget: int | None) -> PositionRates | Missing:
    """Acceptance by draft position from the per-step counts, delivered drafts only: what the engine accepted past the end of a
    request is cut from its last step. Null unless every request has per-step counts."""
    if budget is None:
        return Missing("plain_arm")
    offered: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    for row in rows:
        if is_null(row["step_drafted"]) or is_null(row["step_accepted"]):
            return Missing("not_reported")
        offered.update(integers(row["step_drafted"]))
        kept.update(_delivered(row))
    accepted, drafted = _at_least(kept, budget), _at_least(offered, budget)
    return PositionRates(accepted, drafted, drafted[0]) if drafted[0] else Missing("no_steps")


def _at_least(counts: Counter[int], budget: int) -> tuple[int, ...]:
    """Steps with 1 or more, 2 or more, ... up to the budget."""
    return tuple(sum(n for value, n in counts.items() if value > i) for i in range(budget))


def _delivered(row: Row) -> list[int]:
    """Accepted drafts of every step, less the overshoot of the last one."""
    kept, total = list(integers(row["step_accepted"])), integer(row["accepted"])
    if kept and total is not None:
        kept[-1] -= sum(kept) - total
    return kept
