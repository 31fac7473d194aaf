"""Parts of axes that several figures share: ratio scales, rows of names, offsets of arms that stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from harness.report.figures.style import INK

# From fine to coarse; every scale holds 1 and steps evenly, more or less, as the eye sees a ratio.
RATIO_TICKS = (
    (0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2),
    (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6),
    (0.4, 0.5, 0.65, 0.8, 1, 1.25, 1.6, 2, 2.5, 3.2),
    (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8),
    (0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32),
    (0.01, 0.1, 1, 10, 100),
)
MOST_TICKS, MOST_CHARACTERS = 7, 28  # the labels of all ticks together; more touch on the narrowest panel
END = 1.3  # how far a scale may end short of the limits, as a ratio


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
    """Ticks inside the limits, of the finest scale that has not too many there."""
    for scale in RATIO_TICKS:
        inside = [tick for tick in scale if low <= tick <= high]
        if _has_room(inside) and scale[0] <= low * END and high <= scale[-1] * END:
            return inside
    return [1.0]


def _has_room(ticks: Sequence[float]) -> bool:
    return len(ticks) <= MOST_TICKS and sum(len(f"{tick:g}x") for tick in ticks) <= MOST_CHARACTERS


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
