"""Which arm to serve, for a traffic profile: from measured cells only, with how sure that is.

Rule. An arm can be recommended when no cell of the profile is confounded, its requests succeed, and its whole interval on the
profile lies above 1. Primary is the fastest of those, fallback the next one of another method; plain where there is none. One
block has no interval, so nothing can be recommended from it, only told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.report.run import FinishedRun
from harness.stats import CLAIM_BLOCKS, SMALLEST_EFFECT
from harness.verdict_profile import Measured, Profile, Weighed, label, weigh

ENOUGH = 0.8  # of a profile's tokens must have been measured
NOTHING = {
    "unmeasured": "the run has no cell of this profile: nothing is recommended",
    "descriptive": "one block has no interval: nothing is recommended, the speedups are descriptive",
    "screen": "no arm's interval lies above 1 on this profile, so {plain} it is",
    "claim": "no arm's interval lies above 1 on this profile, so {plain} it is",
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What a run says about a profile. `sure` is `claim`, `screen`, `descriptive` or `unmeasured`; `reasons` are sentences."""

    profile: Profile
    primary: str
    fallback: str
    baseline: str
    sure: str
    weighed: tuple[Weighed, ...]
    reasons: tuple[str, ...]


def recommend(run: FinishedRun, profile: Profile) -> Recommendation:
    """Primary, fallback and baseline for one profile. Raises ValueError when the run has no plain arm."""
    if run.plain is None:
        raise ValueError(f"run {run.run_id}: has no plain arm, so nothing can be recommended; measure one beside it")
    weighed = sorted(weigh(run, profile), key=lambda one: -(one.speedup or 0.0))
    good = [one for one in weighed if _is_faster(one)]
    primary = good[0].arm if good else run.plain
    others = [one.arm for one in good if run.methods[one.arm] != run.methods[primary]]
    fallback = others[0] if others else run.plain
    sure = _grade([m for one in weighed for m in one.measured])
    reasons = tuple(_reasons(run, weighed, good, sure))
    return Recommendation(profile, primary, fallback, run.plain, sure, tuple(weighed), reasons)


def _is_faster(one: Weighed) -> bool:
    """Faster by the rule above, and by more than the smallest effect that the report claims."""
    return (
        not one.problems
        and one.covered >= ENOUGH
        and one.low is not None
        and one.low > 1
        and (one.speedup or 0.0) > 1 + SMALLEST_EFFECT
    )


def _grade(measured: list[Measured]) -> str:
    """The weakest cell decides: a cell without an interval is descriptive, five blocks everywhere can carry a claim."""
    if not measured:
        return "unmeasured"
    if any(m.speedup.low is None for m in measured):
        return "descriptive"
    return "claim" if all((m.speedup.n or 0) >= CLAIM_BLOCKS for m in measured) else "screen"


def _reasons(run: FinishedRun, weighed: list[Weighed], good: list[Weighed], sure: str) -> Iterator[str]:
    for one in weighed:
        yield from (f"{one.arm}: {problem}" for problem in one.problems[:2])
        if one.covered < 1:
            told = f"{100 * one.covered:.0f} % of the profile's tokens were measured"
            yield f"{one.arm}: {told}" + ("" if one.covered >= ENOUGH else f"; {100 * ENOUGH:.0f} % are needed")
        worst = one.worst
        if worst is not None and worst.speedup.high is not None and worst.speedup.high < 1:
            yield f"{one.arm}: slower than {run.plain} in {label(worst.part)}, {worst.speedup.value:.2f}x"
    if not good:
        yield NOTHING[sure].format(plain=run.plain)
    if len(good) > 1 and (good[0].low or 0) <= (good[1].high or 0):
        yield f"{good[0].arm} and {good[1].arm} are not told apart: their intervals overlap"
    if run.a_a is None and sure == "claim":
        yield "no A/A arm: the noise floor of this machine is not known"
