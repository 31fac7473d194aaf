"""`samerig report`: which of its forms was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.folders import require_place
from harness.report import export, print_report
from harness.report.compare import print_comparison
from harness.report.folder import print_folder, run_folders
from harness.run_file import FILE


def require_figure(file: Path) -> None:
    """Raises ValueError for a folder, a suffix that nobody knows, and a place that cannot be written; reads no run."""
    if file.is_dir() or not file.suffix:
        raise ValueError(f"--figure {file}: names no file; give one with its kind, such as {file / 'speedup.svg'}")
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if file.suffix.lower().removeprefix(".") not in kinds:
        raise ValueError(
            f"--figure {file}: no figure is written as {file.suffix}; known: {' '.join(f'.{one}' for one in kinds)}"
        )
    require_place("--figure", file)


def figure_file(folder: Path, file: Path) -> None:
    """Write the speedup figure of a run: SVG that follows light and dark, or whatever matplotlib knows by the suffix.

    Raises ValueError for a run without a speedup, and for a folder or a suffix that nobody knows.
    """
    require_figure(file)
    from harness.report.figures import chart_svg, figure, source
    from harness.report.figures.speedup import by_class
    from harness.report.figures.style import styled

    found = source(folder)
    chart = by_class(found)
    if chart is None:
        raise ValueError(f"{folder}: has no speedup to draw; measure plain and another arm in one run")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix.lower() == ".svg":
        file.write_text(chart_svg(chart), "utf-8")
        return
    with styled():
        figure(chart).savefig(file, facecolor="white", dpi=150)


def show(folders: Sequence[Path], console: Console, form: str, file: Path | None = None, allow_confounded: bool = False) -> int:
    """One form of report for every folder; two runs in the printed form stand side by side. Returns the exit code.

    A folder that holds runs is one table of them all; in the other forms it stands for its runs.
    `allow_confounded` prints speedups of confounded pairs, struck. `file` asks for the figure of a single run. Raises
    ValueError when it is asked of several.
    """
    if file is not None:
        if len(folders) != 1:
            raise ValueError(f"--figure {file}: draws one run, {len(folders)} were named")
        figure_file(folders[0], file)
        console.print(f"figure: {file}", soft_wrap=True, markup=False)
        return 0
    if form == "table" and len(folders) == 1 and not (folders[0] / FILE).exists():
        return print_folder(folders[0], console)
    folders = [run for folder in folders for run in run_folders(folder)]
    if form == "csv":
        print(export.csv_of(folders), end="")
        return 0
    if form == "table" and len(folders) == 2:
        return print_comparison(folders[0], folders[1], console)
    for folder in folders:
        _show(folder, console, form, allow_confounded)
    return 0


def _show(folder: Path, console: Console, form: str, allow_confounded: bool) -> None:
    if form == "table":
        print_report(folder, console, allow_confounded)
    elif form == "html":
        from harness.report.html import write_html  # takes a second: matplotlib comes with it

        console.print(str(write_html(folder)), soft_wrap=True, markup=False)
    else:
        print(export.markdown(folder), end="")
