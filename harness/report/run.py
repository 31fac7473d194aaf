"""One run as the report reads it: the rows, the configuration that was saved beside them, and who is compared with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.audit.rig import stated_factors
from harness.config_hash import config_hash, hashes_of
from harness.control import Control, Finding, Side, compare
from harness.folders import is_held
from harness.metrics import Row, Rows, integer, rows_of
from harness.run_file import facts_of, is_finished
from harness.store import read_tables

SHOWN_HASH = 12
RESTORE = "config.yaml is not the configuration that was measured; restore it"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run folder in memory; unfinished ones too. `config` is config.yaml, `facts` is run.json.

    `being_measured`: a process was measuring it when it was read. `to_go_on`: it has not come to its end (being measured, or
    cut off), so arms are compared on the cells that both have.
    """

    run_id: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    servings: Rows
    requests: Rows
    steps: Rows
    samples: Rows
    cell_rows: Rows = ()
    widths: Rows = ()
    replays: Rows = ()
    grades: Rows = ()
    being_measured: bool = False
    to_go_on: bool = False

    @property
    def methods(self) -> dict[str, str]:
        """Method of every arm that was launched: the configured order, then others (the A/A arm)."""
        found = {str(row["arm"]): str(row["method"]) for row in self.servings}
        names = [name for name in self.config["arms"] if name in found]
        return {name: found[name] for name in [*names, *sorted(found.keys() - set(names))]}

    @property
    def plain(self) -> str | None:
        """The arm that others are compared with: the first plain one that is served as they are."""
        return next((name for name, method in self.methods.items() if method == "plain" and name != self.plain_best), None)

    @property
    def plain_best(self) -> str | None:
        """The plain arm with engine flags of its own, if it was launched: a second baseline (`harness.report.baselines`)."""
        arms = self.config["arms"]
        return next((name for name in self.methods if arms.get(name, {}).get("engine_flags") is not None), None)

    @property
    def a_a(self) -> str | None:
        """A second plain arm of the very same setting, whose difference from plain is the noise floor."""
        others = (self.plain, self.plain_best)
        return next((name for name, method in self.methods.items() if method == "plain" and name not in others), None)

    def budget(self, arm: str) -> int | None:
        return next((integer(row["draft_budget"]) for row in self.servings if row["arm"] == arm), None)

    def complete_blocks(self) -> int:
        """Blocks in which every arm measured every prompt set at every concurrency."""
        cells = {(int(r["block"]), str(r["cell_id"])) for r in self.requests if r["phase"] == "measured"}
        whole = self.cells()[1] // int(self.config["protocol"]["blocks"])
        found = [block for block, _ in cells]
        return sum(found.count(block) == whole for block in set(found))

    def cells(self) -> tuple[int, int]:
        """Cells that were measured, and cells that the configuration asks for."""
        done = {str(row["cell_id"]) for row in self.requests if row["phase"] == "measured"}
        arms = len(self.config["arms"]) + bool(self.config["protocol"]["a_a"])
        sets, levels = self.config["workload"]["sets"], self.config["concurrency"]
        return len(done), int(self.config["protocol"]["blocks"]) * arms * len(sets) * len(levels)

    def measured(self, concurrency: int, classes: tuple[str, ...]) -> dict[str, list[Row]]:
        """Measured rows of every arm at one concurrency over some content classes."""
        found: dict[str, list[Row]] = {name: [] for name in self.methods}
        for row in self.requests:
            if row["phase"] == "measured" and row["concurrency"] == concurrency and row["content_class"] in classes:
                found[str(row["arm"])].append(row)
        return found

    def within_sessions(self, arms: Mapping[str, Rows]) -> dict[str, list[Row]]:
        """Rows of cells that every arm measured in one session: machines drift between sessions, so no pair may span two.

        A run that was interrupted and resumed loses the pairs of the cells around the interruption, and no others.
        """
        session_of = {str(row["serving_id"]): str(row["session_id"]) for row in self.servings}
        sessions: dict[tuple[int, str], set[str]] = {}
        for rows in arms.values():
            for row in rows:
                sessions.setdefault(_block_and_set(row), set()).add(session_of[str(row["serving_id"])])
        return {name: [r for r in rows if len(sessions[_block_and_set(r)]) == 1] for name, rows in arms.items()}

    def is_torn(self, arms: Mapping[str, Rows], arm: str, baseline: str | None = None) -> bool:
        """Whether an arm and its baseline (plain) have rows, and no cell of either was measured by one session for all arms."""
        pair = (arm, baseline or str(self.plain))
        return all(arms[name] for name in pair) and not all(self.within_sessions(arms)[name] for name in pair)

    def levels(self) -> list[int]:
        return sorted({int(row["concurrency"]) for row in self.requests if row["phase"] == "measured"})

    def classes(self, concurrency: int) -> list[str]:
        """Content classes measured at this concurrency, in the order of the configured prompt sets."""
        order = [str(prompt_set["set"]) for prompt_set in self.config["workload"]["sets"]]
        rows = [r for r in self.requests if r["phase"] == "measured" and r["concurrency"] == concurrency]
        rows.sort(key=lambda row: _place(str(row["prompt_set"]).partition("@")[0], order))
        return list(dict.fromkeys(str(row["content_class"]) for row in rows))

    def side(self, arm: str, concurrency: int, classes: Sequence[str] | None = None) -> Side:
        """The rows of an arm's servings that measured something at this concurrency in these content classes (null is all).

        Others are in no number of it. So a serving that was killed while it warmed up accuses nobody, and a bad cell accuses
        its own class and level alone.
        """
        wanted = tuple(self.classes(concurrency) if classes is None else classes)
        counted = {str(row["serving_id"]) for row in self.measured(concurrency, wanted)[arm]}

        tables = (self.servings, self.requests, self.steps, self.samples, self.cell_rows)
        servings, requests, steps, samples, cells = ([r for r in t if str(r["serving_id"]) in counted] for t in tables)
        return Side(servings, requests, steps, samples, cells, wanted)

    def control(self, arm: str, concurrency: int, classes: Sequence[str] | None = None) -> Control | None:
        """The audit of an arm against plain; null for plain itself, without one, or where either has no cell yet."""
        return None if self.plain in (None, arm) else self.pair(str(self.plain), arm, concurrency, classes)

    def pair(self, one: str, other: str, concurrency: int, classes: Sequence[str] | None = None) -> Control | None:
        """The audit of any two arms; null where either has no cell yet. What the best baseline states is marked."""
        run = self._of_shared_cells(one, other, concurrency) if self.to_go_on else self
        sides = run.side(one, concurrency, classes), run.side(other, concurrency, classes)
        if not all(side.servings for side in sides):
            return None
        control = compare(*sides, concurrency).also(*self.doubts())
        if self.plain_best not in (one, other):
            return control
        return control.with_stated(stated_factors(self.config, str(self.plain_best)), str(self.plain_best))

    def doubts(self) -> list[Finding]:
        """Where config.yaml is not the configuration that the rows and run.json name: then nobody knows what was asked."""
        told = {str(row["config_hash"]) for row in self.servings}
        told |= {str(self.facts["config_hash"])} if self.facts.get("config_hash") else set()
        known = hashes_of(self.config)
        if told <= known:
            return []
        measured = " and ".join(sorted(one[:SHOWN_HASH] for one in told))
        return [
            Finding("config.yaml", "unknown", f"{measured} measured", f"{config_hash(self.config)[:SHOWN_HASH]} here", RESTORE)
        ]

    def _of_shared_cells(self, one: str, other: str, concurrency: int) -> FinishedRun:
        """The run without cells of either arm whose counterpart is still to come: what is not asked yet is no difference."""
        arms = self.measured(concurrency, tuple(self.classes(concurrency)))
        first, second = ({_block_and_set(row) for row in arms[name]} for name in (one, other))

        def is_kept(row: Row) -> bool:
            other_level = int(row["concurrency"]) != concurrency or row["arm"] not in (one, other)
            return other_level or _block_and_set(row) in first & second

        requests = [row for row in self.requests if row["phase"] != "measured" or is_kept(row)]
        return replace(self, requests=requests, cell_rows=[row for row in self.cell_rows if is_kept(row)])


