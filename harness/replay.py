"""Somebody else's rig on this machine: what is substituted, what that moves, and what has to be left out.

Without substitutions a rig runs as it stands, or not at all. With them, what does not exist here (a drafter for the substituted
target, a prompt set) is left out by name, and every key that differs from the rig as published is listed as moved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from harness import probe
from harness.baselines import for_arm, plain_of
from harness.compose import ComposedRun, ConfigError, compose_run, composed_of, load_dotted, missing_parts
from harness.config import Arm, PromptSet, Run
from harness.config_errors import near
from harness.engines.base import ArmError, Engine
from harness.replay_fit import fitted, protocol_for, without_unfilled
from harness.rigs import PUBLISHED, RIGS
from harness.workloads import manifest

GROUPS = ("machine", "engine", "target", "workload", "protocol", "sampler")
NOT_RIG = {"name", "summary", "source", "published"}
PLANNING = {"machine": {"memory_bytes", "reserved_bytes"}, "target": {"size"}}  # for estimates before a launch only
FULL = "_full"  # the whole of a set that this repository carries a part of


@dataclass(frozen=True, slots=True)
class Moved:
    """One key that differs from the rig as published. `why` is `substituted`, or that it follows from one."""

    key: str
    was: Any
    now: Any
    why: str


@dataclass(frozen=True, slots=True)
class Replay:
    """A rig as published, the run that stands for it here, every key that moved, and what was left out with its reason."""

    published: ComposedRun
    composed: ComposedRun
    moved: tuple[Moved, ...]
    skipped: tuple[str, ...]


def plan_replay(rig: str, substitutions: Sequence[str] = ()) -> Replay:
    """Compose the rig as it stands and with substitutions. Raises ConfigError; launches nothing."""
    original = compose_run(rig)
    if not substitutions:
        return Replay(original, original, (), ())
    overrides = [item for text in substitutions for item in resolve(text)]
    first = compose_run(rig, overrides)
    follow = list(_consequences(original.run, first.run, overrides))
    run, skipped = _without_missing(original.run, compose_run(rig, [*overrides, *follow]).run, _keys(overrides))
    composed = composed_of(run, rig, [*overrides, *follow])
    return Replay(original, composed, tuple(moved(original.run, run, first.run, overrides)), tuple(skipped))


def resolve(substitution: str) -> list[str]:
    """Hydra overrides of one substitution. `machine=auto` is this machine; an option's name may be cut at an underscore."""
    key, _, value = substitution.partition("=")
    if key not in GROUPS:
        return [substitution]
    if (key, value) == ("machine", "auto"):
        return _this_machine()
    options = _options(key)
    starts = [option for option in options if option.startswith(f"{value}_")]  # whole words: h20 is not h200
    if value in options or len(starts) != 1:
        if value not in options:
            raise ConfigError(f"{key}: no option '{value}'; {near(value, starts or options)}")
        return [substitution]
    return [f"{key}={starts[0]}"]


def _options(group: str) -> list[str]:
    folders = (RIGS / group, RIGS / PUBLISHED / group)
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def _this_machine() -> list[str]:
    """A CPU, or the option for this machine's GPU; a GPU without an option takes h200's and is named."""
    gpus = probe.gpus()
    if not gpus:
        return ["machine=cpu"]
    name, count = str(gpus[0].facts()[f"gpu{gpus[0].index}_name"]), len(gpus)
    for option in _options("machine"):
        facts = _option("machine", option)
        if facts["gpu"] and facts["gpu"] in name and facts["gpu_count"] == count:
            return [f"machine={option}"]
    return ["machine=h200", f"machine.gpu='{name}'", f"machine.gpu_count={count}", "machine.memory_bytes=null"]


def _option(group: str, name: str) -> dict[str, Any]:
    path = next(p for p in (RIGS / PUBLISHED / group / f"{name}.yaml", RIGS / group / f"{name}.yaml") if p.is_file())
    facts: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return facts


def _consequences(original: Run, run: Run, overrides: Sequence[str]) -> Iterator[str]:
    """What must change with machine, engine or target, unless it was given: graphs on a CPU, another engine's flags, a KV dtype
    that the target does not have, checkpoints of drafters for another target, a protocol that a CPU can carry."""
    given = _keys(overrides)
    yield from protocol_for(original, run, given)
    if run.machine.kind == "cpu" and run.engine.graphs != "off" and "engine.graphs" not in given:
        yield from ("engine.graphs='off'", "engine.graph_batch_sizes=[]")
    if run.engine.adapter != original.engine.adapter:
        chosen = next(text.partition("=")[2] for text in overrides if text.startswith("engine="))
        own = _option("engine", chosen)["flags"]
        yield from (f"~engine.flags.{flag}" for flag in run.engine.flags if flag not in own)
    if run.target.name != original.target.name:
        if run.engine.kv_dtype not in ("auto", run.target.dtype) and "engine.kv_dtype" not in given:
            yield f"engine.kv_dtype={run.target.dtype}"
        yield from _checkpoints(run, given)


