"""Memory of each arm by kind, and what its drafter took from the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness import metrics as m
from harness.metrics import Missing
from harness.report.figures.axis import names_axis
from harness.report.figures.chart import ALONE_INCHES, Chart, Panel, Source, lines_of, mark, sentence
from harness.report.figures.style import INK, MUTED, PARTS

GIB = 2**30
KINDS = {
    "weights_bytes": ("weights", PARTS[0], ""),
    "drafter_weights_bytes": ("drafter weights", PARTS[1], "///"),
    "kv_bytes": ("KV cache", PARTS[2], ""),
    "draft_state_bytes": ("draft state", PARTS[3], "xxx"),
    "recurrent_state_bytes": ("recurrent state", PARTS[1], "|||"),
    "graph_bytes": ("graphs", PARTS[2], "+++"),
}
READING = (
    "Memory of a serving by kind, as the engine tells it, the largest over its servings, counted in the data, in GiB (2^30"
    " bytes). The vertical tick is the peak that was seen: a reserved cache that was not filled yet lies beyond it. A kind that"
    " was not reported is absent, not zero."
)


def stack(source: Source) -> Chart | None:
    """A bar for each arm; null when no engine told its memory."""
    data = pd.DataFrame([_line(source, arm) for arm in source.run.methods])
    kinds = [kind for kind in KINDS if data[_gib(kind)].notna().any()]
    if not kinds:
        return None
    bars = Panel("", lambda axes: _draw(axes, data, kinds), (ALONE_INCHES[0], 1.35 + 0.36 * len(data)))
    words = [f"{line['arm']}: {_told(line, kinds)}" for line in data.to_dict("records")]
    caption = f"{READING} {_lost_words(data)}"
    return Chart("memory", "Memory", caption, f"Memory by kind. {sentence(words)}. {_lost_words(data)}", data, (bars,))


def _gib(kind: str) -> str:
    return f"{kind.removesuffix('_bytes')}_gib"


def _told(line: Mapping[Any, Any], kinds: list[str]) -> str:
    return ", ".join(f"{KINDS[k][0]} {line[_gib(k)]:.2f} GiB" for k in kinds if pd.notna(line[_gib(k)]))


def _line(source: Source, arm: str) -> dict[str, object]:
    """The largest of every kind over the arm's servings; null where none told it."""
    run = source.run
    servings = [row for row in run.servings if row["arm"] == arm]
    line: dict[str, object] = {"arm": arm, "servings": len(servings)}
    for kind in KINDS:
        line[_gib(kind)] = _largest([m.integer(m.as_map(row["memory"]).get(kind)) for row in servings], GIB)
    peaks = [m.peak_memory(row, run.samples) for row in servings]
    line["peak_gib"] = _largest([None if isinstance(peak, Missing) else peak for peak in peaks], GIB)
    line["kv_tokens"] = _largest([m.integer(m.as_map(row["memory"]).get("kv_tokens")) for row in servings], 1)
    lost = m.kv_tokens_lost(servings, [row for row in run.servings if row["arm"] == run.plain])
    line["kv_tokens_lost"] = None if isinstance(lost, Missing) else lost
    return line


def _largest(values: list[int | None], unit: int) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) / unit if known else None


def _lost_words(data: pd.DataFrame) -> str:
    """KV tokens that each drafter cost."""
    known = data[data.kv_tokens_lost.notna()]
    if known.empty:
        return "KV capacity in tokens was not reported."
    lost = [f"{line.arm} {line.kv_tokens_lost:,.0f}" for line in lines_of(known) if line.kv_tokens_lost]
    whole = f"{known.kv_tokens.max():,.0f} tokens"
    return (
        f"KV tokens lost to the drafter, of {whole}: {', '.join(lost)}." if lost else f"No arm lost KV capacity: {whole} each."
    )


def _draw(axes: Axes, data: pd.DataFrame, kinds: list[str]) -> None:
    left = [0.0] * len(data)
    for kind in kinds:
        name, tone, hatch = KINDS[kind]
        width = [0.0 if pd.isna(value) else float(value) for value in data[_gib(kind)]]
        bars = axes.barh(range(len(data)), width, 0.6, left, color=tone.light, edgecolor=INK.light, linewidth=0.5, label=name)
        for bar in bars:
            bar.set_hatch(hatch)
        mark(*(bar for bar in bars if bar.get_width() > 0))
        left = [a + b for a, b in zip(left, width, strict=True)]
    for y, peak in enumerate(data.peak_gib):
        if pd.notna(peak):
            label = "peak seen" if y == 0 else None
            axes.plot([peak, peak], [y - 0.42, y + 0.42], color=INK.light, linewidth=2.2, label=label, solid_capstyle="butt")
    names_axis(axes, [str(arm) for arm in data.arm])
    highest = max(*left, *(float(p) for p in data.peak_gib if pd.notna(p)), 1e-9)
    axes.set(xlim=(0, highest * 1.04), xlabel="GiB")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, fontsize=8, labelcolor=MUTED.light)
