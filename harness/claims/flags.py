"""What to know before a published row is used: flags, each with its rule. A flag is a reason to look, not a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from harness.claims import arithmetic
from harness.claims.arithmetic import Printed
from harness.claims.numbers import Read

# Flags that arithmetic gives have the names and texts of `arithmetic.CHECKS`; `impossible` gathers those that cannot be true.
_ARITHMETIC: tuple[arithmetic.Check, ...] = (
    "speedup_mismatch",
    "rate_as_gain",
    "average_outside_parts",
    "length_outside_budget",
    "rate_outside_share",
    "beyond_bandwidth",
)
FLAGS: dict[str, str] = {
    "impossible": "cannot be true: an acceptance outside its limits, or a rate beyond the memory's bandwidth",
    **{check: arithmetic.CHECKS[check] for check in _ARITHMETIC},
    "relative_baseline": "the speedup is over another drafter, not over plain decoding",
    "cross_engine": "the baseline, or the other arm of the pair, ran on another engine",
    "moved_more": "the source or a reader states that more than the drafter moved",
    "forced_acceptance": "acceptance was simulated or forced, or that is suspected",
    "lossy": "the acceptance rule changes the output",
    "oracle": "an upper bound that no drafter reaches",
    "random_prompts": "random tokens or forced lengths: loops inflate acceptance",
    "contaminated": "the drafter remembers, or the prompts repeat themselves",
    "no_baseline": "the source gives no plain decoding to compare with",
    "shared_baseline": "one baseline serves several configurations",
    "tree": "drafts form a tree: the budget counts nodes, not a depth",
    "adaptive": "the budget changes during the run",
    "bound": "an upper or lower limit (up to, over), not an expectation",
    "about": "printed as approximate",
    "range": "one cell holds a range",
    "inferred": "part of the rig was inferred by a reader, not stated",
    "secondary": "read through somebody else's text",
    "not_reproduced": "somebody tried it again and got something else",
    "no_bonus": "the acceptance length leaves out the bonus token",
    "computed": "a number was computed by the reader, not printed",
    "repeated": "a row of the seed table whose measurement stands in the large table too",
    "noisy": "few prompts or few tokens",
    "unread": "a cell holds text that is no single number; see the printed column",
    "budget_not_stated": "an arm that drafts, without its budget",
    "hardware_not_stated": "no machine",
    "engine_not_stated": "no engine",
}
_NOTES = {
    "impossible": r"\bimpossible\b",
    "beyond_bandwidth": r"impossible \(.*GB.*/s",
    "cross_engine": r"engine AND precision differ|drafter AND engine|, engine,",
    "moved_more": r"\bAND\b(?! a)|precision differ|budgets differ|changes with concurrency|settings differ|settings not stated"
    r"|different concurrency|another person|, person|graph mode",
    "forced_acceptance": r"may force acceptance|simulated|simulated/forced|as the forced acceptance",
    "lossy": r"\blossy\b|relaxed acceptance",
    "random_prompts": r"random-token|random prompts|degenerate",
    "contaminated": r"near-deterministic|count-to|ngram artifact|repeat' prompt|prompt choice swings",
    "no_baseline": r"no (?:no-spec )?baseline",
    "shared_baseline": r"one baseline reused",
    "tree": r"\btree\b|DDTree|topk[2-9]",
    "adaptive": r"adaptive (?:verify|K)|dynamic K|adaptive-k",
    "inferred": r"inferred|assumed|likely",
    "secondary": r"secondary|third-party|digest|quoted| via |quoting",
    "not_reproduced": r"failed reproduction|unreplicated|fell to",
    "no_bonus": r"accepted per step|bonus excluded",
    "computed": r"computed here|implied",
    "noisy": r"very noisy|only per domain|2-4 queries",
}


def text_flags(row: Mapping[str, str]) -> Iterator[str]:
    """Flags that the words of a row give: its notes, method, budget, task, what moved."""
    notes = " | ".join(row.get(k, "") for k in ("notes", "moved", "draft_method", "draft_budget", "task", "source", "engine"))
    yield from _flags_of(notes)
    if "oracle" in row["draft_method"].lower() or "upper bound" in row.get("notes", ""):
        yield "oracle"


@cache
def _flags_of(notes: str) -> tuple[str, ...]:
    return tuple(flag for flag, pattern in _NOTES.items() if re.search(pattern, notes, 0 if flag == "moved_more" else re.I))


def number_flags(cells: Mapping[str, Read | None], texts: Mapping[str, str]) -> Iterator[str]:
    """Flags that the form of the numbers gives."""
    for name, text in texts.items():
        found = cells[name]
        if found is None:
            yield from ["unread"] if re.search(r"\d", text) else []
            continue
        if found.low != found.high:
            yield "range"
        if found.bound is not None:
            yield "about" if found.bound == "about" else "bound"
    speedup = cells["speedup"]
    if speedup is not None and speedup.over is not None:
        yield "relative_baseline"


def limits(length: Printed | None, rate: Printed | None, budget: int | None) -> Iterator[str]:
    """Flags of values outside their limits. Without a stated budget an acceptance length is only held to the lower one."""
    wide = budget if budget is not None else 10**6
    if length is not None and arithmetic.length_outside_budget(length, wide):
        yield from ("impossible", "length_outside_budget")
    if rate is not None and arithmetic.rate_outside_share(rate):
        yield from ("impossible", "rate_outside_share")