def _keys(overrides: Sequence[str]) -> set[str]:
    return {text.lstrip("+~").partition("=")[0] for text in overrides}


def _checkpoints(run: Run, given: set[str]) -> Iterator[str]:
    """The checkpoint that this repository's own arm of the same drafter names."""
    own = {facts["drafter"]: facts["checkpoint"] for facts in (_option("arm", name) for name in _options("arm"))}
    for name, arm in run.arms.items():
        if arm.needs_checkpoint and arm.drafter in own and f"arms.{name}.checkpoint" not in given:
            for field, value in own[arm.drafter].items():
                yield f"arms.{name}.checkpoint.{field}={'null' if value is None else value}"


def _without_missing(original: Run, run: Run, given: set[str]) -> tuple[Run, list[str]]:
    """The run without arms, prompt sets and levels that cannot be had here, and a line for each; the rest made to fit."""
    sets, lines = _sets(run)
    if not sets:
        raise ConfigError("workload.sets: none of the rig's prompt sets is on this machine; add workload=standard")
    run = fitted(original, run.model_copy(update={"workload": run.workload.model_copy(update={"sets": sets})}))
    run, levels = without_unfilled(original, run, given)
    arms, reasons = _arms(run)
    published = run.published and {**run.published, "left_out": [name for name in run.arms if name not in arms]}
    return run.model_copy(update={"arms": arms, "published": published}), [*lines, *levels, *reasons]


def _sets(run: Run) -> tuple[tuple[PromptSet, ...], list[str]]:
    known, kept, lines = manifest(), [], []
    for prompt_set in run.workload.sets:
        name = prompt_set.set
        part = name.removesuffix(FULL)
        if name in known:
            kept.append(prompt_set)
        elif part in known:
            kept.append(prompt_set.model_copy(update={"set": part}))
        else:
            lines.append(f"prompt set {name}: not on this machine; python -m workloads.build --hub builds those it knows")
    return tuple(kept), lines


def _arms(run: Run) -> tuple[dict[str, Arm], list[str]]:
    """Arms that lack nothing of their own. What plain lacks too is the machine's or the engine's, and stays an error."""
    lacking = missing_parts(run)
    try:
        adapter = load_dotted(run.engine.adapter)
    except ConfigError:
        return run.arms, []
    shared = set(adapter.plan(run, run.arms[plain_of(run)]).missing)
    kept, lines = {}, []
    for name, arm in run.arms.items():
        reasons = [line for line in lacking if line.startswith(f"arms.{name}.")]
        reasons += [line for line in _lacks(adapter, run, name, arm) if line not in shared]
        if reasons:
            lines.append(f"arm {name}: {reasons[0]}")
        else:
            kept[name] = arm
    return kept, lines


def _lacks(adapter: type[Engine], run: Run, name: str, arm: Arm) -> tuple[str, ...]:
    """What one arm lacks, or why it cannot be on this rig, such as a budget beyond the block of the drafter that is here."""
    try:
        return adapter.plan(for_arm(run, arm), arm).missing
    except ArmError as error:
        return (f"arms.{name}.{error}",)


def moved(original: Run, run: Run, asked: Run, overrides: Sequence[str]) -> Iterator[Moved]:
    """Every key of the rig that differs; `asked` is the rig with the substitutions alone, before anything followed from them.
    Arms and prompt sets that were left out are told elsewhere, not here."""
    kept = {prompt_set.set.removesuffix(FULL) for prompt_set in run.workload.sets}
    was, now, wanted = (dict(_leaves(_keyed(one, kept))) for one in (original, run, asked))
    given = set(_given_keys(overrides))
    for key in was | now:
        before, after = was.get(key), now.get(key)
        if before == after or (key.startswith("arms.") and key.split(".")[1] not in run.arms):
            continue
        inside = any(key == one or key.startswith(f"{one}.") for one in given) and wanted.get(key) == after
        yield Moved(key, before, after, "substituted" if inside else "follows from a substitution")


def _given_keys(overrides: Sequence[str]) -> Iterator[str]:
    """Keys that the overrides set themselves: of a group, what its option states and does not leave to the rig."""
    for text in overrides:
        key, _, value = text.lstrip("+~").partition("=")
        own = _option(key, value) if key in GROUPS else {}
        yield from (f"{key}.{field}" for field, stated in own.items() if stated != "???") if own else (key,)


def _keyed(run: Run, sets: set[str]) -> dict[str, Any]:
    """The rig as data, prompt sets by name, without what is only there to plan with."""
    data = run.model_dump(mode="json", exclude=NOT_RIG)
    for group, fields in PLANNING.items():
        data[group] = {key: value for key, value in data[group].items() if key not in fields}
    listed = {one["set"].removesuffix(FULL): one for one in data["workload"]["sets"]}
    data["workload"]["sets"] = {name: one for name, one in listed.items() if name in sets}
    return data


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value) if isinstance(value, list) else value
