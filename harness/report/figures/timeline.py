"""The run over time: which cell ran when, and memory, power, clocks and load beside it."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.metrics import Row, is_null
from harness.report.figures.axis import names_axis
from harness.report.figures.chart import ALONE_INCHES, Chart, Panel, Source, mark
from harness.report.figures.style import INK, MUTED

QUANTITIES = {
    "power_w": ("power", "W", 1.0),
    "clock_mhz": ("clock", "MHz", 1.0),
    "memory_bytes": ("memory of the serving", "GiB", 2.0**30),
    "utilization": ("busy", "share", 1.0),
    "temperature_c": ("temperature", "degC", 1.0),
    "steal": ("stolen CPU time", "share", 1.0),
}
ALWAYS = ("power_w", "clock_mhz", "memory_bytes")
BINS = 240
READING = (
    "Minutes since the first launch. On top, the cells: one bar from the first request sent to the last answer, a row for each"
    " arm and a line where a block begins. Below, the background samples of every device, the cells marked along the top; each"
    " line is the mean over a slice of the run, the band its lowest and highest sample. Busy is the share"
    " of the time in which a GPU worked, or the CPUs of the host."
)


class Times:
    """Minutes since the first launch. Monotonic clocks of two sessions are joined by the time of day of each launch."""

    def __init__(self, source: Source) -> None:
        self._servings = {str(row["serving_id"]): row for row in source.run.servings}

    @cached_property
    def _start(self) -> float:
        return min(_seconds(row) for row in self._servings.values())

    def minutes(self, serving_id: object, at_ns: int) -> float:
        serving = self._servings[str(serving_id)]
        return (_seconds(serving) - self._start + (at_ns - int(serving["launched_ns"])) / 1e9) / 60


def _seconds(serving: Row) -> float:
    return datetime.fromisoformat(str(serving["launched_at"])).timestamp()


def timeline(source: Source) -> Chart | None:
    """The cells and a panel for each sampled quantity that has values; null without samples."""
    times = Times(source)
    samples = _binned(source, times)
    if samples.empty:
        return None
    cells, blocks = _cells(source, times), _blocks(source, times)
    end = max(float(samples.minute.max()), max((cell["end_minute"] for cell in cells), default=0.0))
    known = [name for name in QUANTITIES if (samples.quantity == QUANTITIES[name][0]).any()]
    still = [label for label in ("stolen CPU time",) if _is_zero(samples, label)]
    known = [name for name in known if QUANTITIES[name][0] not in still]
    absent = [QUANTITIES[name][0] for name in ALWAYS if name not in known]
    panels = (
        _cells_panel(source, cells, blocks, end),
        *(_quantity_panel(source, samples, name, cells, blocks, end) for name in known),
    )
    note = f" Not reported on this machine: {', '.join(absent)}." if absent else ""
    note += "".join(f" No {label}." for label in still)
    words = "; ".join(_words(samples, name) for name in known)
    alt = f"{len(cells)} cells in {len(blocks)} blocks over {end:.1f} minutes. {words}."
    return Chart("timeline", "Timeline", READING + note, alt, samples, panels, source.legend(source.run.methods), 1)


def _is_zero(samples: pd.DataFrame, label: str) -> bool:
    """A line on the axis would look like an empty plot; words say it better."""
    here = samples[samples.quantity == label]
    return not here.empty and not here["max"].any()


def _binned(source: Source, times: Times) -> pd.DataFrame:
    """Mean, lowest and highest of every quantity and device over equal slices of the run."""
    rows = [s for s in source.run.samples if str(s["serving_id"]) in times._servings]
    if not rows:
        return pd.DataFrame()
    minute = np.array([times.minutes(s["serving_id"], int(s["at_ns"])) for s in rows])
    width = max(float(minute.max()) / BINS, 1e-9)
    frames = []
    for name, (label, unit, scale) in QUANTITIES.items():
        values = np.array([np.nan if is_null(s[name]) else float(s[name]) / scale for s in rows])
        table = pd.DataFrame({"device": [s["device"] for s in rows], "slice": minute // width, "value": values}).dropna()
        means = table.groupby(["device", "slice"]).value.agg(["mean", "min", "max", "count"]).reset_index()
        means.insert(0, "quantity", label)
        frames.append(means.assign(unit=unit, minute=(means["slice"] + 0.5) * width).drop(columns="slice"))
    return pd.concat([f for f in frames if not f.empty] or frames[:1], ignore_index=True).rename(columns={"count": "samples"})


def _cells(source: Source, times: Times) -> list[dict[str, float]]:
    """Measured cells: row of the arm, start and end in minutes."""
    order = {arm: i for i, arm in enumerate(source.run.methods)}
    spans: dict[str, list[Row]] = {}
    for row in source.run.requests:
        if row["phase"] == "measured":
            spans.setdefault(str(row["cell_id"]), []).append(row)
    return [
        {
            "row": float(order[str(rows[0]["arm"])]),
            "start_minute": times.minutes(rows[0]["serving_id"], min(int(r["sent_ns"]) for r in rows)),
            "end_minute": times.minutes(rows[0]["serving_id"], max(int(r["ended_ns"]) for r in rows)),
        }
        for rows in spans.values()
    ]


def _blocks(source: Source, times: Times) -> list[float]:
    """Minute at which each block's first serving was launched."""
    first: dict[int, float] = {}
    for row in source.run.servings:
        at = times.minutes(row["serving_id"], int(row["launched_ns"]))
        first[int(row["block"])] = min(at, first.get(int(row["block"]), at))
    return [first[block] for block in sorted(first)]


