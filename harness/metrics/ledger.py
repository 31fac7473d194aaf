"""The acceptance ledger: integers per request, and the quantities that follow from them.

P tokens emitted by prefill · S steps with at least one draft · Z steps without · D drafted · A accepted and delivered ·
A* accepted by the engine (may run past a stop token or the limit) · O delivered output tokens · e = 1 if the request ended
inside an accepted run · K draft budget. Identity: O = P + S + Z + A - e. Every function takes one request's ledger or a
pooled one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.metrics.rows import Row, integer, integers, is_null
from harness.metrics.value import AcceptanceRate, Maybe, Missing


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts over `requests` requests; null means "not reported". `budget` is K, null for a plain arm."""

    budget: int | None
    prefill: int | None
    speculating: int | None
    draftless: int | None
    drafted: int | None
    accepted: int | None
    accepted_by_engine: int | None
    output: int
    ended_inside: int | None
    requests: int = 1


def ledger_of(row: Row, budget: int | None) -> Ledger:
    """The ledger of one row of the requests table. `budget` is its serving's draft budget, null for plain."""
    return Ledger(
        budget=budget,
        prefill=integer(row["prefill_tokens"]),
        speculating=integer(row["steps_with_draft"]),
        draftless=integer(row["steps_without_draft"]),
        drafted=integer(row["drafted"]),
        accepted=integer(row["accepted"]),
        accepted_by_engine=integer(row["accepted_by_engine"]),
        output=int(row["output_tokens"]),
        ended_inside=integer(row["ended_inside_run"]),
    )


