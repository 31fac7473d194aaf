"""What a figure is: panels that draw on axes, the data behind them, and words that say the same."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures.style import Look, looks, styled
from harness.report.run import FinishedRun, read_run
from harness.report.summary import frame

MARK = "mark"  # group id of artists that show data: a test counts them
PANEL_INCHES = (3.75, 3.0)
ALONE_INCHES = (5.0, 3.3)  # a panel without a neighbour; wider, its text would be too small on a phone


@dataclass(frozen=True, slots=True)
class Source:
    """A run and its numbers, as the figures read them."""

    run: FinishedRun
    numbers: pd.DataFrame

    @property
    def looks(self) -> Mapping[str, Look]:
        known = looks(tuple(self.run.methods))
        return {arm: known[arm] for arm in self.run.methods}

    @property
    def drafting(self) -> list[str]:
        """Arms that draft, in the order of the run."""
        return [arm for arm, method in self.run.methods.items() if method != "plain"]

    def legend(self, arms: Iterable[str]) -> dict[str, Look]:
        """These arms with their looks, in the order of the run."""
        wanted = set(arms)
        return {arm: look for arm, look in self.looks.items() if arm in wanted}

    def pick(self, *metrics: str) -> pd.DataFrame:
        """Lines of these metrics that have a value, in the order of the run."""
        found = self.numbers[self.numbers.metric.isin(metrics) & self.numbers.value.notna()]
        return found.reset_index(drop=True)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `inches` is its native size; a page shows panels side by side or below each other."""

    title: str
    draw: Callable[[Axes], None]
    inches: tuple[float, float] = PANEL_INCHES


@dataclass(frozen=True, slots=True, repr=False)
class Chart:
    """A figure. `alt` says in words what it shows; `data` is every number in it, one line each, units in the column names.

    `arms` are those that its legend names; `columns` is how many panels stand side by side where there is room.
    """

    key: str
    title: str
    caption: str
    alt: str
    data: pd.DataFrame
    panels: tuple[Panel, ...]
    arms: Mapping[str, Look] = field(default_factory=dict)
    columns: int = 3

    def __repr__(self) -> str:
        """Its words: what a notebook keeps beside the picture, the same each time it is executed."""
        return f"{self.title}. {self.alt}"

    def _repr_png_(self) -> bytes:
        """How a notebook shows it."""
        out = io.BytesIO()
        figure(self).savefig(out, format="png", dpi=90, facecolor="white", metadata={"Software": None})
        return out.getvalue()


def source(folder: Path) -> Source:
    """Read a run folder for figures. Raises FileNotFoundError where there is none."""
    run = read_run(folder)
    return Source(run, frame(run))


def figure(chart: Chart) -> Figure:
    """All panels on one matplotlib figure with a legend, for a notebook or a file."""
    columns = min(chart.columns, len(chart.panels))
    rows = [chart.panels[i : i + columns] for i in range(0, len(chart.panels), columns)]
    heights = [max(panel.inches[1] for panel in row) for row in rows]
    width = max(panel.inches[0] for panel in chart.panels)
    with styled():
        whole = Figure(figsize=(width * columns, sum(heights)), layout="constrained")
        grid = whole.add_gridspec(len(rows), columns, height_ratios=heights)
        for i, row in enumerate(rows):
            for j, panel in enumerate(row):
                draw_panel(whole.add_subplot(grid[i, j]), panel)
        _legend(whole, chart)
    return whole


_LEGEND_INCHES = 0.95  # what the name of an arm takes with its mark


def _legend(whole: Figure, chart: Chart) -> None:
    """The arms above all panels, in as many rows as the width asks for; a page has its own."""
    if chart.arms:
        handles = [Line2D([], [], color=look.light, marker=look.marker, label=arm) for arm, look in chart.arms.items()]
        columns = min(len(handles), max(1, int(whole.get_figwidth() / _LEGEND_INCHES)))
        whole.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)


def draw_panel(axes: Axes, panel: Panel) -> None:
    """The panel and its title on axes, in the shared style of the context that made them."""
    panel.draw(axes)
    if panel.title:
        axes.set_title(panel.title)


def mark(*artists: Artist) -> None:
    """Say of artists that they show data."""
    for artist in artists:
        artist.set_gid(MARK)


def lines_of(table: pd.DataFrame) -> list[Any]:
    """The lines of a table, each with its columns as attributes."""
    return list(table.itertuples(index=False))


def extent(table: pd.DataFrame) -> tuple[float, float]:
    """The lowest and the highest number of a table, nulls left out."""
    values = table.to_numpy(dtype=float)
    return float(np.nanmin(values)), float(np.nanmax(values))


def span(counts: pd.Series[Any]) -> str:
    """Counts of several arms in few characters: the one that all have, or the lowest and the highest."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"


def sentence(parts: Sequence[str]) -> str:
    """Parts of a text alternative, joined; the first thirty, then how many more the data holds."""
    more = f"; and {len(parts) - 30} more in the data" if len(parts) > 30 else ""
    return "; ".join(parts[:30]) + more
