"""Panels as SVG: text stays text, colours become CSS variables so that light and dark paper switch them, nothing is random."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from matplotlib.figure import Figure

from harness.report.figures.chart import MARK, Chart, Panel, draw_panel, figure
from harness.report.figures.style import PAPER, styled, variables
from harness.report.figures.style import names_of_colours as _names

NO_METADATA: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}


def panel_svg(panel: Panel, name: str, alt: str) -> str:
    """One panel as an inline SVG element that scales to its container. `name` makes its ids unique on a page."""
    with styled(name):
        whole = Figure(figsize=panel.inches, layout="constrained")
        draw_panel(whole.add_subplot(), panel)
        text = _text(whole)
    return _inline(text, name, panel.title, alt)


def chart_svg(chart: Chart) -> str:
    """A whole figure as a stand-alone SVG file that follows the reader's colour scheme, on its own paper."""
    whole = figure(chart)
    with styled(chart.key):
        text = _inline(_text(whole), chart.key, chart.title, chart.alt)
    light, dark = (_rules(is_dark) for is_dark in (False, True))
    style = f"<style>svg{{{light}background:var(--{PAPER.name})}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    return text.replace("<title", f"{style}<title", 1) + "\n"


def _rules(dark: bool) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in variables(dark).items())


def _text(whole: Figure) -> str:
    out = io.StringIO()
    whole.savefig(out, format="svg", metadata=NO_METADATA)
    return out.getvalue()


def _inline(text: str, name: str, title: str, alt: str) -> str:
    """The svg element alone, with a text alternative, marks as a class, and ids only where something refers to them."""
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = text.replace(f'<g id="{MARK}"', f'<g class="{MARK}"').replace(f'<path id="{MARK}"', f'<path class="{MARK}"')
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, variable in _names().items():
        text = text.replace(colour, f"var(--{variable})")
    viewbox = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg class="panel" role="img" aria-labelledby="{name}-t {name}-d" xmlns="http://www.w3.org/2000/svg"'
    head += f' xmlns:xlink="http://www.w3.org/1999/xlink" {viewbox[0] if viewbox else ""}>'
    words = f'<title id="{name}-t">{escape(title or name)}</title><desc id="{name}-d">{escape(alt)}</desc>'
    return head + words + text[text.index(">") + 1 :]
