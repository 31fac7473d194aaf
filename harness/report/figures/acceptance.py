"""What the target accepted: length against rate at the budget, and acceptance by draft position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from harness.report.figures.chart import Chart, Panel, Source, extent, lines_of, mark, sentence, span
from harness.report.figures.style import MUTED
from harness.report.summary import ALL

LENGTH_READING = (
    "Acceptance length (tokens per step that had a draft, the target's own token included) against acceptance rate (share of"
    " drafted tokens). Bars are 95 % intervals over prompts, for all classes together; then each class at the lowest"
    " concurrency, every panel at its own scale. The grey line is what a drafter that always fills its budget K would"
    " have: 1 + K x rate; below it, drafts were shorter than K. n counts requests per arm. A rate is no speedup."
)
POSITION_READING = (
    "Share of the steps with a draft in which the draft at this position and all before it were accepted and delivered"
    " (marginal rate). The data also holds the rate among the steps that drafted so deep (conditional)"
    " and given that all before were accepted (ratio). n counts the steps with a draft, of the arm with fewest to the one with"
    " most; each arm's own is in the data."
)


def length_against_rate(source: Source) -> Chart | None:
    """A panel for each concurrency over all classes, then one for each class at the lowest; null when no arm drafted."""
    points = _lengths(source)
    if points.empty:
        return None
    levels = sorted(int(level) for level in points.concurrency.unique())
    whole, singles = points[points.content_class == _whole(points)], points[points.concurrency == levels[0]]
    panels = [_length_panel(source, whole[whole.concurrency == n], f"{_whole(points)}, concurrency {n}", True) for n in levels]
    names = [name for name in dict.fromkeys(singles.content_class) if name != _whole(points)]
    panels += [_length_panel(source, singles[singles.content_class == name], str(name), False) for name in names]
    words = [
        f"{p.arm} (K={p.budget:.0f}) at concurrency {p.concurrency}: length {p.length:.2f}, rate {100 * p.rate:.0f} %"
        for p in lines_of(whole)
    ]
    data = points.rename(columns={"budget": "budget_tokens", "length": "acceptance_length_tokens_per_step", "low": "low_95"})
    data = data.rename(columns={"high": "high_95", "n": "requests", "rate": "acceptance_rate_share"})
    alt = f"Acceptance length against rate. {sentence(words)}."
    return Chart(
        "acceptance", "Acceptance length and rate", LENGTH_READING, alt, data, tuple(panels), source.legend(points.arm)
    )


def by_position(source: Source) -> Chart | None:
    """A panel for each content class, all of them first, at the lowest concurrency; null when no engine told its steps."""
    points = _positions(source)
    if points.empty:
        return None
    level = int(points.concurrency.min())
    here = points[points.concurrency == level]
    classes = sorted(dict.fromkeys(here.content_class), key=lambda name: name != ALL)
    panels = tuple(_position_panel(source, here[here.content_class == name], name) for name in classes)
    whole = here[(here.content_class == classes[0]) & here.position.isin([1, here.position.max()])]
    words = [f"{p.arm} position {p.position}: {100 * p.marginal:.0f} %" for p in lines_of(whole)]
    return Chart(
        "positions",
        f"Acceptance by draft position, concurrency {level}",
        POSITION_READING,
        f"Share accepted by draft position. {sentence(words)}.",
        points.rename(columns={"n": "steps_with_a_draft"}),
        panels,
        source.legend(points.arm),
    )


def _arms(points: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(points.arm))


def _whole(points: pd.DataFrame) -> str:
    return ALL if ALL in set(points.content_class) else str(points.content_class.iloc[0])


KEYS = ["concurrency", "content_class", "arm"]


def _lengths(source: Source) -> pd.DataFrame:
    lengths = source.pick("acceptance_length")[[*KEYS, "budget", "value", "low", "high", "n"]].rename(
        columns={"value": "length"}
    )
    rates = source.pick("acceptance_rate")[[*KEYS, "value"]].rename(columns={"value": "rate"})
    return lengths.merge(rates, on=KEYS, how="inner", sort=False)


def _length_panel(source: Source, points: pd.DataFrame, name: str, bars: bool) -> Panel:
    """The arms of one class at one concurrency, on axes just long enough to hold them."""
    right = max(1.12 * extent(points[["rate"]])[1], 0.05)
    top = 1 + 1.12 * max(extent(points[["length", "high"] if bars else ["length"]])[1] - 1, 0.05)

    def draw(axes: Axes) -> None:
        for budget in sorted(int(b) for b in points.budget.unique()):
            _budget_line(axes, budget, right, top)
        for point in lines_of(points):
            look = source.looks[str(point.arm)]
            mark(axes.plot(point.rate, point.length, look.marker, color=look.light, markersize=7)[0])
            if bars and pd.notna(point.low):
                axes.plot([point.rate] * 2, [point.low, point.high], color=look.light, linewidth=1.2)
        axes.set(xlim=(0, right), ylim=(1, top), xlabel="acceptance rate (share of drafted)")
        axes.set_ylabel("acceptance length (tokens/step)")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    return Panel(f"{name}, n={points.n.max():.0f}", draw)


def _budget_line(axes: Axes, budget: int, right: float, top: float) -> None:
    """1 + K x rate as far as it is in view, with its K where it leaves: outside on the right, or beside its upper end."""
    end = min(right, (top - 1) / budget)
    axes.plot([0, end], [1, 1 + budget * end], color=MUTED.light, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    words: Any = {"ha": "left", "va": "center" if end == right else "top", "fontsize": 8, "color": MUTED.light}
    axes.annotate(f"K={budget}", (end, 1 + budget * end), xytext=(3, 0), textcoords="offset points", **words)


def _positions(source: Source) -> pd.DataFrame:
    """One line per class, concurrency, arm and position (from 1), with the three rates and the steps that they count."""
    pattern = r"position_rate_(?P<kind>marginal|conditional|ratio)_(?P<position>\d+)"
    lines = source.numbers[source.numbers.metric.str.fullmatch(pattern)]
    parts = lines.metric.str.extract(pattern)
    found = lines[[*KEYS, "budget", "n", "value"]].assign(kind=parts.kind, position=parts.position.astype(int))
    keys = [*KEYS, "budget", "n", "position"]
    order = {name: i for i, name in enumerate(dict.fromkeys(found.arm))}
    table = found.pivot_table(index=keys, columns="kind", values="value", sort=False).reset_index()
    table.columns.name = None
    return table.sort_values(["arm", "position"], key=lambda c: c.map(order) if c.name == "arm" else c, kind="stable")


def _position_panel(source: Source, points: pd.DataFrame, name: str) -> Panel:
    deepest = int(points.position.max())

    def draw(axes: Axes) -> None:
        for arm in _arms(points):
            look, line = source.looks[arm], points[points.arm == arm]
            every = _every(line.position.tolist())
            mark(axes.plot(line.position, line.marginal, marker=look.marker, color=look.light, markevery=every)[0])
        axes.set(xlim=(0.7, max(deepest, 2) + 0.3), ylim=(0, 1.02), xlabel="draft position")
        axes.set_ylabel("accepted (share of steps)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.yaxis.set_major_formatter(PercentFormatter(1))

    return Panel(f"{name}, n={span(points.n)}", draw)


def _every(positions: Sequence[int]) -> int:
    """Markers on every position of a short line, on some of a long one."""
    return int(np.ceil(len(positions) / 8))
