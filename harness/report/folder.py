"""All runs of a folder as one table: what a sweep over rigs, settings and machines gave.

Runs of one rig stand together, each with what it asked differently from the others and the machine that it ran on. Every
speedup is over its own run's plain; nothing is pooled over runs and no ratio between them is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.report.compare import NO_RATIO
from harness.report.header import header_lines
from harness.report.refusals import speedup_refusals
from harness.report.rig_difference import factors
from harness.report.run import FinishedRun, read_run
from harness.report.summary import ALL, cells, numbers
from harness.report.table import DRAFTING, SPEED, Line, verdict_of, without_speedup
from harness.run_file import FILE, runs_in

COLUMNS = (*SPEED[:2], *DRAFTING[:3])


def run_folders(folder: Path) -> list[Path]:
    """The runs that a folder holds, in the order in which they began; itself if it is one.

    Raises FileNotFoundError where there is none.
    """
    if (folder / FILE).exists():
        return [folder]
    found = sorted((str(facts.get("started_at")), path) for path, facts in runs_in(folder))
    if not found:
        raise FileNotFoundError(f"{folder}: no run here; give the folder of a run, or one that holds runs")
    return [path for _, path in found]


def print_folder(folder: Path, console: Console) -> int:
    """Print the runs of a folder, those of one rig together. Returns 1 when some are not whole yet or cannot be read, else 0.

    Raises ValueError where none can be read.
    """
    runs, unread = _readable(run_folders(folder))
    if not runs:
        raise ValueError(f"{folder}: no run here can be read: {'; '.join(unread)}")
    for rig in dict.fromkeys(str(run.config["name"]) for run in runs):
        group = [run for run in runs if run.config["name"] == rig]
        console.print(f"\n[bold]{escape(rig)}[/]  {len(group)} runs", highlight=False)
        lines = [_lines(run) for run in group]
        console.print(_table(group, lines))
        for text in speedup_refusals(without_speedup(line) for one in lines for line in one.values()):
            console.print(f"[dim]{escape(text)}[/]", highlight=False)
    console.print(f"\n[dim]over all content classes of a run, n requests per arm; {NO_RATIO}[/]", highlight=False)
    for text in unread:
        console.print(f"[yellow]left out: {escape(text)}[/]", highlight=False, soft_wrap=True)
    return int(bool(unread) or any("incomplete" in dict(header_lines(run)) for run in runs))


def _readable(folders: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """The runs, and a line for each folder that only looks like one: somebody else's file of that name, a torn copy."""
    runs, unread = [], []
    for folder in folders:
        try:
            run = read_run(folder)
            if "name" not in run.config:
                raise ValueError("its config.yaml names no rig")
            runs.append(run)
        except OSError as problem:
            unread.append(f"{problem.filename or folder}: {problem.strerror or problem}")
        except ValueError as problem:
            unread.append(str(problem) if str(folder) in str(problem) else f"{folder}: {problem}")
    return runs, unread


def _table(runs: Sequence[FinishedRun], lines: Sequence[dict[str, Line]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("run\n  arm", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column("control", no_wrap=True)
    for run, told, found in zip(runs, asked_differently(runs), lines, strict=True):
        words = dict(header_lines(run))
        table.add_row(f"[bold]{escape(run.run_id)}[/]")
        for text in (told, words["machine"], words.get("incomplete", "")):
            if text:
                table.add_row(f"  [dim]{escape(text)}[/]")
        for name, line in found.items():
            control = verdict_of(line) or without_speedup(line).replace("_", " ")
            table.add_row(name, *(column.text(line) for column in COLUMNS), control)
    return table


def asked_differently(runs: Sequence[FinishedRun]) -> list[str]:
    """For each of several runs of a rig, the settings that are not the same in all of them."""
    asked = [{key: value for key, value in factors(run).items() if not key.startswith("found.")} for run in runs]
    names = sorted({name for one in asked for name in one})
    moved = [name for name in names if len({one.get(name) for one in asked}) > 1]
    return [" · ".join(f"{name}={one[name]}" for name in moved if name in one) for one in asked]


def _lines(run: FinishedRun) -> dict[str, Line]:
    """The numbers of each concurrency and arm over all content classes, by the name of their line."""
    found: dict[str, Line] = {}
    for cell in cells(run):
        classes = run.classes(cell.concurrency)
        if cell.label == (ALL if len(classes) > 1 else classes[0]):
            line = {number.metric: number for number in numbers(cell)}
            found[f"  {cell.arm} at {cell.concurrency}, n={line['error_rate'].n}"] = line
    return found
