"""What the page shows, ready for its template: every number comes from the summary, every sentence from the text report."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from harness import __version__
from harness.report import LEGEND
from harness.report.budgets import split
from harness.report.figures import Chart, Source, charts, panel_svg
from harness.report.figures.style import variables
from harness.report.footnotes import depth_lines, note_lines
from harness.report.header import header_lines
from harness.report.html.facts import SERVING_HEADINGS, environment, identity, replay, servings
from harness.report.html.ledger import told
from harness.report.html.swatch import swatch
from harness.report.sections import sections
from harness.report.summary import cells, numbers
from harness.report.table import DRAFTING, SPEED, Line
from harness.report.verdict import sentences

WIDE_INCHES = 4.0
ONE_PAGE = {1: 4, 2: 6, 3: 6}  # panels that a printed page holds at their usual size, by how many stand abreast on a screen
FIRST = "speedup"  # figures whose key begins so stand before the table


def page_of(source: Source, folder: Path) -> Mapping[str, Any]:
    """The values of the template."""
    run = source.run
    drawn = [_chart(source, chart) for chart in charts(source)] if run.requests else []
    told = [{"key": s.key, "title": s.title, "lines": lines} for s, lines in sections(run)]
    told += [{"key": "notes", "title": "Notes", "lines": lines}] if (lines := list(note_lines(run))) else []
    head = dict(header_lines(run))
    tables = _tables(source)
    return {
        "version": __version__,
        "title": f"{run.config['name']}: {', '.join(run.methods) or 'no arm yet'}",
        "run_id": run.run_id,
        "verdict": sentences(run, source.numbers),
        "incomplete": head.pop("incomplete", ""),
        "header": head.items(),
        "light": _rules(dark=False),
        "dark": _rules(dark=True),
        "css": Markup(files("harness.report.html").joinpath("style.css").read_text("utf-8")),
        "tables": tables,
        "legend": LEGEND,
        "first_charts": [chart for chart in drawn if chart["key"].startswith(FIRST)],
        "charts": [chart for chart in drawn if not chart["key"].startswith(FIRST)],
        "controls": _controls(source),
        "sections": told,
        "anchors": _anchors(bool(tables), drawn, told),
        "identity": identity(run),
        "replay": replay(folder),
        "config": (folder / "config.yaml").read_text("utf-8"),
        "environment": environment(run),
        "servings": servings(run),
        "serving_headings": SERVING_HEADINGS,
    }


def _rules(dark: bool) -> Markup:
    return Markup(" ".join(f"--{name}: {colour};" for name, colour in variables(dark).items()))


def _anchors(has_table: bool, drawn: list[dict[str, Any]], told: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Key and title of every section, in the order of the page."""
    parts = [(str(part["key"]), str(part["title"])) for part in drawn]
    at = sum(key.startswith(FIRST) for key, _ in parts)
    middle = [("table", "Table")] if has_table else []
    texts = [(str(part["key"]), str(part["title"])) for part in told]
    return [*parts[:at], *middle, *parts[at:], ("control", "Control"), *texts, ("rig", "Rig, replay")]


def _chart(source: Source, chart: Chart) -> dict[str, Any]:
    """A figure with its panels as SVG, its legend, and its data as a link that needs no server."""
    text = chart.data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return {
        "key": chart.key,
        "title": chart.title,
        "caption": chart.caption,
        "layout": _layout(chart),
        "legend": [{"name": arm, "swatch": Markup(swatch(look))} for arm, look in chart.arms.items()],
        "panels": [_panel(chart, i) for i in range(len(chart.panels))],
        "file": f"{source.run.run_id}-{chart.key}.csv",
        "href": f"data:text/csv;charset=utf-8,{quote(text)}",
        "lines": len(chart.data),
    }


def _layout(chart: Chart) -> str:
    """Classes of its grid: `pairs` are two abreast on a screen, `many` stand closer in print, so that a page holds them."""
    return f"panels{' pairs' if chart.columns == 2 else ''}{' many' if len(chart.panels) > ONE_PAGE[chart.columns] else ''}"


def _panel(chart: Chart, index: int) -> dict[str, Any]:
    """A panel with the chart's words on the first, its own title on the others: read aloud, a figure is told once."""
    panel = chart.panels[index]
    words = chart.alt if index == 0 else f"{chart.title}, {panel.title or 'continued'}; described with the first panel."
    svg = Markup(panel_svg(panel, f"{chart.key}-{index}", words))
    return {"svg": svg, "wide": panel.inches[0] > WIDE_INCHES}


def _tables(source: Source) -> list[dict[str, Any]]:
    """The printed tables with all columns: one for each concurrency, and a second where there are best budgets."""
    levels: dict[int, dict[str, dict[str, Line]]] = {}
    for cell in cells(source.run):
        line = {number.metric: number for number in numbers(cell)}
        levels.setdefault(cell.concurrency, {}).setdefault(cell.label, {})[cell.arm] = line
    return [_table(title, part) for level, groups in levels.items() for title, part in split(source.run, level, groups)]


def _table(title: str, groups: Mapping[str, Mapping[str, Line]]) -> dict[str, Any]:
    columns = (*SPEED, *DRAFTING)
    return {
        "title": title,
        "headings": [column.heading.split("\n") for column in columns],
        "groups": [
            {
                "name": name,
                "n": max((line["error_rate"].n or 0 for line in arms.values()), default=0),
                "rows": [[arm, *(column.text(line) for column in columns)] for arm, line in arms.items()],
            }
            for name, arms in groups.items()
        ],
        "notes": list(depth_lines(groups)),
    }


def _controls(source: Source) -> list[dict[str, Any]]:
    """The ledger of every arm against plain at every concurrency: verdict, and findings with both values and the remedy."""
    run = source.run
    found = [(level, run.control(arm, level)) for level in run.levels() for arm in run.methods]
    return [
        {
            "arm": control.arm,
            "title": f"{control.arm} against {control.plain}, concurrency {level}",
            "concurrency": level,
            "verdict": control.verdict,
            "counts": (len(control.findings_that_count), len(control.of("note"))),
            "findings": told(control),
        }
        for level, control in found
        if control
    ]
