"""Parts of axes that several figures share: ratio scales, rows of names, offsets of arms that stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from harness.report.figures.style import INK

RATIO_TICKS = (0.1, 0.2, 0.25, 0.33, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)
MOST_TICKS = 6


def ratio_axis(axis: Axis, low: float, high: float) -> None:
    """A logarithmic scale from `low` to `high`, 1 included, with a few round ticks; a halving is as long as a doubling."""
    low, high = min(low, 0.92) * 0.97, max(high, 1.08) * 1.03
    # The stubs of matplotlib do not tell that an axis has a name, and the axes that it belongs to.
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})  # type: ignore[attr-defined]
    axis.set_major_locator(FixedLocator(_ticks(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axis.set_minor_formatter(NullFormatter())


def _ticks(low: float, high: float) -> list[float]:
    """Ticks inside the limits, thinned to a few, 1 always among them."""
    inside = [tick for tick in RATIO_TICKS if low <= tick <= high]
    step = -(-len(inside) // MOST_TICKS)
    return inside[inside.index(1) % step :: step] if inside else [1]


def levels_axis(axes: Axes, levels: Sequence[int]) -> None:
    """Concurrency on a scale of powers of two, one tick for each measured level."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(level) for level in levels]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(levels[0] / 1.3, levels[-1] * 1.3)
    axes.set_xlabel("concurrency (requests)")


def names_axis(axes: Axes, names: Sequence[str], low: float = -0.6) -> None:
    """Names down the left side, the first on top; no grid across them."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 1 - low, low)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def offsets(count: int, width: float = 0.76) -> list[float]:
    """Where `count` things stand around one tick, evenly over `width`."""
    step = width / max(count, 1)
    return [(i - (count - 1) / 2) * step for i in range(count)]


def one_line(axes: Axes, across: bool = False) -> None:
    """The line at 1.0: as fast as plain."""
    draw = axes.axhline if across else axes.axvline
    draw(1.0, color=INK.light, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1.5)
