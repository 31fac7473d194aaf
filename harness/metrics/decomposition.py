"""Where the time of a decode step goes, from the step rows of an engine that tells them, and what a width sweep predicts.

`speedup = tokens_per_step * t_plain(b) / (t_draft + t_verify(b, width) + t_other)` at b requests in the batch. Every term is
measured; what is put together from them and not timed as a whole is called predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.metrics.rows import Row, Rows
from harness.metrics.value import Maybe, Missing

MS = 1e6
ROUNDS_APART = 1.5  # by which the middle half of the rounds may spread at one row; 1.23 in the 25 rounds of results/sample
FASTER_WIDE = 0.8  # of one row's time, below which no wider pass can lie: it reads the same and computes more


@dataclass(frozen=True, slots=True)
class StepCost:
    """Mean of a decode step by part, in ms, over `steps` steps of full batches. `tokens` were delivered per request and step.

    `widths` counts the steps by rows per request that went through the target: 1 plus the drafts of the widest request.
    """

    draft_ms: float
    verify_ms: float
    sample_ms: float
    other_ms: float
    tokens: float
    widths: Mapping[int, int]
    steps: int

    @property
    def total_ms(self) -> float:
        """Whole step: drafting, the target's pass, acceptance and bookkeeping."""
        return self.draft_ms + self.verify_ms + self.machinery_ms

    @property
    def machinery_ms(self) -> float:
        """What is neither drafting nor the target's pass: sampling, acceptance and bookkeeping."""
        return self.sample_ms + self.other_ms

    @property
    def width(self) -> float:
        """Mean rows per request and step."""
        return sum(width * n for width, n in self.widths.items()) / self.steps


def step_cost(steps: Rows, concurrency: int) -> StepCost | Missing:
    """Means over the measured decode steps that had `concurrency` requests: sums over counts, no step left out.

    Ramp-up and tail run smaller batches, which are cheaper in every arm by a different share, so they are not in it.
    """
    if not steps:
        return Missing("not_reported")
    full = [s for s in steps if _is_decode(s) and int(s["requests"]) == concurrency]
    if not full:
        return Missing("no_full_batch")
    draft, verify, sample, total = (sum(int(s[k]) for s in full) / len(full) / MS for k in _PARTS)
    tokens = sum(int(s["emitted"]) for s in full) / (len(full) * concurrency)
    widths = Counter(round(int(s["rows"]) / concurrency) for s in full)
    return StepCost(draft, verify, sample, total - draft - verify - sample, tokens, dict(sorted(widths.items())), len(full))


_PARTS = ("draft_ns", "verify_ns", "sample_ns", "total_ns")


def _is_decode(step: Row) -> bool:
    return bool(step["phase"] == "measured" and step["kind"] == "decode")


def step_speedup(arm: StepCost, plain: StepCost) -> float:
    """`tokens_per_step * t_plain / t_step`: measured decode speedup by the engine's own step times, prefill left out."""
    return arm.tokens / plain.tokens * plain.total_ms / arm.total_ms


def verify_ms_by_width(sweep: Rows, concurrency: int) -> dict[int, float]:
    """Median time of a target pass by rows per request, in ms, from the width sweep at this many requests, if there is one."""
    found: dict[int, list[int]] = {}
    for row in sweep:
        if int(row["requests"]) == concurrency:
            found.setdefault(int(row["width"]), []).append(int(row["verify_ns"]))
    return {width: float(np.median(times)) / MS for width, times in sorted(found.items())}


def sweep_fault(sweep: Rows, concurrency: int) -> str | None:
    """Why a width sweep at this many requests says nothing of widths, null where it does or there is none.

    Something else took the machine when one row's time does not come out again between rounds, or when more rows took far less.
    """
    rounds: dict[tuple[int, int], list[int]] = {}
    for row in sweep:
        if int(row["requests"]) == concurrency and int(row["width"]) == 1:
            rounds.setdefault((int(row["block"]), int(row.get("round", 0))), []).append(int(row["verify_ns"]))
    if not rounds:
        return None
    low, high = np.quantile([np.median(times) for times in rounds.values()], [0.25, 0.75])
    if high > ROUNDS_APART * low:
        return (
            f"one row took {low / MS:.2f} to {high / MS:.2f} ms in the middle half of its rounds, over {ROUNDS_APART:g}x apart"
        )
    by_width = verify_ms_by_width(sweep, concurrency)
    least = min(by_width, key=lambda width: by_width[width])
    if by_width[least] < FASTER_WIDE * by_width[1]:
        return (
            f"{least} rows took {by_width[least]:.2f} ms and one row {by_width[1]:.2f}: a wider pass cannot be that much faster"
        )
    return None


def swept_verify_ms(widths: Mapping[int, int], by_width: Mapping[int, float]) -> Maybe:
    """Mean pass time of steps of these widths (width -> steps) by the sweep's times; refused where a width was not swept."""
    if not by_width:
        return Missing("no_width_sweep")
    if widths.keys() - by_width.keys():
        return Missing("width_not_swept")
    return sum(by_width[width] * n for width, n in widths.items()) / sum(widths.values())


def predicted_speedup(arm: StepCost, plain: StepCost, by_width: Mapping[int, float]) -> Maybe:
    """Decode speedup that the parts predict: the target's passes by the width sweep of the plain serving, tokens per step,
    drafting and machinery as served. Predicted, not measured: beside `step_speedup` it shows whether the parts explain it."""
    ours, theirs = swept_verify_ms(arm.widths, by_width), swept_verify_ms(plain.widths, by_width)
    if isinstance(ours, Missing) or isinstance(theirs, Missing):
        return ours if isinstance(ours, Missing) else theirs
    step = arm.draft_ms + ours + arm.machinery_ms
    return arm.tokens / plain.tokens * (theirs + plain.machinery_ms) / step


def step_difference_ms(arm: Maybe, plain: Maybe) -> Maybe:
    """`t_step_arm - t_step_plain` from the streams, for an engine that tells no parts: drafting and the wider verification
    together. Each is a mean of `step_ms` over requests."""
    if isinstance(arm, Missing) or isinstance(plain, Missing):
        return arm if isinstance(arm, Missing) else plain
    return arm - plain
