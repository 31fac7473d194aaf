"""Distributions over requests of the time to the first token and the time per token after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness import metrics as m
from harness.metrics import Maybe, Missing, Row
from harness.report.figures.axis import names_axis
from harness.report.figures.chart import PANEL_INCHES, Chart, Panel, Source, lines_of, mark, sentence
from harness.report.summary import cells

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
READING = (
    "One row for each arm over the requests that failed in no arm, all classes together. The box spans the middle half, the"
    " thin line the 5th to the 95th percentile, the ticks lowest and highest, the marker the median; n in the data."
)


def distributions(source: Source) -> Chart | None:
    """Two panels for each concurrency: TTFT and TPOT in ms. An arm whose stream refuses TPOT is named and has no box."""
    data = pd.DataFrame(list(_lines(source)))
    if data.empty or not data.n.any():
        return None
    kinds = [(level, kind) for level in source.run.levels() for kind in ("TTFT", "TPOT")]
    panels = tuple(
        _panel(source, data[(data.concurrency == level) & (data.time == kind)], level, kind) for level, kind in kinds
    )
    words = [
        f"{p.arm} {p.time} at concurrency {p.concurrency}: median {p.p50_ms:.4g} ms, p95 {p.p95_ms:.4g} ms"
        for p in lines_of(data[data.n > 0])
    ]
    alt = f"Time to first token and time per output token. {sentence(words)}."
    return Chart("latency", "TTFT and TPOT distributions", READING, alt, data, panels, source.legend(source.run.methods), 2)


def _lines(source: Source) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    wholes = {level: source.run.classes(level) for level in source.run.levels()}
    for cell in cells(source.run):
        if cell.label != "all" and len(wholes[cell.concurrency]) > 1:
            continue
        times: tuple[tuple[str, Callable[[Row], Maybe]], ...] = (
            ("TTFT", m.ttft_ms),
            ("TPOT", partial(m.tpot_ms, budget=cell.budget)),
        )
        for kind, time in times:
            keys = {"concurrency": cell.concurrency, "arm": cell.arm, "time": kind}
            found.append(keys | _quantiles([time(row) for row in cell.rows]))
    return found


def _quantiles(values: list[Maybe]) -> dict[str, object]:
    """Percentiles in ms with their n; none when the stream of one request is coalesced, as in the table."""
    refused = Missing("coalesced") in values
    numbers = [] if refused else [v for v in values if not isinstance(v, Missing)]
    cuts = np.percentile(numbers, QUANTILES) if numbers else [float("nan")] * len(QUANTILES)
    return {"n": len(numbers), **{f"p{q}_ms": float(cut) for q, cut in zip(QUANTILES, cuts, strict=True)}}


def _panel(source: Source, lines: pd.DataFrame, level: int, kind: str) -> Panel:
    arms = list(lines.arm)

    def draw(axes: Axes) -> None:
        for y, line in enumerate(lines_of(lines)):
            look = source.looks[str(line.arm)]
            if not line.n:
                axes.text(0.02, y, "refused or not measured", va="center", fontsize=8, transform=axes.get_yaxis_transform())
                continue
            axes.plot([line.p0_ms, line.p100_ms], [y, y], "|", color=look.light, markersize=5)
            axes.plot([line.p5_ms, line.p95_ms], [y, y], color=look.light, linewidth=1.2)
            width = max(float(line.p75_ms) - float(line.p25_ms), 0.0)
            axes.barh(y, width, 0.5, float(line.p25_ms), facecolor="none", edgecolor=look.light, hatch=look.hatch)
            mark(axes.plot(line.p50_ms, y, look.marker, color=look.light, markersize=7)[0])
        names_axis(axes, arms)
        axes.set_xlim(0, float(lines.p100_ms.max()) * 1.05 if lines.n.any() else 1)
        axes.set_xlabel(f"{kind} (ms), n={int(lines.n.max())}")

    return Panel(f"{kind}, concurrency {level}", draw, (PANEL_INCHES[0], 0.9 + 0.34 * len(arms)))
