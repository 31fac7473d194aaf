"""Acceptance as served against acceptance by teacher forcing on the same texts: did states, positions and rollback hold?"""

from __future__ import annotations

from dataclasses import dataclass

from harness.metrics import Ledger, Maybe, Missing, Rows, acceptance_length, acceptance_rate, ledger_of, pool
from harness.metrics.rows import integer, is_null

AGREE = 0.02


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Pooled ledgers of the same `requests`: as served, and as the drafter gives it on the text alone."""

    served: Ledger
    replayed: Ledger
    requests: int

    @property
    def lengths(self) -> tuple[Maybe, Maybe]:
        """Acceptance length as served and recomputed."""
        return acceptance_length(self.served), acceptance_length(self.replayed)

    @property
    def agree(self) -> bool | None:
        """Whether acceptance length and rate each differ by at most 0.02; null where either side drafted nothing."""
        rates = [
            rate for rate in (acceptance_rate(self.served), acceptance_rate(self.replayed)) if not isinstance(rate, Missing)
        ]
        lengths = [length for length in self.lengths if not isinstance(length, Missing)]
        if len(rates) < 2 or len(lengths) < 2:
            return None
        return abs(lengths[0] - lengths[1]) <= AGREE and abs(rates[0].share - rates[1].share) <= AGREE


def recomputed(rows: Rows, replays: Rows, budget: int | None) -> Recomputed | Missing:
    """Requests of an arm that were replayed with their drafter, against their served ledgers."""
    if budget is None:
        return Missing("plain_arm")
    again = {str(r["request_id"]): r for r in replays if not is_null(r["steps_with_draft"])}
    both = [(row, again[str(row["request_id"])]) for row in rows if str(row["request_id"]) in again]
    if not both:
        return Missing("not_recomputed")
    served = pool([ledger_of(row, budget) for row, _ in both])
    replayed = pool(
        [
            Ledger(
                budget,
                1,
                integer(r["steps_with_draft"]),
                integer(r["steps_without_draft"]),
                integer(r["drafted"]),
                integer(r["accepted"]),
                integer(r["accepted"]),
                int(row["output_tokens"]),
                None,
            )
            for row, r in both
        ]
    )
    return Recomputed(served, replayed, len(both))
