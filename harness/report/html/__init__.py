"""The report as one self-contained HTML file: no script, nothing fetched, readable in light, dark, print and on a phone."""

from __future__ import annotations

import os
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.report.figures import source
from harness.report.html.page import page_of

FILE = "report.html"


def write_html(folder: Path) -> Path:
    """Write the page of a run into its folder, finished or not, in place of an older one; its path."""
    path = folder / FILE
    aside = path.with_name(f".tmp-{FILE}")
    aside.write_text(render(folder), "utf-8")
    os.replace(aside, path)
    return path


def render(folder: Path) -> str:
    """The page of a run. Raises FileNotFoundError where there is no run."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(page=page_of(source(folder), folder))
