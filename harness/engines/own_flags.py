"""Engine flags that one plain arm states for itself (`harness.baselines`), against the command that they end up in."""

from __future__ import annotations

from collections.abc import Sequence

from harness.baselines import FIELDS
from harness.config import Arm, Run
from harness.engines.base import ArmError, Scalar

DRAFTING = ("spec-", "speculative-")


def check_own_flags(run: Run, arm: Arm, base: Sequence[str]) -> None:
    """Raises ArmError for a flag that cannot be this arm's own. `run` is the arm's (`for_arm`), `base` its base command.

    An engine takes the last of two flags, so one that the adapter writes too would win over what the plan says is pinned.
    """
    for name, value in (arm.engine_flags or {}).items():
        if problem := _problem(run, arm, name, value, base):
            raise ArmError(f"engine_flags.{name}: {problem}")


def _problem(run: Run, arm: Arm, name: str, value: Scalar, base: Sequence[str]) -> str | None:
    flag = f"--{name.replace('_', '-')}"
    against = f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"
    is_given = value is not None and value is not False
    if run.engine.url or arm.options.get("url"):
        return "the server runs already and takes no flags; let the rig launch it, or leave the arm out"
    if name.startswith(DRAFTING):
        return "a plain arm drafts nothing; remove it, or add an arm of that method"
    if name in FIELDS:
        return None
    if sum(word.replace("_", "-") == flag for word in base) > is_given or (
        is_given and against in base and against[2:] not in run.engine.flags
    ):
        return f"the adapter sets this from a field of the rig; give {' or '.join(FIELDS)}, or change the rig for every arm"
    if is_given and against in base:
        return f"the rig says {against}; set engine_flags.{against[2:]} to null beside it"
    return None
