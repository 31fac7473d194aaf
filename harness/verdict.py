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
from harness.verdict_profile import Profile, Weighed, label, weigh

ENOUGH = 0.8  # of a profile's tokens must have been measured
NOTHING = {
    "unmeasured": "the run has no cell of this profile: nothing is recommended",
    "uncovered": "too little of this profile was measured: nothing is recommended",
    "descriptive": "one block has no interval: nothing is recommended, the speedups are descriptive",
}
NONE_ABOVE = "no arm's interval lies above 1 on this profile, so {plain} it is"
NONE_SOUND = "no arm is known to be faster by more than {least:g} % and free of what is told above, so {plain} it is"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What a run says about a profile. `reasons` are sentences.

    `sure` is `claim`, `no_floor` (enough blocks, but no A/A arm), `screen`, `descriptive`, `uncovered` or `unmeasured`.
    """

    profile: Profile
    primary: str
    fallback: str
    baseline: str
    sure: str
    weighed: tuple[Weighed, ...]
    reasons: tuple[str, ...]

    @property
    def is_recommended(self) -> bool:
        """Whether an arm is, rather than plain for want of one."""
        return self.primary != self.baseline


def recommend(run: FinishedRun, profile: Profile) -> Recommendation:
    """Primary, fallback and baseline for one profile. Raises ValueError when the run has no plain arm."""
    if run.plain is None:
        raise ValueError(f"run {run.run_id}: has no plain arm, so nothing can be recommended; measure one beside it")
    weighed = sorted(weigh(run, profile), key=lambda one: -(one.speedup or 0.0))
    good = [one for one in weighed if _is_faster(one)]
    primary = good[0].arm if good else run.plain
    others = [one.arm for one in good if run.methods[one.arm] != run.methods[primary]]
    fallback = others[0] if others else run.plain
    sure = _grade(run, weighed)
    reasons = tuple(_reasons(run, weighed, good, sure))
    return Recommendation(profile, primary, fallback, run.plain, sure, tuple(weighed), reasons)


def _is_faster(one: Weighed) -> bool:
    """Faster by the rule above, and by more than the smallest effect that the report claims."""
    return (
        not one.problems
        and one.is_comparable
        and one.covered >= ENOUGH
        and one.low is not None
        and one.low > 1
        and (one.speedup or 0.0) > 1 + SMALLEST_EFFECT
    )


def _grade(run: FinishedRun, weighed: list[Weighed]) -> str:
    """The weakest cell decides: a cell without an interval is descriptive, five blocks everywhere and A/A can carry a claim."""
    measured = [m for one in weighed for m in one.measured]
    if not measured:
        return "unmeasured"
    if all(one.covered < ENOUGH for one in weighed):
        return "uncovered"
    if any(m.speedup.low is None for m in measured):
        return "descriptive"
    if any((m.speedup.n or 0) < CLAIM_BLOCKS for m in measured):
        return "screen"
    return "claim" if run.a_a is not None else "no_floor"


def _reasons(run: FinishedRun, weighed: list[Weighed], good: list[Weighed], sure: str) -> Iterator[str]:
    for one in weighed:
        yield from (f"{one.arm}: {problem}" for problem in one.problems[:2])
    yield from _coverage(weighed)
    for one in weighed:
        worst = one.worst
        if worst is not None and worst.speedup.high is not None and worst.speedup.high < 1:
            yield f"{one.arm}: slower than {run.plain} in {label(worst.part)}, {worst.speedup.value:.2f}x"
    if not good:
        yield _nothing(weighed, sure).format(plain=run.plain, least=100 * SMALLEST_EFFECT)
    if len(good) > 1 and (good[0].low or 0) <= (good[1].high or 0):
        yield f"{good[0].arm} and {good[1].arm} are not told apart: their intervals overlap"
    if sure == "no_floor":
        yield "no A/A arm: the noise floor of this machine is not known"


def _nothing(weighed: list[Weighed], sure: str) -> str:
    """Why no arm is recommended. Where every pair is confounded, no speedup was told that could be descriptive or below 1."""
    if any(one.measured for one in weighed) and all(one.speedup is None for one in weighed):
        return NONE_SOUND
    is_above = any(one.low is not None and one.low > 1 for one in weighed)
    return NOTHING.get(sure, NONE_SOUND if is_above else NONE_ABOVE)


def _coverage(weighed: list[Weighed]) -> Iterator[str]:
    """How much of the profile was measured, where not all was: arms of which the same is to be said stand together."""
    arms: dict[float, list[str]] = {}
    for one in weighed:
        if 0 < one.covered < 1:
            arms.setdefault(one.covered, []).append(one.arm)
    for covered, names in arms.items():
        told = f"{', '.join(names)}: {100 * covered:.0f} % of the profile's tokens were measured"
        yield told + ("" if covered >= ENOUGH else f"; {100 * ENOUGH:.0f} % are needed")
