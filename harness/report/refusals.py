"""What has no number at the foot of a table: which metrics, of which arms, and the reason that their requests give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.metrics import REASONS
from harness.report.table import Line

# Reasons that a column shows as `-` or `refused`. Others are of metrics that an engine or a method does not have, and are in
# the summary. Of the speedup every reason is told.
TOLD = {
    "coalesced",
    "concurrency_not_reached",
    "exceeds_budget",
    "no_pairs",
    "no_whole_block",
    "one_chunk",
    "two_sessions",
}
TAILS = ("_p50", "_p95")


def refusals(groups: Mapping[str, Mapping[str, Line]]) -> Iterator[str]:
    """A line per reason over the content classes of one table: metrics, and of which arms where not of all."""
    arms: dict[tuple[str, str], dict[str, None]] = {}
    for lines in groups.values():
        for arm, line in lines.items():
            for name, number in line.items():
                if number.value is None and (number.note in TOLD or (name == "speedup" and number.note)):
                    arms.setdefault((number.note, _name(name)), {})[arm] = None
    every = {arm for lines in groups.values() for arm in lines}
    for reason in sorted({reason for reason, _ in arms}):
        alike: dict[str, list[str]] = {}
        for (why, metric), whose in arms.items():
            if why == reason:
                alike.setdefault("" if whose.keys() == every else f" of {', '.join(whose)}", []).append(metric)
        yield f"refused: {'; '.join(', '.join(names) + whose for whose, names in alike.items())}: {REASONS[reason]}"


def speedup_refusals(reasons: Iterable[str]) -> Iterator[str]:
    """The same where nothing but speedups may be missing; empty reasons are of those that are there."""
    yield from (f"refused: speedup: {REASONS[reason]}" for reason in sorted(set(reasons) - {""}))


def _name(metric: str) -> str:
    """The metric whose percentile this is."""
    return next((metric.removesuffix(tail) for tail in TAILS if metric.endswith(tail)), metric)
