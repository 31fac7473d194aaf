"""What an engine holds beside what its rig asks for: told wherever the two are not the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.config import Run
from harness.engines.base import Scalar

if TYPE_CHECKING:
    from harness.plan import Plan


def slot_tokens(run: Run) -> int:
    """Context of one slot of an engine that has slots: the target's, or what the rig's cache has room for."""
    return min(run.target.context, run.engine.kv_tokens // run.engine.max_running_requests)


def beside_asked(run: Run, pinned: Mapping[str, Scalar]) -> dict[str, str]:
    """Factor -> what the rig asks for and why less is held, for each size that an engine of slots or blocks pins otherwise.

    Slots each hold one context, so a rig may ask for more tokens than they hold, or for so few that a slot is shorter than the
    target's context.
    """
    tokens, slot, slots = pinned.get("kv_tokens"), pinned.get("context_limit"), run.engine.max_running_requests
    told = {}
    if isinstance(tokens, int) and tokens != run.engine.kv_tokens:
        why = f": {slots} slots of {slot} tokens" if isinstance(slot, int) and slot * slots == tokens else ""
        told["kv_tokens"] = f"engine.kv_tokens asks for {run.engine.kv_tokens}{why}"
    if isinstance(slot, int) and slot < run.target.context:
        told["context_limit"] = f"target.context is {run.target.context}; a slot's share of engine.kv_tokens is less"
    return told


def too_small(run: Run, pinned: Mapping[str, Scalar]) -> list[str]:
    """That a slot cannot hold what the workload lets an answer be, whatever its prompt: no request could be served."""
    slot = pinned.get("context_limit")
    longest = max(run.max_tokens(one) for one in run.workload.sets)
    if not isinstance(slot, int) or slot > longest:
        return []
    least = run.engine.max_running_requests * run.target.context
    return [f"engine.kv_tokens: a slot holds {slot} tokens, an answer may take {longest}; give {least}"]


def held_lines(plan: Plan) -> list[str]:
    """The same as lines, for every size that the arms of a plan hold equal."""
    pinned = next(iter(plan.arms.values())).pinned if plan.arms else {}
    return [f"{factor} {pinned[factor]} held: {told}" for factor, told in beside_asked(plan.composed.run, pinned).items()]
