"""What `samerig replay` is given: the name of a rig, a rig file, or the folder of a run; and what could have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from harness.compose import ConfigError
from harness.rigs import find_rig, list_published, list_rigs
from harness.run_file import SAMPLE, places

KINDS = "replay takes the name of a rig (samerig rigs lists them), a rig file (.yaml), or the folder of a run (with run.json)"


def run_or_rig(what: str, results: Path) -> Path | None:
    """The folder of a run that `what` names, by path or by its name in the results folder; null when it names a rig.

    Raises ConfigError that says what is there instead and what comes near.
    """
    if folder := next((one for one in places(what, results) if (one / "run.json").is_file()), None):
        return folder
    try:
        find_rig(what)
    except ConfigError:
        if Path(what).is_file() and Path(what).suffix == ".yaml":
            raise  # a rig file; what is wrong with it was said
        raise ConfigError(f"'{what}': {_found(what, results)}; {KINDS}; {_meant(what, results)}") from None
    return None


def _found(what: str, results: Path) -> str:
    """What is at that path: other than a run, or nothing."""
    path = Path(what)
    if folder := next((one for one in (path, results / what) if one.is_dir()), None):
        runs = _runs(folder)
        holds = f"it holds {len(runs)} run{'s' if len(runs) != 1 else ''}, name one" if runs else "nor does it hold any"
        return f"the folder {folder.resolve()} is no run (no run.json), {holds}"
    if path.is_file():
        return f"the file {path.resolve()} is no rig file"
    places = [f"there is no {path.absolute()}", *([f"no run of that name in {results.resolve()}"] if _is_name(path) else [])]
    return ", ".join([*places, *(["no rig of that name"] if _is_name(path) else [])])


def _meant(what: str, results: Path) -> str:
    """The runs in a folder of runs; else near matches among rigs, runs in the results folder, and what lies beside the path."""
    path = Path(what)
    inside = [run for folder in {path, results / what} for run in _runs(folder)]
    beside = [] if _is_name(path) else [*_runs(path.parent), *path.parent.glob("*.yaml")]
    known = [name for name, _ in (*list_rigs(), *list_published())] + [
        run.name for folder in (results, results / SAMPLE) for run in _runs(folder)
    ]
    matches = [str(run) for run in inside[-3:]] or near_names(what, [*known, *map(str, beside)])
    return "did you mean " + " or ".join(f"'{match}'" for match in matches) + "?" if matches else "nothing near that is here"


def near_names(what: str, known: Iterable[str]) -> list[str]:
    """Up to three, the nearest first: spelt nearly the same, whole or in their last part, or one the other's beginning."""
    word = _last(what)

    def nearness(one: str) -> float:
        own = _last(one)
        begun = min(len(word), len(own)) > 2 and (own.startswith(word) or word.startswith(own))
        ratio = max(difflib.SequenceMatcher(None, *pair).ratio() for pair in ((word, own), (what, one)))
        return max(ratio, 0.6) if begun else ratio if difflib.SequenceMatcher(None, word, own).ratio() >= 0.6 else 0.0

    scores = {one: nearness(one) for one in known}
    return [one for one in sorted(scores, key=lambda one: -scores[one]) if scores[one] >= 0.6][:3]


def _last(name: str) -> str:
    return Path(name).name.removesuffix(".yaml")


def _runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/run.json"))


def _is_name(path: Path) -> bool:
    """A bare word, which may be a rig's or a run's name; anything else is a path."""
    return len(path.parts) == 1
