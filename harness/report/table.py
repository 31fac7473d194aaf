"""The terminal table: one per concurrency, content classes as groups, arms as rows; two tables where the console is narrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.table import Table

from harness.report.summary import Number

WIDE = 118
FULL_COVERAGE = 0.95
MARKS = {"IMPLIED": " †", "UNKNOWN": " ?"}
Line = Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how its text follows from a line's numbers."""

    heading: str
    text: Callable[[Line], str]


def value(line: Line, metric: str, form: str = ".1f") -> str:
    """A number in its form; `-` when there is none, with its reason in the summary and, where it matters, below the table."""
    number = line.get(metric)
    if number is None or number.value is None:
        return "refused" if number is not None and number.note in ("coalesced", "exceeds_budget") else "-"
    return format(number.value, form)


def verdict_of(line: Line) -> str:
    """The control verdict that a line's speedup carries; empty for plain, and where there is no speedup."""
    number = line.get("speedup")
    return "" if number is None else number.note.partition(": ")[0] if ": " in number.note else ""


def without_speedup(line: Line) -> str:
    """The key of `REASONS` that says why an arm has no speedup; empty where it has one, and for plain."""
    number = line.get("speedup")
    return number.note if number is not None and number.value is None else ""


def _speedup(line: Line, allow_confounded: bool = False) -> str:
    """A speedup with its interval and marks; one of a confounded pair only on demand, struck and labelled."""
    number = line.get("speedup")
    if number is None:
        return "baseline"
    if number.value is None:
        return "-"
    verdict, _, claim = number.note.partition(": ")
    if verdict == "CONFOUNDED":
        return f"[strike]~~{number.value:.2f}x~~[/] confounded" if allow_confounded else "confounded"
    gates = line.get("quality_marks")
    marks = MARKS.get(verdict, "") + (" !!" if gates is not None and gates.value else "")
    if number.low is None or number.high is None:
        return f"{number.value:.2f}x descriptive{marks}"
    return f"{number.value:.2f}x [{number.low:.2f}, {number.high:.2f}]{' ~' if claim.startswith('no detected') else ''}{marks}"


def _prefill(line: Line) -> str:
    rate, depth = value(line, "prefill_tps_p50", ".0f"), value(line, "prompt_tokens_p50", ".0f")
    return rate if rate == "-" else f"{rate} @{depth}"


def _ttft(line: Line) -> str:
    number = line.get("ttft_ms_p50")
    form = ".2f" if number is not None and number.value is not None and number.value < 10 else ".0f"
    one, two = value(line, "ttft_ms_p50", form), value(line, "ttft_ms_p95", form)
    return one if one == two else f"{one}/{two}"


def _length(line: Line) -> str:
    number, text = line.get("acceptance_length"), value(line, "acceptance_length", ".2f")
    if number is None or number.value is None or number.low is None:
        return text
    return f"{text} ±{number.value - number.low:.2f}"


def _rate(line: Line) -> str:
    """A rate over few drafts says little: it comes with the share of steps that had one, where that is not nearly all."""
    number, text = line.get("acceptance_rate"), value(line, "acceptance_rate", ".2f")
    if number is None or number.value is None:
        return text
    covered = line["coverage"].value
    return f"{text} @K={number.budget}" + (f" {100 * covered:.0f}%" if covered is not None and covered < FULL_COVERAGE else "")


def _memory(line: Line) -> str:
    return "/".join(_size(line.get(name)) for name in ("peak_memory", "drafter_memory"))


def _size(number: Number | None) -> str:
    if number is None or number.value is None:
        return "-"
    gib = number.value / 2**30
    return f"{gib:.2f}" if gib < 10 else f"{gib:.1f}"


def _errors(line: Line) -> str:
    number = line.get("error_rate")
    return "-" if number is None or number.value is None else f"{100 * number.value:.3g}%"


SPEED = (
    Column("out\ntok/s", lambda line: value(line, "output_tps")),
    Column("speedup\n[95 %]", _speedup),
    Column("prefill\ntok/s @depth", _prefill),
    Column("TTFT ms\np50/p95", _ttft),
    Column("TPOT\nms", lambda line: value(line, "tpot_ms_p50", ".2f")),
)
DRAFTING = (
    Column("accept\nlength", _length),
    Column("accept\nrate @K", _rate),
    Column("tokens\n/step", lambda line: value(line, "tokens_per_step", ".2f")),
    Column("GiB peak\n/drafter", _memory),
    Column("errors", _errors),
)


def tables(groups: Mapping[str, Mapping[str, Line]], width: int, allow_confounded: bool = False) -> list[Table]:
    """The table of one concurrency: content class -> arm -> numbers. Narrow consoles get speed and drafting apart.

    A confounded speedup is not shown, or with `allow_confounded` struck and labelled.
    """
    speed: tuple[Column, ...] = SPEED
    if allow_confounded:
        struck = partial(_speedup, allow_confounded=True)
        speed = tuple(replace(column, text=struck) if column.text is _speedup else column for column in SPEED)
    parts: Sequence[tuple[Column, ...]] = [speed + DRAFTING] if width >= WIDE else [speed, DRAFTING]
    return [_table(groups, columns) for columns in parts]


def _table(groups: Mapping[str, Mapping[str, Line]], columns: Sequence[Column]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("class\n  arm", no_wrap=True, overflow="ellipsis", max_width=16)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, arms in groups.items():
        prompts = max((line["error_rate"].n or 0 for line in arms.values()), default=0)
        table.add_row(f"[bold]{name}[/] n={prompts}")
        for arm, line in arms.items():
            table.add_row(f"  {arm}", *(column.text(line) for column in columns))
    return table
