"""A number, or the reason why there is none. A null never becomes 1.0 or 0.0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

REASONS = {
    "not_reported": "the engine does not tell what this needs",
    "no_steps": "no decode step of this kind happened",
    "plain_arm": "a plain arm drafts nothing",
    "nothing_drafted": "no token was drafted",
    "exceeds_budget": "the counters claim more than the draft budget allows; they are wrong",
    "coalesced": "a chunk holds more tokens than a step can make; time per token cannot be seen in this stream",
    "chunks_are_not_steps": "the number of chunks differs from the number of steps",
    "no_tokens": "no token arrived",
    "no_answer": "no token arrived after the reasoning",
    "one_chunk": "no token arrived after the first chunk",
    "no_requests": "no request succeeded",
    "concurrency_not_reached": "the asked number of requests was never in flight",
    "empty_window": "the interval with all slots busy has no length",
    "queued": "above concurrency 1 the time to the first token includes waiting",
    "too_short": "the output is shorter than the n-gram",
    "no_pairs": "no prompt succeeded in both arms",
    "no_whole_block": "no block was measured whole by every arm",
    "two_sessions": "the run was interrupted: no cell has all arms from one session, and machines drift; --fresh measures anew",
    "confounded": "something beside the drafter differed: see control",
    "lengths_differ": "outputs differ in length by more than 1 %; compare tokens per second, not latency",
    "failed": "the request failed",
    "no_full_batch": "no decode step ran with as many requests as were asked for",
    "no_width_sweep": "no width sweep was stored: the engine cannot, protocol.width_rounds is 0, or the serving was cut short",
    "sweep_disturbed": "the width sweep was disturbed: its times of one row and of more do not fit together",
    "width_not_swept": "a step was wider than the widths that were swept",
    "one_level": "a crossover needs two levels of concurrency",
    "no_crossover": "the speedup does not fall through 1 between the measured levels",
    "not_greedy": "sampled texts differ by chance; identity is defined for greedy decoding",
    "no_answers": "no prompt has an answer to check against",
    "not_graded": "the answers of these requests were not checked",
    "not_recomputed": "no request of the arm was recomputed by teacher forcing",
    "sampled_drafts": "drafts were drawn at random; the same text does not bring the same drafts back",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no number; `reason` is a key of `REASONS`. Raises ValueError on another one."""

    reason: str

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ValueError(f"Missing: '{self.reason}' is no known reason; add it to harness.metrics.value.REASONS")


Maybe = float | Missing


@dataclass(frozen=True, slots=True)
class AcceptanceRate:
    """A share of drafted tokens, which means nothing without the budget that it was offered under."""

    share: float
    budget: int

    def __str__(self) -> str:
        return f"{self.share:.2f} @K={self.budget}"


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Median and 95th percentile (linear interpolation) of `n` numbers."""

    p50: float
    p95: float
    n: int


def percentiles(values: Sequence[Maybe]) -> Percentiles | Missing:
    """p50 and p95 over the numbers; when there is none, the first reason."""
    numbers = [v for v in values if not isinstance(v, Missing)]
    if not numbers:
        return next((v for v in values if isinstance(v, Missing)), Missing("no_requests"))
    p50, p95 = np.percentile(numbers, [50, 95])
    return Percentiles(float(p50), float(p95), len(numbers))


def mean(values: Sequence[Maybe]) -> Maybe:
    """Unweighted mean over the numbers (per-request mean of a metric); when there is none, the first reason."""
    numbers = [v for v in values if not isinstance(v, Missing)]
    if not numbers:
        return next((v for v in values if isinstance(v, Missing)), Missing("no_requests"))
    return float(np.mean(numbers))