def _total(values: Iterable[int | None]) -> int | None:
    """Sum, null if one is null: part of a count is not a count."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def pool(ledgers: Sequence[Ledger]) -> Ledger:
    """Sum over requests (or ranks), so that ratios are sums over sums. Raises ValueError on none or mixed budgets."""
    if len({ledger.budget for ledger in ledgers}) != 1:
        raise ValueError("pool: needs ledgers of one draft budget; pool each budget by itself")
    return Ledger(
        budget=ledgers[0].budget,
        prefill=_total(x.prefill for x in ledgers),
        speculating=_total(x.speculating for x in ledgers),
        draftless=_total(x.draftless for x in ledgers),
        drafted=_total(x.drafted for x in ledgers),
        accepted=_total(x.accepted for x in ledgers),
        accepted_by_engine=_total(x.accepted_by_engine for x in ledgers),
        output=sum(x.output for x in ledgers),
        ended_inside=_total(x.ended_inside for x in ledgers),
        requests=sum(x.requests for x in ledgers),
    )


def acceptance_length(ledger: Ledger) -> Maybe:
    """`1 + A/S`: tokens per speculating step, the target's own token included; between 1 and K+1.

    The prefill token is no product of a step and is not in it. Counters that give more than K+1 are refused.
    """
    if ledger.budget is None:
        return Missing("plain_arm")
    if ledger.speculating is None or ledger.accepted is None:
        return Missing("not_reported")
    if ledger.speculating == 0:
        return Missing("no_steps")
    if ledger.accepted > ledger.budget * ledger.speculating:
        return Missing("exceeds_budget")
    return 1 + ledger.accepted / ledger.speculating


def tokens_per_step(ledger: Ledger) -> Maybe:
    """`(O - P)/(S + Z)`: delivered tokens per decode step, steps without drafts included. The number that drives speed."""
    if ledger.prefill is None or ledger.speculating is None or ledger.draftless is None:
        return Missing("not_reported")
    steps = ledger.speculating + ledger.draftless
    if steps == 0:
        return Missing("no_steps")
    made = ledger.output - ledger.prefill
    if made > ((ledger.budget or 0) + 1) * steps:
        return Missing("exceeds_budget")
    return made / steps


def acceptance_rate(ledger: Ledger) -> AcceptanceRate | Missing:
    """`A/D`: share of drafted tokens that were accepted and delivered, the target's own token excluded.

    A share, not a length and not a speedup; it falls by arithmetic when K grows, so it comes with its K.
    """
    if ledger.budget is None:
        return Missing("plain_arm")
    if ledger.drafted is None or ledger.accepted is None:
        return Missing("not_reported")
    if ledger.drafted == 0:
        return Missing("nothing_drafted")
    return AcceptanceRate(ledger.accepted / ledger.drafted, ledger.budget)


def _per_step(ledger: Ledger, count: int | None) -> Maybe:
    if ledger.budget is None:
        return Missing("plain_arm")
    if count is None or ledger.speculating is None or ledger.draftless is None:
        return Missing("not_reported")
    steps = ledger.speculating + ledger.draftless
    return count / steps if steps else Missing("no_steps")


def wasted_per_step(ledger: Ledger) -> Maybe:
    """`(D - A)/(S + Z)`: drafted tokens that were verified and thrown away, per decode step."""
    known = ledger.drafted is not None and ledger.accepted is not None
    return _per_step(ledger, (ledger.drafted or 0) - (ledger.accepted or 0) if known else None)


def drafted_per_step(ledger: Ledger) -> Maybe:
    """`D/(S + Z)`: drafted tokens per decode step. A high rate says nothing when this is near zero."""
    return _per_step(ledger, ledger.drafted)


def coverage(ledger: Ledger) -> Maybe:
    """`S/(S + Z)`: share of decode steps that had a draft; n-gram and adaptive drafters draft on some steps only."""
    return _per_step(ledger, ledger.speculating)


def overshoot(ledger: Ledger) -> int | Missing:
    """`A* - A`: drafts that the engine accepted past a stop token or limit; at most K per request."""
    if ledger.accepted_by_engine is None or ledger.accepted is None:
        return Missing("not_reported")
    return ledger.accepted_by_engine - ledger.accepted


def identity_errors(ledger: Ledger) -> list[str]:
    """The identities that the counts break, in words; empty when they hold or cannot be checked."""
    budget, errors = ledger.budget or 0, []
    parts = _total((ledger.prefill, ledger.speculating, ledger.draftless, ledger.accepted))
    if parts is not None and ledger.ended_inside is not None and ledger.output != parts - ledger.ended_inside:
        errors.append(f"O = {ledger.output} but P+S+Z+A-e = {parts - ledger.ended_inside}")
    over = overshoot(ledger)
    if not isinstance(over, Missing) and not 0 <= over <= budget * ledger.requests:
        errors.append(f"A*-A = {over} is outside 0 to {budget} per request")
    if ledger.accepted is not None and ledger.drafted is not None and ledger.accepted > ledger.drafted:
        errors.append(f"A = {ledger.accepted} exceeds D = {ledger.drafted}")
    if ledger.drafted is not None and ledger.speculating is not None and ledger.drafted > budget * ledger.speculating:
        errors.append(f"D = {ledger.drafted} exceeds K*S = {budget * ledger.speculating}")
    if acceptance_length(ledger) == Missing("exceeds_budget"):
        errors.append(f"acceptance length exceeds K+1 = {budget + 1}")
    return errors


def accepted_prefix(mask: Sequence[int | bool]) -> int:
    """Drafts accepted under a per-position mask: those before the first rejection; what matches behind it does not count."""
    return next((i for i, kept in enumerate(mask) if not kept), len(mask))


def expected_tokens_per_step(acceptance: float, budget: int) -> float:
    """`1 + a + a^2 + ... + a^K`: a draft counts only if all before it were accepted, so it is not `1 + K*a`."""
    return 1 + sum(acceptance**i for i in range(1, budget + 1))


def before_stop(row: Row, budget: int | None, stop_ids: Collection[int]) -> Ledger:
    """The ledger of a fixed-length request up to and with its first stop token, as if it had ended there.

    Text after a stop token is degenerate and flatters drafters. Needs step_drafted, step_accepted and the prefill count of the
    engine; without them the ledger has nulls. Unchanged when no stop token was delivered.
    """
    tokens = integers(row["token_ids"])
    output = next((i + 1 for i, token in enumerate(tokens) if token in stop_ids), None)
    whole = ledger_of(row, budget)
    if output is None:
        return whole
    if is_null(row["step_drafted"]) or is_null(row["step_accepted"]) or whole.prefill is None:
        return Ledger(budget, None, None, None, None, None, None, output, None)
    return _replay(integers(row["step_drafted"]), integers(row["step_accepted"]), whole.prefill, output, budget)


def _replay(drafted: list[int], accepted: list[int], prefill: int, output: int, budget: int | None) -> Ledger:
    """Counts of the steps that deliver tokens `prefill` to `output`, the last step cut where the output ends."""
    have, counts, inside = min(prefill, output), [0, 0, 0, 0, 0], 0
    for offered, kept in zip(drafted, accepted, strict=True):
        if have >= output:
            break
        delivered = min(kept, output - have)
        inside = int(output - have <= kept)
        have += delivered + 1 - inside
        step = (offered > 0, offered == 0, offered, delivered, kept)
        counts = [total + int(part) for total, part in zip(counts, step, strict=True)]
    return Ledger(budget, min(prefill, output), counts[0], counts[1], counts[2], counts[3], counts[4], output, inside)
