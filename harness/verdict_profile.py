"""Traffic profiles: which share of the output tokens is asked at which concurrency, content class and depth of context.

An arm's speedup on a profile is the time that plain takes for one mixture of tokens over the time that the arm takes for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, model_validator

from harness.config import Model
from harness.metrics import EMPTY_LIMIT
from harness.replay_claims import at_depth
from harness.report.run import FinishedRun
from harness.report.summary import ALL, Number, cells, numbers
from harness.verdict_matrix import PROFILES, load

SHORT = "short"


class Profile(Model):
    """Weights are shares of output tokens and are scaled to one. `context` `short` is the sets without a depth, split by
    `classes`; a number is the depth of a long-context set."""

    name: str
    summary: str
    concurrency: dict[int, float]
    classes: dict[str, float]
    context: dict[str | int, float] = Field({SHORT: 1.0})

    @model_validator(mode="after")
    def _weighs_something(self) -> Profile:
        for key in ("concurrency", "classes", "context"):
            weights = getattr(self, key).values()
            if not sum(weights) > 0 or min(weights) < 0:
                raise ValueError(f"{key}: weights must not be negative, and must add up to more than nothing")
        return self


def load_profile(name: str) -> Profile:
    """A profile by its name in profiles/, or by the path of a YAML file. Raises ValueError that names the key."""
    return load(Profile, name, PROFILES)


def profile_names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of request in a profile: its label, and its share of the output tokens."""

    concurrency: int
    label: str
    depth: int | None
    share: float


def parts(profile: Profile) -> list[Part]:
    """Every combination that the profile gives weight to; shares add up to one."""
    levels, classes, context = (_scaled(w) for w in (profile.concurrency, profile.classes, profile.context))
    found = []
    for level, of_level in levels.items():
        for depth, of_depth in context.items():
            if depth == SHORT:
                found += [Part(int(level), str(name), None, of_level * of_depth * w) for name, w in classes.items()]
            else:
                found.append(Part(int(level), "long", int(depth), of_level * of_depth))
    return [part for part in found if part.share > 0]


def _scaled(weights: Mapping[Any, float]) -> dict[Any, float]:
    whole = sum(weights.values())
    return {key: weight / whole for key, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Measured:
    """One part of a profile as a run measured it for one arm. `plain_tps` is plain's rate, from which shares become time.

    `confounders` are the factors that make the pair not comparable: its speedup then counts nowhere.
    """

    part: Part
    plain_tps: float
    speedup: Number
    error_rate: float | None
    confounders: tuple[str, ...] = ()

    @property
    def is_confounded(self) -> bool:
        """By the control verdict that came with the speedup."""
        return self.speedup.is_confounded


@dataclass(frozen=True, slots=True)
class Weighed:
    """An arm on a profile. `low` and `high` hold whatever the cells have in common; null when a cell has no interval.

    The speedup is that of the cells whose pairs are comparable, null without one; `covered` is the share that was measured.
    """

    arm: str
    speedup: float | None
    low: float | None
    high: float | None
    covered: float
    measured: tuple[Measured, ...]

    @property
    def compared(self) -> tuple[Measured, ...]:
        """What the speedup is made of."""
        return tuple(m for m in self.measured if not m.is_confounded)

    @property
    def confounders(self) -> tuple[str, ...]:
        """Every factor that confounds some cell, once."""
        return tuple(dict.fromkeys(factor for m in self.measured if m.is_confounded for factor in m.confounders))

    @property
    def worst(self) -> Measured | None:
        return min(self.compared, key=lambda one: one.speedup.value or 0.0, default=None)

    @property
    def is_comparable(self) -> bool:
        """Whether no cell is confounded."""
        return len(self.compared) == len(self.measured)

    @property
    def problems(self) -> list[str]:
        """Why this arm may not be recommended, beside cells that are confounded."""
        failed = [m for m in self.measured if (m.error_rate or 0) > EMPTY_LIMIT]
        return [f"{100 * (m.error_rate or 0):.1f} % of requests fail in {label(m.part)}" for m in failed]


def label(part: Part) -> str:
    name = part.label if part.depth is None else f"{part.label}@{part.depth}"
    return f"{name} at concurrency {part.concurrency}"


def weigh(run: FinishedRun, profile: Profile) -> list[Weighed]:
    """Every arm but the plain ones on a profile, over the parts that the run measured for both."""
    tables = {depth: _numbers(at_depth(run, depth)) for depth in {part.depth for part in parts(profile)}}
    baselines = (run.plain, run.plain_best, run.a_a)
    return [_weighed(arm, list(_measured(arm, run, profile, tables))) for arm in run.methods if arm not in baselines]


Table = dict[tuple[int, str, str, str], Number]


def _numbers(run: FinishedRun) -> Table:
    found = {}
    for cell in cells(run):
        if cell.label == ALL:
            continue
        for number in numbers(cell):
            if number.metric in ("speedup", "output_tps", "error_rate"):
                found[cell.concurrency, cell.label, cell.arm, number.metric] = number
    return found


def _measured(arm: str, run: FinishedRun, profile: Profile, tables: dict[int | None, Table]) -> Iterator[Measured]:
    for part in parts(profile):
        table = tables[part.depth]
        speedup = table.get((part.concurrency, part.label, arm, "speedup"))
        plain = table.get((part.concurrency, part.label, str(run.plain), "output_tps"))
        errors = table.get((part.concurrency, part.label, arm, "error_rate"))
        if speedup is not None and speedup.value and plain is not None and plain.value:
            one = Measured(part, plain.value, speedup, errors.value if errors else None)
            yield replace(one, confounders=_confounders(at_depth(run, part.depth), arm, part)) if one.is_confounded else one


def _confounders(run: FinishedRun, arm: str, part: Part) -> tuple[str, ...]:
    control = run.control(arm, part.concurrency, (part.label,))
    return () if control is None else tuple(finding.factor for finding in control.of("confounder"))


def _weighed(arm: str, found: list[Measured]) -> Weighed:
    covered = sum(one.part.share for one in found)
    known = [one for one in found if not one.is_confounded]
    if not known:
        return Weighed(arm, None, None, None, covered, tuple(found))
    ends = [(one.speedup.low, one.speedup.high) for one in known]
    low = None if any(end[0] is None for end in ends) else _time_ratio(known, [end[0] or 0.0 for end in ends])
    high = None if any(end[1] is None for end in ends) else _time_ratio(known, [end[1] or 0.0 for end in ends])
    return Weighed(arm, _time_ratio(known, [one.speedup.value or 0.0 for one in known]), low, high, covered, tuple(found))


def _time_ratio(found: list[Measured], speedups: list[float]) -> float:
    """Plain's time for the mixture over the arm's: shares of tokens over plain's rate, and over the arm's."""
    times = [one.part.share / one.plain_tps for one in found]
    return sum(times) / sum(time / speedup for time, speedup in zip(times, speedups, strict=True))
