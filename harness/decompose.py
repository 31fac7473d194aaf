"""Why an arm wins or loses: its decode steps taken apart beside plain's, block by block, and what a width sweep predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.metrics import Maybe, Missing, Row, Rows
from harness.metrics.breakeven import Crossover, Level, break_even_length, crossover
from harness.metrics.decomposition import StepCost, predicted_speedup, step_cost, step_speedup, sweep_fault, verify_ms_by_width
from harness.stats import Speedup, block_speedup


@dataclass(frozen=True, slots=True)
class Decomposition:
    """An arm beside plain at one concurrency. `measured` is the speedup of decode steps, `predicted` what the parts give.

    `break_even` and `predicted` are of all blocks pooled; the tuples beside them are 95 % intervals over blocks, null with
    one. `by_width` is the width sweep, ms by rows per request. `budget` is K.
    """

    arm: StepCost
    plain: StepCost
    budget: int | None
    coverage: Maybe
    measured: Speedup
    predicted: Maybe
    predicted_interval: tuple[float, float] | None
    break_even: Maybe
    break_even_interval: tuple[float, float] | None
    by_width: Mapping[int, float]

    @property
    def draft(self) -> float:
        """Time of drafting in plain steps."""
        return self.arm.draft_ms / self.plain.total_ms

    @property
    def verify(self) -> float:
        """Extra time of the target's pass over plain's, in plain steps."""
        return (self.arm.verify_ms - self.plain.verify_ms) / self.plain.total_ms

    @property
    def machinery(self) -> float:
        """Extra time of sampling, acceptance and bookkeeping over plain's, in plain steps."""
        return (self.arm.machinery_ms - self.plain.machinery_ms) / self.plain.total_ms

    @property
    def gain(self) -> float:
        """Tokens per step above plain's one."""
        return self.arm.tokens / self.plain.tokens - 1


def decompose(
    arm: Rows, plain: Rows, sweep: Rows, concurrency: int, budget: int | None, coverage: Maybe
) -> Decomposition | Missing:
    """Step rows of an arm and of plain, and the sweep rows of plain's servings. Blocks that either lacks are left out.

    Missing where the engine tells no steps, or no batch was full.
    """
    pairs = _by_block(arm, plain, concurrency)
    if isinstance(pairs, Missing):
        return pairs
    ours, theirs = (step_cost(_of(rows, pairs), concurrency) for rows in (arm, plain))
    if isinstance(ours, Missing) or isinstance(theirs, Missing):  # cannot be: each block has one
        return Missing("no_full_batch")
    logs = np.array([math.log(step_speedup(a, p)) for a, p in pairs.values()])
    disturbed = sweep_fault(sweep, concurrency) is not None
    by_width = {} if disturbed else verify_ms_by_width(sweep, concurrency)
    per_block = {b: verify_ms_by_width([r for r in sweep if int(r["block"]) == b], concurrency) for b in pairs}
    measured = block_speedup(logs, 0)
    assert isinstance(measured, Speedup)  # there is a block
    return Decomposition(
        ours,
        theirs,
        budget,
        coverage,
        measured,
        Missing("sweep_disturbed") if disturbed else predicted_speedup(ours, theirs, by_width),
        None if disturbed else _interval([predicted_speedup(a, p, per_block[b]) for b, (a, p) in pairs.items()]),
        break_even_length(ours, theirs, coverage),
        _interval([break_even_length(a, p, coverage) for a, p in pairs.values()]),
        by_width,
    )


def _by_block(arm: Rows, plain: Rows, concurrency: int) -> dict[int, tuple[StepCost, StepCost]] | Missing:
    """Step costs of both arms in every block that has them; the reason of the first gap when no block has."""
    reason = Missing("not_reported")
    found: dict[int, tuple[StepCost, StepCost]] = {}
    for block in sorted({int(s["block"]) for s in arm} & {int(s["block"]) for s in plain}):
        ours, theirs = (step_cost([s for s in rows if int(s["block"]) == block], concurrency) for rows in (arm, plain))
        if isinstance(ours, Missing) or isinstance(theirs, Missing):
            reason = ours if isinstance(ours, Missing) else theirs if isinstance(theirs, Missing) else reason
        else:
            found[block] = ours, theirs
    return found or reason


def _of(rows: Rows, blocks: Mapping[int, object]) -> list[Row]:
    return [row for row in rows if int(row["block"]) in blocks]


def _interval(values: list[Maybe]) -> tuple[float, float] | None:
    """95 % interval over blocks on the log scale; null with a block that has no value, or under two."""
    known = [v for v in values if not isinstance(v, Missing) and v > 0]
    if len(known) < len(values) or len(known) < 2:
        return None
    found = block_speedup(np.log(known), 0)
    return None if isinstance(found, Missing) or found.low is None or found.high is None else (found.low, found.high)


def crossover_of(speedups: Mapping[int, Speedup | Missing]) -> Crossover | Missing:
    """Crossover of an arm's speedups by concurrency; levels without one are left out."""
    known = {level: found for level, found in speedups.items() if not isinstance(found, Missing)}
    return crossover([Level(c, math.log(s.ratio), _log(s.low), _log(s.high)) for c, s in known.items()])


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(value)
