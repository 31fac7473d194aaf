"""Figures of a run: `charts` gives all that the run has data for, `figure` draws one with matplotlib, `chart_svg` as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.report.figures import acceptance, decomposition, latency, memory, published, speedup, timeline
from harness.report.figures.chart import Chart, Panel, Source, figure, source
from harness.report.figures.style import looks
from harness.report.figures.svg import chart_svg, panel_svg

__all__ = ["FIGURES", "Chart", "Panel", "Source", "chart_svg", "charts", "figure", "looks", "panel_svg", "published", "source"]

# In the order of the report. Each gives null when the run has no data for it: an empty plot says nothing.
FIGURES: tuple[Callable[[Source], Chart | None], ...] = (
    speedup.by_class,
    speedup.by_concurrency,
    acceptance.length_against_rate,
    acceptance.by_position,
    decomposition.bars,
    latency.distributions,
    memory.stack,
    timeline.timeline,
)


def charts(found: Source) -> Iterator[Chart]:
    """Every figure that this run can fill."""
    for make in FIGURES:
        if (chart := make(found)) is not None:
            yield chart