def _spans(cells: list[dict[str, float]], row: int, end: float) -> list[tuple[float, float]]:
    """Start and width of an arm's cells, in minutes; a short one is as wide as can be seen."""
    return [(c["start_minute"], max(c["end_minute"] - c["start_minute"], end / 800)) for c in cells if c["row"] == row]


def _cells_panel(source: Source, cells: list[dict[str, float]], blocks: list[float], end: float) -> Panel:
    arms = list(source.run.methods)

    def draw(axes: Axes) -> None:
        for row, arm in enumerate(arms):
            look = source.looks[arm]
            spans = _spans(cells, row, end)
            if spans:
                mark(axes.broken_barh(spans, (row - 0.32, 0.64), facecolor=look.light, edgecolor="none"))
        names_axis(axes, arms)
        _minutes(axes, blocks, end)

    return Panel("cells", draw, (ALONE_INCHES[0], max(1.2 + 0.24 * len(arms), 1.8)))


def _quantity_panel(
    source: Source, samples: pd.DataFrame, name: str, cells: list[dict[str, float]], blocks: list[float], end: float
) -> Panel:
    label, unit, _ = QUANTITIES[name]

    def draw(axes: Axes) -> None:
        here = samples[samples.quantity == label]
        styles = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 2, 1, 2)))
        for i, (device, line) in enumerate(here.groupby("device")):
            axes.fill_between(line.minute, line["min"], line["max"], color=MUTED.light, alpha=0.25, linewidth=0)
            dashes = styles[i % 4]
            mark(axes.plot(line.minute, line["mean"], color=INK.light, ls=dashes, lw=1.1, label=str(device))[0])
        if here.device.nunique() > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_ylabel(unit)
        axes.set_ylim(0, max(float(here["max"].max()) * 1.18, 1e-9))
        for row, look in enumerate(source.looks.values()):
            spans, strip = _spans(cells, row, end), axes.get_xaxis_transform()
            axes.broken_barh(spans, (0.94, 0.06), transform=strip, facecolor=look.light, edgecolor="none")
        _minutes(axes, blocks, end)

    return Panel(label, draw, (ALONE_INCHES[0], 1.9))


def _minutes(axes: Axes, blocks: list[float], end: float) -> None:
    for start in blocks:
        axes.axvline(start, color=MUTED.light, linewidth=0.7, linestyle=(0, (1, 2)))
    axes.set(xlim=(0, end * 1.01), xlabel="minutes")


def _words(samples: pd.DataFrame, name: str) -> str:
    label, unit, _ = QUANTITIES[name]
    here = samples[samples.quantity == label]
    return f"{label} {here['min'].min():.3g} to {here['max'].max():.3g} {unit}"
