"""Was only the drafter swapped? Two arms compared by what was found in their rows, not by what was asked for.

`treatment` factors may differ. `implied` ones the engine moves because of the drafter: pin them in the rig so that plain pays
the same, or report them as part of the treatment. Any other difference confounds; what could not be read is unknown.
"""

from __future__ import annotations

from harness.control.findings import Control, Finding, Side, Verdict
from harness.control.requests import cache, each_side, prompts, sources_agree
from harness.control.servings import builds, host, is_treatment, resolved_factors, sessions

__all__ = ["Control", "Finding", "Side", "Verdict", "compare", "is_treatment", "sources_agree"]


def compare(plain: Side, arm: Side, concurrency: int) -> Control:
    """Audit one arm against plain at one concurrency. Raises ValueError when a side has no serving."""
    if not plain.servings or not arm.servings:
        raise ValueError("compare: an arm without a serving cannot be compared; run it first")
    findings = [
        *resolved_factors(plain, arm),
        *builds(plain, arm),
        *sessions(plain, arm, concurrency),
        *host(plain, arm),
        *prompts(plain, arm, concurrency),
        *cache(plain, arm, concurrency),
        *each_side(plain, arm, concurrency),
    ]
    return Control(str(arm.servings[0]["arm"]), str(plain.servings[0]["arm"]), tuple(findings))
