"""The report of a run: `summary` holds every number, `print_report` shows those that decide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.control import Control
from harness.metrics import LENGTH_LIMIT, REASONS
from harness.report.header import header
from harness.report.run import FinishedRun, read_run
from harness.report.summary import ALL, Number, cells, numbers, summary
from harness.report.table import Line, tables

REFUSALS = {"coalesced", "exceeds_budget", "concurrency_not_reached", "no_pairs"}
__all__ = ["print_report", "summary"]

LEGEND = (
    "n requests per arm · out: steady-window output tokens/s · speedup: output tokens/s over plain, paired by prompt and boot"
    " (concurrency 1) or by boot; 95 % interval, descriptive with one block · prefill: prompt tokens/s to the first token at"
    " the median depth, concurrency 1 · TPOT: median ms per output token after the first chunk · accept length: tokens per"
    " speculating step, own token included, ± 95 % over prompts · accept rate: share of drafted tokens, at draft budget K, then"
    " the share of steps with a draft if under 95 % ·"
    " tokens/step: over all decode steps · GiB: 2^30 bytes · -: not measured or not reported"
)


def print_report(folder: Path, console: Console) -> None:
    """Print the table of a run, finished or not: header, one table per concurrency, control lines, legend."""
    run = read_run(folder)
    console.print(header(run))
    lines = _lines(run)
    if not lines:
        console.print("\nno measured requests yet")
        return
    for concurrency, groups in lines.items():
        console.print(f"\n[bold]concurrency {concurrency}[/]")
        for table in tables(groups, console.width):
            console.print(table)
        for text in (*_depths(groups), *control_lines(run, concurrency, groups)):
            console.print(escape(text), soft_wrap=False)
    console.print(f"\n[dim]{escape(LEGEND)}[/]")


def _lines(run: FinishedRun) -> dict[int, dict[str, dict[str, Line]]]:
    """Concurrency -> content class -> arm -> metric -> number."""
    found: dict[int, dict[str, dict[str, Line]]] = {}
    for cell in cells(run):
        line = {number.metric: number for number in numbers(cell)}
        found.setdefault(cell.concurrency, {}).setdefault(cell.label, {})[cell.arm] = line
    return found


def control_lines(run: FinishedRun, concurrency: int, groups: dict[str, dict[str, Line]]) -> Iterator[str]:
    """Per arm: the control verdict with its findings, lengths, and differences that could not be detected."""
    for arm in run.methods:
        control = run.control(arm, concurrency)
        if control is None:
            continue
        yield f"control: {arm} against {control.plain} {control.verdict}{_lengths(arm, groups)}"
        yield from _findings(control)
        for name, arms in groups.items():
            verdict, _, claim = arms[arm]["speedup"].note.partition(": ")
            if claim.startswith("no detected") and verdict != "CONFOUNDED":
                yield f"  ~ {name}: {claim}"
    notes = {number.note for arms in groups.values() for line in arms.values() for number in line.values()}
    for reason in sorted(notes & REFUSALS):
        yield f"refused: {REASONS[reason]}"


def _findings(control: Control) -> Iterator[str]:
    for kind, label in (("confounder", "confounded by"), ("unknown", "unknown"), ("implied", "implied"), ("note", "note")):
        for finding in control.findings:
            if finding.kind == kind:
                yield f"  {label} {finding}"


def _lengths(arm: str, groups: dict[str, dict[str, Line]]) -> str:
    """The largest median difference in output length over the classes."""
    found: list[Number] = [n for arms in groups.values() if (n := arms[arm].get("length_difference")) and n.value is not None]
    if not found:
        return ""
    worst = max(found, key=lambda n: n.value or 0)
    label = " (fixed length)" if worst.note else " (latencies not comparable)" if (worst.value or 0) > LENGTH_LIMIT else ""
    return f" · output lengths differ by {100 * (worst.value or 0):.1f} % at the median{label}"


def _depths(groups: dict[str, dict[str, Line]]) -> Iterator[str]:
    """Prefill rate by depth, for content classes whose prompts span several."""
    for name in (name for name in groups if name != ALL):
        found = {arm: _by_depth(line) for arm, line in groups[name].items()}
        if max(len(rates) for rates in found.values()) > 1:
            arms = (f"{arm} " + ", ".join(f"{rate:.0f} @{depth}" for depth, rate in rates) for arm, rates in found.items())
            yield f"prefill tok/s by depth, {name}: {'; '.join(arms)}"


def _by_depth(line: Line) -> list[tuple[str, float]]:
    parts = [(re.fullmatch(r"prefill_tps_to_(\d+)_p50", name), n.value) for name, n in line.items()]
    return [(match[1], rate) for match, rate in parts if match and rate is not None]
