"""Speedup over plain: by content class, and against concurrency. A pair that is confounded shows its name and no point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.report.figures.axis import levels_axis, names_axis, offsets, one_line, ratio_axis
from harness.report.figures.chart import (
    ALONE_INCHES,
    PANEL_INCHES,
    Chart,
    Panel,
    Source,
    extent,
    lines_of,
    mark,
    sentence,
    span,
)
from harness.report.figures.style import MUTED
from harness.report.summary import ALL

READING = (
    "Output tokens per second over plain, paired by prompt and boot at concurrency 1, by boot above. Bars are 95 % intervals;"
    " a hollow point has none: one block is descriptive. The dashed line is 1.0, as fast as plain; the scale is logarithmic."
    " n counts requests per arm, against concurrency from the level with fewest to the one with most."
)
ROW_INCHES = 0.15


def by_class(source: Source) -> Chart | None:
    """A panel for each concurrency, content classes as rows, arms beside each other in each; null without a speedup."""
    points = _points(source)
    if not points.value.notna().any():
        return None
    levels = sorted(points.concurrency.unique())
    width = (PANEL_INCHES if len(levels) > 1 else ALONE_INCHES)[0]
    panels = tuple(_class_panel(source, points, int(level), width) for level in levels)
    return Chart(
        "speedup",
        "Speedup by content class",
        READING,
        f"Speedup over plain. {sentence(list(_words(points[points.content_class == _whole(points)])))}.",
        _data(points),
        panels,
        source.legend(points.arm),
        columns=2 if len(panels) in (2, 4) else 3,
    )


def by_concurrency(source: Source) -> Chart | None:
    """A panel for each content class, all of them first; null when fewer than two levels were measured."""
    points = _points(source)
    points = points[points.value.notna()]
    levels = sorted(int(level) for level in points.concurrency.unique())
    if len(levels) < 2:
        return None
    classes = sorted(dict.fromkeys(points.content_class), key=lambda name: name != ALL)
    limits = _limits(points)
    panels = tuple(_level_panel(source, points[points.content_class == name], name, levels, limits) for name in classes)
    whole = points[points.content_class == _whole(points)].sort_values(["arm", "concurrency"], kind="stable")
    alt = f"Speedup over plain against concurrency. {sentence(list(_words(whole)))}."
    arms = source.legend(points.arm)
    return Chart("speedup-concurrency", "Speedup against concurrency", READING, alt, _data(points), panels, arms)


def _points(source: Source) -> pd.DataFrame:
    """Speedups of every arm but plain, with the control verdict apart from the claim; a confounded one has no value."""
    found = source.numbers[(source.numbers.metric == "speedup") & (source.numbers.arm != source.run.plain)].copy()
    found["verdict"] = found.note.str.split(": ").str[0]
    found["claim"] = found.note.str.split(": ", n=1).str[1].fillna("")
    found.loc[found.verdict == "CONFOUNDED", ["value", "low", "high"]] = float("nan")
    return found.reset_index(drop=True)


def _whole(points: pd.DataFrame) -> str:
    """`all`, or the only class of a run with one."""
    names = list(dict.fromkeys(points.content_class))
    return ALL if ALL in names else str(names[0])


def _limits(points: pd.DataFrame) -> tuple[float, float]:
    return extent(points[["value", "low", "high"]])


def _class_panel(source: Source, points: pd.DataFrame, level: int, width: float) -> Panel:
    here = points[points.concurrency == level]
    classes, arms = list(dict.fromkeys(here.content_class)), list(dict.fromkeys(here.arm))
    height = 0.95 + ROW_INCHES * len(classes) * (len(arms) + 1)

    def draw(axes: Axes) -> None:
        for row, name in enumerate(classes):
            for arm, offset in zip(arms, offsets(len(arms)), strict=True):
                _point(axes, source, here[(here.content_class == name) & (here.arm == arm)], row + offset)
            if row:
                axes.axhline(row - 0.5, color=MUTED.light, linewidth=0.4)
        names_axis(axes, [_with_n(source, level, name) for name in classes], -0.5)
        ratio_axis(axes.xaxis, *_limits(points))
        one_line(axes)
        axes.set_xlabel("speedup over plain (ratio)")

    return Panel(f"concurrency {level}", draw, (width, max(height, 1.6)))


def _with_n(source: Source, level: int, name: str) -> str:
    """The class with its requests per arm, as in the table."""
    counts = source.pick("error_rate")
    here = counts[(counts.concurrency == level) & (counts.content_class == name)].n
    return f"{name}\nn={here.max():.0f}" if len(here) else name


def _point(axes: Axes, source: Source, points: pd.DataFrame, y: float) -> None:
    for point in lines_of(points):
        if pd.isna(point.value):
            text = f"{point.arm}: {'confounded' if point.verdict == 'CONFOUNDED' else 'not measured'}"
            axes.annotate(text, (1, y), (5, 0), textcoords="offset points", va="center", fontsize=7, color=MUTED.light)
            continue
        look = source.looks[str(point.arm)]
        mark(axes.plot(point.value, y, look.marker, **_face(look.light, point))[0])
        if pd.notna(point.low):
            axes.plot([point.low, point.high], [y, y], color=look.light, linewidth=1.4, solid_capstyle="butt")


def _face(colour: str, point: Any) -> dict[str, Any]:
    """Filled with an interval, hollow without."""
    return {"color": colour, "markerfacecolor": colour if pd.notna(point.low) else "none", "markeredgewidth": 1.1}


def _level_panel(source: Source, points: pd.DataFrame, name: str, levels: Sequence[int], limits: tuple[float, float]) -> Panel:
    arms = list(dict.fromkeys(points.arm))

    def draw(axes: Axes) -> None:
        for arm, offset in zip(arms, offsets(len(arms), 0.14), strict=True):
            look, line = source.looks[arm], points[points.arm == arm].sort_values("concurrency")
            x = [level * 2**offset for level in line.concurrency]
            axes.plot(x, line.value, color=look.light, linewidth=1.1, alpha=0.8)
            for at, point in zip(x, lines_of(line), strict=True):
                mark(axes.plot(at, point.value, look.marker, **_face(look.light, point))[0])
                if pd.notna(point.low):
                    axes.plot([at, at], [point.low, point.high], color=look.light, linewidth=1.2)
        levels_axis(axes, levels)
        ratio_axis(axes.yaxis, *limits)
        one_line(axes, across=True)
        axes.set_ylabel("speedup over plain (ratio)")

    counts = source.pick("error_rate")
    return Panel(f"{name}, n={span(counts[counts.content_class == name].n)}", draw)


def _words(points: pd.DataFrame) -> Iterator[str]:
    for point in lines_of(points):
        where = f"{point.arm} at concurrency {point.concurrency}, {point.content_class}"
        if pd.isna(point.value):
            yield f"{where}: no number ({str(point.verdict).lower()})"
        elif pd.isna(point.low):
            yield f"{where}: {point.value:.2f}x, descriptive"
        else:
            yield f"{where}: {point.value:.2f}x [{point.low:.2f}, {point.high:.2f}]"


def _data(points: pd.DataFrame) -> pd.DataFrame:
    columns = {"value": "speedup_ratio", "low": "low_95", "high": "high_95", "n": "blocks", "verdict": "control"}
    wanted = ["concurrency", "content_class", "arm", *columns, "claim"]
    return points[wanted].rename(columns=columns)
