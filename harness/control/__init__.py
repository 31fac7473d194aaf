"""Was only the drafter swapped? Two arms compared by what was found in their rows, not by what was asked for.

`treatment` factors may differ. `implied` ones the engine moves because of the drafter: pin them in the rig so that plain pays
the same, or report them as part of the treatment. Any other difference confounds; what could not be read is unknown. Names,
classes, reasons and remedies are the table `factors.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from harness.control.clocks import clocks
from harness.control.findings import Control, Finding, Side, Verdict
from harness.control.prompts import cache, lengths, prompts
from harness.control.requests import each_side, sources_agree
from harness.control.resolved import resolved_factors
from harness.control.servings import builds, cpu_neighbours, flags, host, pace, sessions, validity

__all__ = ["Control", "Finding", "Side", "Verdict", "compare", "every_pair", "sources_agree"]


def compare(plain: Side, arm: Side, concurrency: int) -> Control:
    """Audit one arm against another, plain as a rule, at one concurrency. Raises ValueError when a side has no serving."""
    if not plain.servings or not arm.servings:
        raise ValueError("compare: an arm without a serving cannot be compared; run it first")
    findings = [
        *resolved_factors(plain, arm),
        *builds(plain, arm),
        *validity(plain, arm, concurrency),
        *sessions(plain, arm, concurrency),
        *host(plain, arm),
        *cpu_neighbours(plain, arm, concurrency),
        *pace(plain, arm),
        *clocks(plain, arm, concurrency),
        *flags(plain, arm),
        *prompts(plain, arm, concurrency),
        *lengths(plain, arm, concurrency),
        *cache(plain, arm, concurrency),
        *each_side(plain, arm, concurrency),
    ]
    return Control(str(arm.servings[0]["arm"]), str(plain.servings[0]["arm"]), tuple(findings))


def every_pair(sides: Mapping[str, Side], concurrency: int) -> tuple[Control, ...]:
    """The audits of all pairs of arms that have a serving, in the order of `sides`."""
    measured = [side for side in sides.values() if side.servings]
    return tuple(compare(one, other, concurrency) for one, other in combinations(measured, 2))
