"""Two runs side by side, as far as their rigs agree; where they do not, the factor is named in place of the number."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.report.refusals import speedup_refusals
from harness.report.rig_difference import Difference, arm_difference, differences
from harness.report.run import FinishedRun, read_run
from harness.report.sections import BEST
from harness.report.summary import cells, numbers
from harness.report.table import DRAFTING, SPEED, WIDE, Column, Line, without_speedup

Lines = dict[tuple[int, str, str], Line]
WIDE_OF_TWO = WIDE + 8  # characters: one more column tells the run
NO_RATIO = (
    "each speedup is over its own run's plain, with its own control verdict; no ratio between the runs is formed, since"
    " machines drift between sessions"
)


def print_comparison(one: Path, other: Path, console: Console) -> int:
    """Print two runs side by side. Returns 1 when nothing of them may stand side by side, else 0."""
    runs = read_run(one), read_run(other)
    found = differences(*runs)
    for name, run in zip("AB", runs, strict=True):
        console.print(f"[bold]{name}[/]  {escape(run.run_id)}", soft_wrap=True)
    for text in difference_lines(found):
        _print(console, text)
    columns = _columns(found)
    if not columns:
        console.print("refused: nothing of two runs that asked different things may stand side by side")
        return 1
    tables = (_lines(runs[0]), _lines(runs[1]))
    shared = [key for key in tables[0] if key in tables[1]]
    for level in dict.fromkeys(level for level, _, _ in shared):
        console.print(f"\n[bold]concurrency {level}[/]")
        for part in [sum(columns, ())] if console.width >= WIDE_OF_TWO else columns:
            console.print(_table([key for key in shared if key[0] == level], tables, part))
    if SPEED in columns and (lines := list(_best(*runs))):
        console.print(f"\n[bold]{BEST.title}[/]")
        for text in lines:
            _print(console, text)
        console.print()
    for text in _notes(runs, tables):
        _print(console, text)
    return 0


def _print(console: Console, text: str) -> None:
    console.print(escape(textwrap.fill(text, console.width, subsequent_indent="    ", break_on_hyphens=False)))


def difference_lines(found: Sequence[Difference]) -> Iterator[str]:
    """What differs and what that forbids."""
    words = {"text": "refused: all numbers, by", "speed": "refused: speeds, by", "label": "differs, refuses nothing:"}
    for kind, text in words.items():
        if named := [str(d) for d in found if d.kind == kind]:
            yield f"{text} {'; '.join(named)}"
    if not found:
        yield "the rigs agree in every factor that was asked or found"


def _columns(found: Sequence[Difference]) -> tuple[tuple[Column, ...], ...]:
    """The columns that may be shown for both: of speed and of drafting, or one or none of them."""
    kinds = {d.kind for d in found}
    if "text" in kinds:
        return ()
    # Memory and errors belong to the machine, as speed does.
    return (DRAFTING[:3],) if "speed" in kinds else (SPEED, DRAFTING)


def _lines(run: FinishedRun) -> Lines:
    """Concurrency, class and arm -> metric -> number."""
    return {(c.concurrency, c.label, c.arm): {n.metric: n for n in numbers(c)} for c in cells(run)}


def _table(keys: Sequence[tuple[int, str, str]], tables: tuple[Lines, Lines], columns: Sequence[Column]) -> Table:
    """Content classes as groups; for each arm a line of A and one of B."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("class\n  arm", no_wrap=True)
    table.add_column("run", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for label in dict.fromkeys(label for _, label, _ in keys):
        table.add_row(f"[bold]{label}[/] n={' / '.join(_requests(tables, keys, label))}")
        for key in (key for key in keys if key[1] == label):
            for name, lines in zip("AB", tables, strict=True):
                table.add_row(f"  {key[2]}" if name == "A" else "", name, *(column.text(lines[key]) for column in columns))
    return table


def _requests(tables: tuple[Lines, Lines], keys: Sequence[tuple[int, str, str]], label: str) -> Iterator[str]:
    for lines in tables:
        yield str(max((lines[key]["error_rate"].n or 0 for key in keys if key[1] == label), default=0))


def _best(one: FinishedRun, other: FinishedRun) -> Iterator[str]:
    """What every arm of either run gains over plain at its best: speeds, so for runs whose speeds may stand side by side."""
    ours, theirs = (list(BEST.lines(run)) for run in (one, other))
    yield from (f"{'A and B' if text in theirs else 'A'}, {text}" for text in ours)
    yield from (f"B, {text}" for text in theirs if text not in ours)


def _notes(runs: tuple[FinishedRun, FinishedRun], tables: tuple[Lines, Lines]) -> Iterator[str]:
    """What stands in one run only, what differs in an arm, and that no ratio is formed."""
    one, other = runs
    for arm in one.methods:
        if arm in other.methods and (told := arm_difference(one, other, arm)):
            yield f"arm {arm}: {told}"
    for name, ours, theirs in (("A", *tables), ("B", *reversed(tables))):
        for kind, place in (("concurrency", 0), ("class", 1), ("arm", 2)):
            if only := sorted({str(key[place]) for key in ours} - {str(key[place]) for key in theirs}):
                yield f"only in {name}: {kind} {', '.join(only)}"
    for name, lines in zip("AB", tables, strict=True):
        yield from (f"{name}, {text}" for text in speedup_refusals(map(without_speedup, lines.values())))
    yield NO_RATIO
