"""The report of a run: `summary` holds every number, `print_report` shows those that decide."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.report.budgets import split
from harness.report.footnotes import control_lines, depth_lines, note_lines
from harness.report.header import header
from harness.report.run import FinishedRun, read_run
from harness.report.sections import sections
from harness.report.summary import cells, numbers, summary
from harness.report.table import Line, tables

__all__ = ["print_report", "summary"]

LEGEND = (
    "n: requests per arm · out: output tokens/s of the steady window, in which as many requests ran as were asked for ·"
    " speedup: output tokens/s over plain, paired by prompt and boot (concurrency 1) or by boot, a boot being one launch of an"
    " arm in one block; 95 % interval, descriptive with one block; ~ no detected difference, by a test"
    " adjusted for the number of arms (Holm), so that the interval of one arm alone may exclude 1; † implied by the drafter,"
    " ? not all could be read: see control, !! its answers are in question: see answers · prefill: prompt tokens/s"
    " to the first token at the median depth (tokens of the prompt), concurrency 1 · TTFT: ms from sending to the first token,"
    " median and 95th percentile · TPOT: median ms per output token after the first chunk · accept"
    " length: tokens per step that had a draft, the target's own token included, ± 95 % over prompts · accept rate: accepted"
    " share of drafted tokens, at draft budget K (most tokens drafted a step), then the share of steps with a draft if under"
    " 95 % · tokens/step: over all decode steps · GiB: most memory of a serving, on a CPU as far as it was touched, and"
    " what its drafter allocated for weights and state, touched or not, so that the second is no part of the first; 2^30"
    " bytes · errors: share of requests that failed · -: not measured or not reported"
)


def print_report(folder: Path, console: Console, allow_confounded: bool = False) -> None:
    """Print the table of a run, finished or not: header, one table per concurrency, control lines, legend.

    Speedups of confounded pairs are left out, or with `allow_confounded` struck and labelled.
    """
    run = read_run(folder)
    console.print(header(run))
    lines = _lines(run)
    if not lines:
        console.print("\nno measured requests yet")
        return
    for concurrency, groups in lines.items():
        for title, part in split(run, concurrency, groups):
            console.print(f"\n[bold]{escape(title)}[/]")
            for table in tables(part, console.width, allow_confounded):
                console.print(table)
        for text in (*depth_lines(groups), *control_lines(run, concurrency, groups)):
            _print(console, text)
    for text in note_lines(run):
        _print(console, text)
    for section, told in sections(run):
        console.print(f"\n[bold]{escape(section.title)}[/]")
        for text in told:
            _print(console, text)
    console.print(f"\n[dim]{escape(LEGEND)}[/]")


def _print(console: Console, text: str) -> None:
    """Wrapped, with continuation lines set in."""
    console.print(escape(textwrap.fill(text, console.width, subsequent_indent="      ", break_on_hyphens=False)))


def _lines(run: FinishedRun) -> dict[int, dict[str, dict[str, Line]]]:
    """Concurrency -> content class -> arm -> metric -> number."""
    found: dict[int, dict[str, dict[str, Line]]] = {}
    for cell in cells(run):
        line = {number.metric: number for number in numbers(cell)}
        found.setdefault(cell.concurrency, {}).setdefault(cell.label, {})[cell.arm] = line
    return found
