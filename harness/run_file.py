"""run.json: what a run says of itself. A key that is not there is not known, and a run without an end is unfinished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = "run.json"
SAMPLE = "sample"  # folder of runs in the results folder that came with the sources
SOME = 5  # runs that an error names


def facts_of(folder: Path) -> dict[str, Any]:
    """The facts of a run. Raises ValueError when the file is not a JSON object, FileNotFoundError when it is not there."""
    file = folder / FILE
    try:
        facts = json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read as JSON ({error}); restore it, or move the folder away") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{file}: holds no object of facts; restore it, or move the folder away")
    return facts


def is_finished(folder: Path) -> bool:
    return facts_of(folder).get("finished_at") is not None


def runs_in(results: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Every run folder of a results folder with its facts. One whose facts cannot be read is somebody else's, or just going."""
    found = []
    for file in sorted(results.glob(f"*/{FILE}")):
        try:
            found.append((file.parent, facts_of(file.parent)))
        except (ValueError, OSError):
            continue
    return found


def places(run: str, results: Path) -> tuple[Path, ...]:
    """Where a run may lie that is given by path or name, the likeliest first: one's own runs come before the samples."""
    return Path(run), results / run, results / SAMPLE / run


def where_runs_are(folder: Path) -> str:
    """What to give in place of a folder that is no run: the runs that it holds, newest first, as a command takes them."""
    found = sorted(runs_in(folder), key=lambda run: str(run[1].get("started_at")), reverse=True)
    if not found:
        return f"give a folder below results/ that has a {FILE}"
    more = f" (and {len(found) - SOME} more)" if len(found) > SOME else ""
    return f"it holds {len(found)}; name one: {' '.join(str(path) for path, _ in found[:SOME])}{more}"
