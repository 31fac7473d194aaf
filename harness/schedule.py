"""What is measured, and in what order: blocks, servings, cells, and the content hash that names a cell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.baselines import plain_of
from harness.config import Arm, PromptSet, Run

A_A = "plain2"


@dataclass(frozen=True, slots=True)
class Cell:
    """Block x arm x prompt set x concurrency: the unit that is written, skipped and compared."""

    cell_id: str
    prompt_set: PromptSet
    concurrency: int


@dataclass(frozen=True, slots=True)
class Serving:
    """One launch of an arm in a block, and the cells it is launched for, lowest concurrency first."""

    block: int
    order: int
    arm_name: str
    arm: Arm
    cells: tuple[Cell, ...]


def plan_servings(run: Run, code_hash: str) -> list[Serving]:
    """Every serving of the run in the order in which it is launched."""
    arms = arms_with_control(run)
    planned = []
    for block in range(run.protocol.blocks):
        for order, name in enumerate(arm_order(tuple(arms), block)):
            cells = _cells(run, code_hash, block, name, arms[name])
            planned.append(Serving(block, order, name, arms[name], cells))
    return planned


def arms_with_control(run: Run) -> dict[str, Arm]:
    """The arms of the run and, if the protocol asks for it, `plain2`: plain once more, whose difference is the noise floor.

    Raises ValueError when an arm already has that name.
    """
    arms = dict(run.arms)
    if run.protocol.a_a:
        if A_A in arms:
            raise ValueError(f"arms.{A_A}: the name is taken by the A/A arm that protocol.a_a adds; rename the arm")
        arms[A_A] = arms[plain_of(run)].model_copy(update={"label": "plain (A/A)"})
    return arms


def arm_order(names: Sequence[str], block: int) -> tuple[str, ...]:
    """Arms of one block, rotated by one place per block, so that each arm takes each place as often. Two give A B, B A, ..."""
    shift = block % len(names)
    return (*names[shift:], *names[:shift])


def cell_id(run: Run, code_hash: str, block: int, arm_name: str, arm: Arm, prompt_set: PromptSet, concurrency: int) -> str:
    """sha256 over all that a cell's rows depend on. Other arms, the run's name and summary are left out."""
    shared = run.model_dump(mode="json", include={"machine", "engine", "target", "sampler", "protocol"})
    workload = run.workload.model_dump(mode="json", exclude={"name", "sets"})
    parts = {
        **shared,
        "workload": workload,
        "set": prompt_set.model_dump(mode="json"),
        "arm_name": arm_name,
        "arm": arm.model_dump(mode="json"),
        "block": block,
        "concurrency": concurrency,
        "code": code_hash,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _cells(run: Run, code_hash: str, block: int, name: str, arm: Arm) -> tuple[Cell, ...]:
    return tuple(
        Cell(cell_id(run, code_hash, block, name, arm, prompt_set, concurrency), prompt_set, concurrency)
        for concurrency in sorted(set(run.concurrency))
        for prompt_set in run.workload.sets
    )
