"""Whether a serving may be compared: reasons that forbid it, and flags to tell beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.control.requests import LAG_LIMIT_MS, sources_agree
from harness.metrics import EMPTY_LIMIT, Missing, Rows, effective_concurrency, error_rate, integer, outcome, tpot_ms

STATIONARY = 0.05

# Engine counter, and the request column whose sum over a serving it must equal.
COUNTED = {
    "output_tokens": "output_tokens",
    "verify_steps": "steps_with_draft",
    "draftless_steps": "steps_without_draft",
    "drafted": "drafted",
    "accepted": "accepted_by_engine",
}


def cell_problems(rows: Rows, steps: Rows, concurrency: int) -> list[str]:
    """Why one closed-load cell may not be compared: fewer requests ran at once than were asked for, by more than 5 %."""
    running = effective_concurrency(rows, steps, concurrency)
    if isinstance(running, Missing):
        reached = running.reason != "concurrency_not_reached"
        return [] if reached else [f"concurrency: {concurrency} requests were never in flight at once"]
    if running.reached(concurrency) is not False:  # null: the stream alone cannot tell
        return []
    return [f"concurrency: {concurrency} asked, {running.median:g} ran at once (median over time, by {running.source})"]


def serving_problems(rows: Rows, counters: Mapping[str, int]) -> list[str]:
    """Why a serving may not be compared: failed requests, preemptions, or counters that contradict the requests."""
    problems = []
    rate = error_rate(rows)
    if not isinstance(rate, Missing) and rate > EMPTY_LIMIT:
        failed = next(row for row in rows if row["phase"] == "measured" and outcome(row) != "ok")
        problems.append(f"errors: {100 * rate:.1f} % of measured requests failed, first: {failed['error']}")
    if preempted := counters.get("preemptions"):
        problems.append(f"preemptions: the engine preempted {preempted} requests; give the KV cache more tokens")
    if any(outcome(row) != "ok" for row in rows):
        return problems  # what the engine counted for a failed request never arrived here
    for counter, column in COUNTED.items():
        sums = [integer(row[column]) for row in rows]
        known = [value for value in sums if value is not None]
        if counter in counters and len(known) == len(sums) and not sources_agree(counters[counter], sum(known)):
            problems.append(f"counters: the engine counted {counter} {counters[counter]}, its requests carried {sum(known)}")
    return problems


def serving_flags(lag_p99_ms: float | None, busy_cores: float | None, max_load: float | None) -> list[str]:
    """What to tell beside the numbers of a serving. `busy_cores` were busy with other work just before its launch."""
    flags = []
    if lag_p99_ms is not None and lag_p99_ms > LAG_LIMIT_MS:
        flags.append(f"client: event-loop lag p99 is {lag_p99_ms:.2f} ms; the client may limit the rate")
    if busy_cores is not None and max_load is not None and busy_cores > max_load:
        flags.append(
            f"load: {busy_cores:.2f} cores were busy with other work before the launch, machine.max_load is {max_load:g}"
        )
    return flags


def is_stationary(batches: Sequence[Rows], budget: int | None) -> bool:
    """Whether the last two warm-up batches have median times per output token within 5 % of each other."""
    if len(batches) < 2:
        return False
    before, last = (_median_tpot(batch, budget) for batch in batches[-2:])
    return before is not None and last is not None and abs(last - before) <= STATIONARY * max(last, before)


def _median_tpot(batch: Rows, budget: int | None) -> float | None:
    times = sorted(t for row in batch if not isinstance(t := tpot_ms(row, budget), Missing))
    return times[len(times) // 2] if times else None
