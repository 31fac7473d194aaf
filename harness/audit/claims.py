"""Whether the numbers that a published rig claims for an arm agree with each other, by `harness.claims.arithmetic`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from harness.audit.account import Account
from harness.audit.compare import audit
from harness.audit.speculation import printed_budget
from harness.claims import arithmetic
from harness.claims.arithmetic import Mistake, Printed, printed
from harness.published import Claim, Published, Quantity

Measure = Literal["tok_s", "speedup", "acceptance_length", "acceptance_rate"]
MEASURES: tuple[Measure, ...] = ("tok_s", "speedup", "acceptance_length", "acceptance_rate")
# A task that stands for several: `mean of 5`, `5-task mean`, `range over 5 tasks`.
MEAN = re.compile(r"mean of (\d+)|(\d+)-task mean")
SEVERAL = re.compile(r"range over (\d+) tasks|mean of (\d+)|(\d+)-task mean")


def mistakes(published: Published, arms: dict[str, Account], wanted: set[str]) -> Iterator[str]:
    """One line per claim and check that fails. `arms` are the accounts of every arm of the rig, `wanted` those asked about."""
    for claim in published.claims:
        if claim.arm in wanted:
            yield from (f"{claim.row} ({claim.arm}): {mistake}" for mistake in _of(claim, published, arms))


def _of(claim: Claim, published: Published, arms: dict[str, Account]) -> Iterator[Mistake]:
    account, base = arms[claim.arm], _baseline(claim, published)
    length, rate, speedup, tok_s = (
        None if number is None else printed(number)
        for number in (claim.acceptance_length, claim.acceptance_rate, claim.speedup, claim.tok_s)
    )
    budget = account.value("draft_budget")
    found = [
        arithmetic.length_outside_budget(length, budget) if length and isinstance(budget, int) else None,
        arithmetic.rate_outside_share(rate) if rate else None,
        arithmetic.anchor_in_rate(length, rate, budget) if length and rate and isinstance(budget, int) else None,
        arithmetic.speedup_mismatch(speedup, tok_s, base, claim.bound) if speedup and tok_s and base else None,
        arithmetic.rate_as_gain(printed(claim.gain), rate, _ratio(tok_s, base)) if claim.gain is not None and rate else None,
        _over(claim, account, arms),
    ]
    yield from (mistake for mistake in (*found, *_averages(claim, published)) if mistake)


def budget_mistake(one: Account, other: Account) -> Mistake | None:
    """Two commands that print one number for different budgets, because one of them counts the anchor."""
    facts = [side.facts.get("draft_budget") for side in (one, other)]
    budgets = [budget for fact in facts if fact and (budget := printed_budget(fact))]
    return arithmetic.anchor_in_budget(*budgets) if len(budgets) == 2 else None


def _averages(claim: Claim, published: Published) -> Iterator[Mistake | None]:
    """What is said of several tasks together against the tasks themselves, where the source states every one of them."""
    if not (count := SEVERAL.fullmatch(claim.task or "")):
        return
    is_mean = MEAN.fullmatch(claim.task or "") is not None
    for measure in MEASURES:
        stated, parts = getattr(claim, measure), _parts(claim, published, measure)
        if stated is not None and len(parts) == int(next(filter(None, count.groups()))):
            if isinstance(stated, tuple) and not is_mean:
                yield arithmetic.range_of_parts((printed(min(stated)), printed(max(stated))), parts)
            else:
                ends = stated if isinstance(stated, tuple) else (stated,)
                yield from (arithmetic.average_outside_parts(printed(end), parts, equal_weights=is_mean) for end in ends)


def _parts(claim: Claim, published: Published, measure: Measure) -> list[Printed]:
    """One value per task of the same arm and concurrency; empty when a task has several, and so none to average."""
    values: dict[str, set[Quantity]] = {}
    for one in published.claims:
        is_part = one.arm == claim.arm and one.task and not SEVERAL.fullmatch(one.task)
        value: Quantity = getattr(one, measure)
        if is_part and claim.concurrency in (None, one.concurrency) and value is not None:
            values.setdefault(str(one.task), set()).add(value)
    if any(len(found) > 1 for found in values.values()):
        return []
    return [printed(value) for found in values.values() for value in found if value is not None]


def _over(claim: Claim, account: Account, arms: dict[str, Account]) -> Mistake | None:
    """A speedup over another drafter, or over a plain arm that is another rig."""
    plain = arms.get("plain")
    if claim.speedup is None or account.is_plain:
        return None
    differs = audit(plain, account).named("confounder") if plain and claim.over in (None, "plain") else ()
    return arithmetic.baseline_not_plain(claim.over, differs)


def _baseline(claim: Claim, published: Published) -> Printed | None:
    """The rate that the claim is over: its own, or that of the baseline arm in the same cell."""
    if claim.baseline_tok_s is not None:
        return printed(claim.baseline_tok_s)
    over = claim.over or "plain"
    cells = [c for c in published.claims if c.arm == over and (c.task, c.concurrency) == (claim.task, claim.concurrency)]
    rates = [c.tok_s for c in cells if c.tok_s is not None]
    return printed(rates[0]) if rates else None


def _ratio(tok_s: Printed | None, base: Printed | None) -> Printed | None:
    return Printed(tok_s.low / base.high, tok_s.high / base.low) if tok_s and base and base.low > 0 else None
