"""Where a rig's checkpoints are: on this disk, in the hub's cache, reachable, or nowhere; and whether they are pinned."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from harness.config import Run
from harness.fetch import fetch_command, tokenizer_command
from harness.rigs import ROOT

Told = tuple[str, Literal["ok", "warning", "fault", "unknown"], str, str]
_COMMIT = re.compile(r"[0-9a-f]{40}")
REACH_S = 5.0


def checkpoint_checks(run: Run, reach: Callable[[str], bool] | None = None) -> Iterator[Told]:
    """One line (name, state, what was found, what to do) for the target and for each distinct drafter checkpoint."""
    if run.target.source == "hub":
        only_rendered = run.target.fetched_from is not None
        what, get = ("tokenizer", tokenizer_command) if only_rendered else ("target", _download)
        keys = "target.source=folder and target.location"
        yield _hub(what, run.target.location, run.target.revision, reach or reachable, get, keys)
    drafters = {arm.checkpoint.location: (name, arm.checkpoint) for name, arm in run.arms.items() if arm.checkpoint}
    for name, checkpoint in drafters.values():
        where = next((base / checkpoint.location for base in _bases() if (base / checkpoint.location).exists()), None)
        if where is not None:
            yield (f"checkpoint, {name}", "ok", f"{checkpoint.location} is on this disk", "")
            yield from _reach(name, where, run.target.context)
        elif checkpoint.revision is None:
            how = fetch_command(checkpoint.location, checkpoint.fetched_from)
            fix = how or "train it, copy it there, or give a revision if it is a hub repository"
            yield (f"checkpoint, {name}", "fault", f"'{checkpoint.location}' is not on this disk", fix)
        else:
            key = f"arms.{name}.checkpoint.location"
            yield _hub(f"checkpoint, {name}", checkpoint.location, checkpoint.revision, reach or reachable, _download, key)


def only_on_the_hub(run: Run) -> list[str]:
    """Hub repositories that the rig names and that are neither on this disk nor in the hub's cache. Asks no network."""
    named = [(run.target.location, run.target.revision)] if run.target.source == "hub" else []
    drafters = [arm.checkpoint for arm in run.arms.values() if arm.checkpoint and arm.checkpoint.revision]
    named += [(one.location, one.revision) for one in drafters if not any((base / one.location).exists() for base in _bases())]
    return list(dict.fromkeys(place for place, revision in named if cached_commit(place, revision or "main") is None))


def _bases() -> tuple[Path, Path]:
    return Path.cwd(), ROOT


def _reach(name: str, folder: Path, context: int) -> Iterator[Told]:
    """A drafter that knows fewer positions than the rig's context holds drafts badly behind them, and no engine says so."""
    file = folder / "config.json"
    told = json.loads(file.read_text("utf-8")).get("max_position_embeddings") if file.is_file() else None
    if isinstance(told, int) and told < context:
        fix = "lower target.context, or read what lies behind that depth as a drafter outside what it was made for"
        yield (f"context, {name}", "warning", f"made for {told} positions; the rig's context holds {context}", fix)


def _download(repository: str, revision: str) -> str:
    return f"hf download {repository} --revision {revision}"


def _hub(
    name: str,
    repository: str,
    revision: str | None,
    reach: Callable[[str], bool],
    command: Callable[[str, str], str],
    keys: str,
) -> Told:
    """A hub repository: cached under its commit, cached under a branch (with the commit to pin), reachable, or neither.

    `keys` are what a rig sets to take a copied folder instead.
    """
    asked = revision or "main"
    commit = cached_commit(repository, asked)
    get = command(repository, asked)
    if commit and _COMMIT.fullmatch(asked):
        return (name, "ok", f"{repository} at {asked[:12]} is in the hub's cache", "")
    if commit:
        return (name, "warning", f"{repository} is cached; '{asked}' can move", f"pin its revision: {commit}")
    if reach(repository):
        return (name, "warning", f"{repository} is not on this disk; the hub has it", f"download it before the run: {get}")
    fix = f"on a machine with access: {get}; then copy the folder here and set {keys} to its path"
    return (name, "fault", f"{repository} is not on this disk, and the hub does not show it to this machine", fix)


def cached_commit(repository: str, revision: str, cache: Path | None = None) -> str | None:
    """Commit of the snapshot in the hub's cache that this revision means, or null. A snapshot without a file is none."""
    from huggingface_hub import constants

    folder = (cache or Path(constants.HF_HUB_CACHE)) / f"models--{repository.replace('/', '--')}"
    ref = folder / "refs" / revision
    commit = ref.read_text("utf-8").strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return commit if snapshot.is_dir() and any(snapshot.iterdir()) else None


def reachable(repository: str) -> bool:
    """Whether the hub answers for this repository, within seconds. A gated one that wants a token counts as not reachable."""
    from huggingface_hub import constants

    request = urllib.request.Request(f"{constants.ENDPOINT}/{repository}/resolve/main/config.json", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=REACH_S) as answer:
            return bool(answer.status < 400)
    except (urllib.error.URLError, OSError, ValueError):
        return False