def _place(name: str, order: list[str]) -> int:
    return order.index(name) if name in order else len(order)


def _block_and_set(row: Row) -> tuple[int, str]:
    return int(row["block"]), str(row["prompt_set"])


def _config(folder: Path) -> dict[str, Any]:
    """What the run asked for. Raises FileNotFoundError without its file, and ValueError where it cannot be read."""
    file = folder / "config.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; restore it, or move the folder away")
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read as a rig ({_why(error)}); restore it, or move the folder away") from None
    if not isinstance(found, dict):
        why = f"it holds a {type(found).__name__}, not a mapping of keys" if found is not None else "it is empty"
        raise ValueError(f"{file}: cannot be read as a rig ({why}); restore it, or move the folder away")
    return found


def _why(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """What is wrong with a YAML text, and in which line where the parser knows one."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).partition("\n")[0]


def read_run(folder: Path) -> FinishedRun:
    """Read a run folder. Raises FileNotFoundError when it holds no run."""
    tables = read_tables(folder)
    config, facts, finished = _config(folder), facts_of(folder), is_finished(folder)
    return FinishedRun(
        folder.name,
        config,
        facts,
        rows_of(tables.servings),
        rows_of(tables.requests),
        rows_of(tables.steps),
        rows_of(tables.samples),
        rows_of(tables.cells),
        rows_of(tables.widths),
        rows_of(tables.replays),
        rows_of(tables.grades),
        not finished and is_held(folder),
        not finished,
    )
