"""What the source of a published rig says beyond the rig itself: the `published` block of a rig file.

It is no part of the experiment and not in the configuration's hash. Facts of a source are in `results/published/*.csv` too: a
claim names its row there, and a test compares the two.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from harness.config import Model, Positive, Run
from harness.config_errors import ConfigError, near

Scalar = str | int | float | bool | None
# A published number: one value, or a range [low, high].
Quantity = float | tuple[float, float] | None


class Claim(Model):
    """One published result of an arm. `row` is where it stands in results/published: `seed:22` or `claims:61`, from 1.

    `task` null or `concurrency` null: not stated. `over` names what a speedup is relative to where that is not plain. `bound`
    says that the number is a limit, not an expectation. `gain` is a printed gain, 0.64 for +64 %; `baseline_tok_s` what
    the source compares with where no row of its own holds it. Acceptance lengths count the bonus, rates do not.
    """

    row: str = Field(pattern=r"^(seed|claims):\d+$")
    arm: str
    task: str | None = None
    concurrency: Positive | None = None
    tok_s: Quantity = None
    speedup: Quantity = None
    over: str | None = None
    acceptance_length: Quantity = None
    acceptance_rate: Quantity = None
    gain: Quantity = None
    baseline_tok_s: Quantity = None
    bound: Literal["up to", "over", "about"] | None = None
    note: str | None = None


class Published(Model):
    """What a source says of its rig.

    `as_published` holds commands word for word, by arm. `factors` are stated facts that no rig can hold because the source's
    arms differ in them, by arm and canonical factor; a null is "not stated for this arm". `unstated` maps a factor that the
    source does not state to what this rig fills in, null where it fills in nothing. `tasks` maps a task as printed to the
    prompt set that stands for it here; `metrics` says which of our metrics the source's number is. `held_fixed` and `moved` are
    the summary of results/published/seed_claims.csv. `left_out` names arms that a replay could not run here.
    """

    as_published: dict[str, tuple[str, ...]] = Field({})
    held_fixed: str | None = None
    moved: str | None = None
    factors: dict[str, dict[str, Scalar]] = Field({})
    unstated: dict[str, Scalar] = Field({})
    tasks: dict[str, str] = Field({})
    metrics: dict[Literal["tok_s", "acceptance_length", "acceptance_rate"], str] = Field({})
    left_out: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = Field(min_length=1)


def published_of(run: Run) -> Published | None:
    """The judged block of a run, null when it has none. Raises ConfigError that names the key."""
    if run.published is None:
        return None
    try:
        found = Published.model_validate(run.published)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["published", *(str(step) for step in first["loc"])])
        raise ConfigError(f"{key}: {first['msg'].lower()}; harness/published.py documents the block") from None
    named = [*(claim.arm for claim in found.claims), *found.factors, *found.as_published]
    if unknown := [name for name in named if name not in run.arms and name not in found.left_out]:
        raise ConfigError(f"published: '{unknown[0]}' is no arm of this rig; {near(unknown[0], run.arms)}")
    return found
