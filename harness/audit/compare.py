"""Two accounts, factor by factor: what moved, of which class, and the verdict of `harness.control`. Runs nothing.

What neither side states is told. It leaves the verdict unknown where without it no comparison is one: engine, target, machine,
the budgets of two drafters; and everything, where two sources are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.audit.account import Account
from harness.audit.difference import Difference, Kind, difference, why_it_matters
from harness.control.factors import Factor, is_draft, table
from harness.control.findings import Control, Verdict

ESSENTIAL = ("engine", "target", "machine")
ORDER = ("confounder", "unknown", "implied", "treatment", "note")
# What a command cannot say, whatever is in it.
OUTSIDE_COMMANDS = "a command states no machine, prompts, sampler, chat template or concurrency: hold them still yourself"
SERIAL = ("eagle", "eagle3", "mtp", "draft_model")
LONG_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome: differences in the order of their weight, and what to know beside them."""

    a: Account
    b: Account
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        return Control(self.b.name, self.a.name, tuple(f for d in self.differences if (f := d.finding()))).verdict

    def of(self, kind: Kind) -> tuple[Difference, ...]:
        return tuple(d for d in self.differences if d.kind == kind)

    def named(self, kind: Kind) -> tuple[str, ...]:
        """Factors of one kind."""
        return tuple(d.factor for d in self.of(kind))


def audit(a: Account, b: Account) -> Audit:
    """Compare two accounts."""
    names = sorted(a.facts.keys() | b.facts.keys(), key=_place)
    found = {d.factor: d for name in names if (d := difference(name, a, b))}
    found |= {d.factor: d for d in (*_forbidden(a, b), *_unstated(a, b))}
    differences, only_found = _gathered([_unread(_misspelt(d, a, b), a, b) for d in found.values()])
    return Audit(a, b, tuple(sorted(differences, key=lambda d: ORDER.index(d.kind))), (*only_found, *_notes(a, b)))


def _misspelt(d: Difference, a: Account, b: Account) -> Difference:
    """A flag that the release does not know is told as such in its own finding, with the name that was probably meant."""
    told = {**a.strange, **b.strange}.get(d.factor)
    return replace(d, why=told, remedy="correct the name, or state the release that has it") if told else d


def _unread(d: Difference, a: Account, b: Account) -> Difference:
    """To state a release helps nobody who stated one that has no table: what it moves by itself has to be pinned."""
    for side, fact in ((a, d.a), (b, d.b)):
        if side.unread_release and fact is not None and fact.origin == "supposed":
            return replace(d, remedy=f"pin {d.factor} on both sides: there is no table of {side.unread_release}")
    return d


def _place(name: str) -> tuple[int, str]:
    """The table's order, then the alphabet's."""
    return (list(table()).index(name), name) if name in table() else (len(table()), name)


def _gathered(found: list[Difference]) -> tuple[list[Difference], list[str]]:
    """What only a run can tell is one line, not one for each factor."""
    only = [d.factor for d in found if d.kind == "note"]
    note = [f"only the run tells {', '.join(only)}"] if only else []
    return [d for d in found if d.factor not in only], note


def _forbidden(a: Account, b: Account) -> Iterable[Difference]:
    """Values under which outputs are not the target's, on either side, equal or not."""
    for name, factor in table().items():
        facts = [account.facts.get(name) for account in (a, b)]
        if any(fact and fact.value is not None and not _is_allowed(factor, fact.value) for fact in facts):
            yield Difference(name, "confounder", facts[0], facts[1], factor.why, factor.remedy)


def _is_allowed(factor: Factor, value: object) -> bool:
    allowed = factor.only
    return allowed is None or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _neither(a: Account, b: Account) -> list[str]:
    """What neither side states, as far as the sources themselves say what they leave out."""
    stated = a.facts.keys() | b.facts.keys()
    names = [name for name in sorted(a.unstated | b.unstated, key=_place) if name not in stated]
    return [name for name in names if not (is_draft(name) and (a.is_plain or b.is_plain))]


def _unstated(a: Account, b: Account) -> Iterable[Difference]:
    """Unstated factors that leave the verdict open."""
    neither = _neither(a, b)
    for name in neither:
        if name in (*ESSENTIAL, "draft_budget"):
            yield Difference(name, "unknown", None, None, why_it_matters(name), f"ask the source for {name}")
    if a.family != b.family and (rest := _inessential(neither)):
        why = f"two sources, and neither says: {', '.join(rest)}"
        yield Difference(f"{len(rest)} other factors", "unknown", None, None, why, "ask the sources")


def _inessential(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in ESSENTIAL and not is_draft(name)]


def _notes(a: Account, b: Account) -> Iterable[str]:
    for side, account in (("A", a), ("B", b)):
        yield from (f"{side}: {note}" for note in account.notes)
    for name in sorted(a.harmless.keys() | b.harmless.keys()):
        one, two = a.harmless.get(name), b.harmless.get(name)
        if one != two:
            yield f"{name} differs ({one or 'not given'} against {two or 'not given'}); it does not touch decoding"
    if a.family == b.family and (rest := _inessential(_neither(a, b))):
        yield f"not stated, and held as far as the source says: {', '.join(rest)}"
    if a.source == b.source == "results" and a.family == b.family:
        yield "samerig report compares these two request by request too: prompts, lengths, load, clocks"
    if "command" in (a.source, b.source):
        yield OUTSIDE_COMMANDS
    if any(_is_long_chain(side) for side in (a, b)) and not all(side.method in SERIAL for side in (a, b)):
        yield "equal budgets are not equal work: one side drafts in series, the other in one pass; sweep the budget of each"


def _is_long_chain(account: Account) -> bool:
    depth = account.value("draft_depth") or account.value("draft_budget")
    return account.method in SERIAL and isinstance(depth, int) and depth > LONG_CHAIN
