"""Text sections of a report, in their order: the printed report and the page show the same lines, and leave out an empty one.

The Markdown table and two runs side by side show `BEST` of them: its numbers stand in no column.
To add one: write a function that yields lines from a run, and name it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from harness.report.baselines import best_lines
from harness.report.decomposition import decomposition_lines
from harness.report.gates import gate_lines
from harness.report.run import FinishedRun


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the lines below it; `lines` yields nothing when the run has nothing to say. `key` is the page's anchor."""

    key: str
    title: str
    lines: Callable[[FinishedRun], Iterable[str]]


BEST = Section("best", "Against plain at its best", best_lines)
SECTIONS: tuple[Section, ...] = (
    BEST,
    Section("answers", "Answers: the same as plain's, and right?", gate_lines),
    Section("why", "Why: what a decode step is made of", decomposition_lines),
)


def sections(run: FinishedRun) -> Iterator[tuple[Section, list[str]]]:
    """Every section that has lines, with them."""
    for section in SECTIONS:
        if lines := list(section.lines(run)):
            yield section, lines
