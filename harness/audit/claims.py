"""Whether the numbers that a published rig claims for an arm agree with each other, by `harness.claims.arithmetic`."""

from __future__ import annotations

from collections.abc import Iterator

from harness.audit.account import Account
from harness.audit.compare import audit
from harness.claims import arithmetic
from harness.claims.arithmetic import Mistake, Printed, printed
from harness.published import Claim, Published


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
    exact = claim.bound is None
    found = [
        arithmetic.length_outside_budget(length, budget) if length and isinstance(budget, int) else None,
        arithmetic.rate_outside_share(rate) if rate else None,
        arithmetic.speedup_mismatch(speedup, tok_s, base) if speedup and tok_s and base and exact else None,
        arithmetic.rate_as_gain(printed(claim.gain), rate, _ratio(tok_s, base)) if claim.gain is not None and rate else None,
        _over(claim, account, arms),
    ]
    yield from (mistake for mistake in found if mistake)


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
