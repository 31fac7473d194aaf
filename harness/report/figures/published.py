"""What others published, by method: speedups, and acceptance lengths against the budget. Read, not measured here."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from harness.report.figures.axis import names_axis, one_line, ratio_axis
from harness.report.figures.chart import PANEL_INCHES, Chart, Panel, extent, lines_of, mark, sentence
from harness.report.figures.style import LOOKS, MUTED, Look

READING = (
    "Each point is one published number: its rig, target, task and concurrency are its own, so a column of points is no"
    " comparison. Hollow points carry a flag (a reason to look twice). Speedups are over plain as the source says; the dashed"
    " line is 1.0."
)
# Families that have no arm here share one neutral look.
OTHER = Look(MUTED.light, MUTED.dark, ".", "")


def speedups(claims: pd.DataFrame) -> Chart | None:
    """Published speedups over plain by method; null when there is none."""
    rows = claims[claims.speedup_low.notna() & claims.over.isna() & (claims.speedup_low > 0)]
    rows = rows[rows.method.notna() & (rows.method != "plain")]
    return _chart(rows, "speedup_low", "published-speedup", "Published speedups", "speedup over plain (ratio)")


def lengths(claims: pd.DataFrame) -> Chart | None:
    """Published acceptance lengths by method; null when there is none."""
    rows = claims[claims.acceptance_length_low.notna() & claims.method.notna() & (claims.method != "plain")]
    name = "acceptance length (tokens/step)"
    return _chart(rows, "acceptance_length_low", "published-length", "Published acceptance lengths", name)


def _chart(rows: pd.DataFrame, column: str, key: str, title: str, label: str) -> Chart | None:
    if rows.empty:
        return None
    methods = sorted(
        set(rows.method), key=lambda name: (name not in LOOKS, list(LOOKS).index(name) if name in LOOKS else 0, name)
    )
    data = rows[["claim_id", "source", "method", "target", "engine", "hardware", "concurrency", "budget", column]].assign(
        flagged=rows["flags"].map(len) > 0
    )
    panel = Panel(
        title, lambda axes: _draw(axes, data, column, methods, label), (PANEL_INCHES[0] * 2, 1.1 + 0.27 * len(methods))
    )
    words = [_words(name, data[data.method == name][column]) for name in methods]
    return Chart(key, title, READING, f"{title}. {sentence(words)}.", data, (panel,))


def _words(name: str, values: pd.Series[float]) -> str:
    return f"{name}: {len(values)} numbers from {values.min():.2f} to {values.max():.2f}, median {values.median():.2f}"


def _draw(axes: Axes, data: pd.DataFrame, column: str, methods: list[str], label: str) -> None:
    for y, name in enumerate(methods):
        look = LOOKS.get(name, OTHER)
        for flagged in (False, True):
            here = data[(data.method == name) & (data.flagged == flagged)]
            face = "none" if flagged else look.light
            for i, point in enumerate(lines_of(here)):
                shift = 0.25 * ((i * 7) % 5 - 2) / 2  # spread over the row, the same every time
                mark(axes.plot(getattr(point, column), y + shift, look.marker, color=look.light, mfc=face, ms=4, alpha=0.7)[0])
    names_axis(axes, [f"{name} (n={(data.method == name).sum()})" for name in methods])
    if column.startswith("speedup"):
        ratio_axis(axes.xaxis, *extent(data[[column]]))
        one_line(axes)
    axes.set_xlabel(label)
