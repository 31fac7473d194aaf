"""Numbers of a run for elsewhere: a CSV of all of them, a Markdown table for a model card or a pull request.

Both say in one line where they come from, so that a copied table can be traced and repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import __version__
from harness.report.header import header_lines
from harness.report.run import FinishedRun, read_run
from harness.report.sections import BEST
from harness.report.summary import Number, cells, frame, numbers
from harness.report.table import DRAFTING, SPEED, Line

SHOWN = ("target", "engine", "machine", "sampling", "protocol")
COLUMNS = (*SPEED, *DRAFTING)


def provenance(run: FinishedRun, folder: Path | None = None) -> str:
    """One line: run, rig, what was held still, hashes, day, and how to repeat it.

    Repeated from `folder` as it was named; without one, as in a table that leaves this machine, from the results folder.
    """
    words = dict(header_lines(run))
    hashes = [f"{name} {_hash(run, key)}" for name, key in (("config", "config_hash"), ("code", "code_hash"))]
    day = min((str(row["launched_at"])[:10] for row in run.servings), default="not measured")
    parts = [f"samerig {__version__}", run.run_id, run.config["name"], *(words[name] for name in SHOWN), *hashes, day]
    unfinished = [f"incomplete: {words['incomplete']}"] if "incomplete" in words else []
    config = (folder or Path("results") / run.run_id) / "config.yaml"
    return " · ".join([*parts, *unfinished, f"repeat: samerig bench {shlex.quote(str(config))}"])


def _hash(run: FinishedRun, key: str) -> str:
    return " and ".join(sorted({str(row[key])[:12] for row in run.servings})) or "-"


def csv(folder: Path) -> str:
    """Every number of the run, one a line; the first line is a comment with the provenance (`pandas.read_csv(comment="#")`)."""
    run = read_run(folder)
    return f"# {provenance(run, folder)}\n{frame(run).to_csv(index=False, lineterminator=chr(10))}"


def csv_of(folders: Sequence[Path]) -> str:
    """Every number of several runs under one heading, after a line of provenance for each."""
    texts = [csv(folder).split("\n", 2) for folder in folders]
    comments, headings, lines = zip(*texts, strict=True)
    return "\n".join([*comments, headings[0], "".join(lines)])


def markdown(folder: Path) -> str:
    """One table for each concurrency with a line per class and arm, control verdicts, `BEST`, then the provenance line."""
    run = read_run(folder)
    levels: dict[int, list[str]] = {}
    for cell in cells(run):
        line = {number.metric: number for number in numbers(cell)}
        texts = [f"{cell.label} n={line['error_rate'].n}", cell.arm, *(column.text(line) for column in COLUMNS), _control(line)]
        levels.setdefault(cell.concurrency, []).append(_row(texts))
    parts = [line for level, rows in levels.items() for line in (f"**concurrency {level}**", "", *_head(), *rows, "")]
    return "\n".join([*(parts or ["no measured requests yet", ""]), *_best(run), f"<sub>{provenance(run)}</sub>"]) + "\n"


def _head() -> Iterator[str]:
    names = [column.heading.replace("\n", " ").replace(" /", "/") for column in COLUMNS]
    yield _row(["class, n requests", "arm", *names, "control"])
    yield _row([":--", ":--", *("--:" for _ in names), ":--"])


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(map(_escaped, texts))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("~", "\\~")


def _best(run: FinishedRun) -> Iterator[str]:
    """The section on the second baseline, as a list; nothing without such an arm."""
    if lines := list(BEST.lines(run)):
        yield from (f"**{BEST.title}**", "", *(f"- {_escaped(line)}" for line in lines), "")


def _control(line: Line) -> str:
    """The verdict and the claim that a speedup carries."""
    number: Number | None = line.get("speedup")
    return "baseline" if number is None else number.note.replace("_", " ")
