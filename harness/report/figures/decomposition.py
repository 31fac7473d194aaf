"""Where a decode step's time goes: drafting, the target's pass, and the rest, per step and per token."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes

from harness.metrics import Missing
from harness.metrics.decomposition import StepCost, step_cost
from harness.report.figures.axis import names_axis
from harness.report.figures.chart import PANEL_INCHES, Chart, Panel, Source, lines_of, mark, sentence, span
from harness.report.figures.style import INK, MUTED
from harness.report.figures.style import PARTS as TONES

PARTS = {
    "draft_ms": ("draft", TONES[1], "///"),
    "verify_ms": ("verify", TONES[0], ""),
    "machinery_ms": ("other", TONES[3], ""),
}
READING = (
    "Mean time of a decode step: drafting, the target's pass (verify) and the rest (sampling, bookkeeping), over the steps with"
    " a full batch; and the same divided by the tokens that a step delivers to each request: an arm is faster than plain if"
    " its bar per token is shorter. Times are the engine's own, without prefill; n counts steps, of the arm with fewest to the"
    " one with most."
)


def bars(source: Source) -> Chart | None:
    """Two panels for each concurrency; null for an engine that does not tell its steps."""
    data = pd.DataFrame(list(_lines(source)))
    if data.empty:
        return None
    levels = sorted(int(level) for level in data.concurrency.unique())
    panels = tuple(p for level in levels for p in _panels(data[data.concurrency == level], level))
    words = [
        f"{p.arm} at concurrency {p.concurrency}: draft {p.draft_ms:.3g}, verify {p.verify_ms:.3g}, other {p.machinery_ms:.3g}"
        f" ms a step, {p.total_ms / p.tokens_per_step:.3g} ms a token"
        for p in lines_of(data)
    ]
    return Chart("decomposition", "Where the time goes", READING, f"Time by part. {sentence(words)}.", data, panels, columns=2)


def _lines(source: Source) -> Iterator[dict[str, object]]:
    run = source.run
    for level in run.levels():
        for arm in run.methods:
            steps = [s for s in run.steps if s["arm"] == arm and int(s["concurrency"]) == level]
            cost = step_cost(steps, level)
            if not isinstance(cost, Missing):
                yield {"concurrency": level, "arm": arm, **_parts(cost), "tokens_per_step": cost.tokens, "steps": cost.steps}


def _parts(cost: StepCost) -> dict[str, float]:
    return {name: float(getattr(cost, name)) for name in (*PARTS, "total_ms")}


def _panels(lines: pd.DataFrame, level: int) -> Iterator[Panel]:
    size = (PANEL_INCHES[0], 1.35 + 0.34 * len(lines))
    where = f"concurrency {level}, n={span(lines.steps)}"
    yield Panel("", lambda axes: _draw(axes, lines, f"ms per step, {where}", per_token=False), size)
    yield Panel("", lambda axes: _draw(axes, lines, f"ms per token, {where}", per_token=True), size)


def _draw(axes: Axes, lines: pd.DataFrame, label: str, per_token: bool) -> None:
    left = pd.Series(0.0, index=lines.index)
    for part, (name, tone, hatch) in PARTS.items():
        width = lines[part] / lines.tokens_per_step if per_token else lines[part]
        drawn = axes.barh(range(len(lines)), width, 0.6, left, color=tone.light, edgecolor=INK.light, linewidth=0.5, label=name)
        for bar in drawn:
            bar.set_hatch(hatch)
        mark(*(bar for bar in drawn if bar.get_width() > 0))
        left = left + width
    for y, end in enumerate(left):
        axes.annotate(f"{end:#.3g}", (end, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    names_axis(axes, [str(arm) for arm in lines.arm])
    axes.set(xlim=(0, float(left.max()) * 1.14), xlabel=label)
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8, labelcolor=MUTED.light)
