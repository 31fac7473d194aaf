"""Two baselines of one run: plain as every other arm is served, and plain at its best, with engine flags of its own.

The rig pins what speculation would move by itself, so that plain pays it too: `plain` is the matched baseline, over which the
drafter alone differs. What plain could do without those pins is asked by one more plain arm that states `engine_flags`
(`rigs/arm/plain_best.yaml`): flags laid over the rig's for that arm alone, null for "left to the engine". Two settings that an
adapter takes from the rig's own fields are named as there: `max_running_requests` and `prefill_chunk`.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.config import Arm, Engine, Run
from harness.config_errors import ConfigError

Value = str | int | float | bool | None
FIELDS = ("max_running_requests", "prefill_chunk")


def plain_of(run: Run) -> str:
    """The baseline of the table and of every verdict: the first plain arm that is served as all others are."""
    return next(name for name, arm in run.arms.items() if arm.method == "plain" and arm.engine_flags is None)


def for_arm(run: Run, arm: Arm) -> Run:
    """The run as this arm's engine gets it: the very same for every arm without engine flags of its own."""
    if arm.engine_flags is None:
        return run
    fields = {name: value for name, value in arm.engine_flags.items() if name in FIELDS}
    flags = {**run.engine.flags, **{name: value for name, value in arm.engine_flags.items() if name not in FIELDS}}
    flags = {name: value for name, value in flags.items() if value is not None or name not in arm.engine_flags}
    return run.model_copy(update={"engine": run.engine.model_copy(update={**fields, "flags": flags})})


def moved_flags(engine: Mapping[str, Value], flags: Mapping[str, Value], arm: Mapping[str, Value]) -> dict[str, str]:
    """What an arm's engine flags change, in words: `async-scheduling` is "true, where the rig has false".

    `engine` holds the rig's fields by name. A flag that is null, or false, is left out of a command like one that nobody names.
    """
    rig = {**{name: engine.get(name) for name in FIELDS}, **flags}
    moved = {name: value for name, value in arm.items() if _moves(rig, name, value)}
    return {name: f"{_word(value)}, where the rig has {_word(rig.get(name))}" for name, value in moved.items()}


def _moves(rig: Mapping[str, Value], name: str, value: Value) -> bool:
    return value != rig.get(name) and not (_is_off(value) and _is_off(rig.get(name)))


def _is_off(value: Value) -> bool:
    return value is None or value is False


def _word(value: Value) -> str:
    return "none of its own" if _is_off(value) else str(value).lower() if isinstance(value, bool) else str(value)


def moved_by(run: Run, arm: Arm) -> dict[str, str]:
    """`moved_flags` of an arm of a run; empty for every arm without flags of its own."""
    return moved_flags(run.engine.model_dump(), run.engine.flags, arm.engine_flags or {})


def check_baselines(run: Run) -> None:
    """Raises ConfigError for a second best baseline, one that is no other than plain, and a setting that cannot be."""
    stated = {name: arm for name, arm in run.arms.items() if arm.engine_flags is not None}
    if len(stated) > 1:
        raise ConfigError(f"arms: {' and '.join(stated)} both have engine_flags; a run has one plain at its best, remove one")
    for name, arm in stated.items():
        _check(run, f"arms.{name}.engine_flags", arm)


def _check(run: Run, key: str, arm: Arm) -> None:
    for name, value in (arm.engine_flags or {}).items():
        if name in FIELDS and (type(value) is not int or value < 1):
            raise ConfigError(f"{key}.{name}: should be a whole number of at least 1, got {value}; give one, or leave it out")
    served: Engine = for_arm(run, arm).engine
    if max(run.concurrency) > served.max_running_requests:
        raise ConfigError(
            f"{key}.max_running_requests: {served.max_running_requests} is below concurrency {max(run.concurrency)}; raise it"
        )
    if not moved_by(run, arm):
        raise ConfigError(
            f"{key}: changes nothing of what this rig gives its engine, so the arm would be plain once more; "
            "state a flag that does, or leave the arm out"
        )
