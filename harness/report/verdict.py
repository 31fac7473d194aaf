"""The verdict of a run in sentences, one for each concurrency: who is fastest, by how much, over whom, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from harness.metrics import Missing
from harness.report.run import FinishedRun
from harness.report.summary import ALL, Number
from harness.speedup import output_speedup
from harness.stats import CLAIM_BLOCKS, Speedup, judge

HOW_SURE = {
    "claim": "95 % intervals; {blocks} blocks and an A/A arm, plain once more: a claim",
    "screen": "95 % intervals; {blocks} blocks: a screen, no claim; that takes five and an A/A arm, plain once more",
    "unknown": "95 % intervals; {blocks} blocks and an A/A arm, plain once more, but no claim while something is unknown",
    "descriptive": "one block: descriptive, nothing is claimed",
}


def sentences(run: FinishedRun, numbers: pd.DataFrame) -> list[str]:
    """The verdict, one sentence per concurrency; why there is none when nothing can be compared."""
    if not run.requests:
        return ["Nothing is measured yet."]
    if run.plain is None:
        return ["No plain arm was measured: nothing to compare with."]
    return [_level(run, _speedups(numbers, level), level) for level in run.levels()]


def _speedups(numbers: pd.DataFrame, level: int) -> list[Number]:
    """Speedups over all classes (or the only one) at a concurrency, highest first; arms that have none behind."""
    here = numbers[(numbers.metric == "speedup") & (numbers.concurrency == level)]
    names = list(dict.fromkeys(here.content_class))
    label = ALL if ALL in names else (names[0] if names else ALL)
    found = [Number(**line) for line in _lines(here, label)]
    return sorted(found, key=lambda n: -(n.value or 0.0))


def _lines(table: pd.DataFrame, label: str) -> list[dict[str, Any]]:
    """Lines of one class as the fields of a Number: nulls are nulls again."""
    lines = table[table.content_class == label].drop(columns="run_id").to_dict("records")
    return [{str(k): None if isinstance(v, float) and math.isnan(v) else v for k, v in line.items()} for line in lines]


def _level(run: FinishedRun, speedups: list[Number], level: int) -> str:
    arms = [n for n in speedups if run.methods[n.arm] != "plain"]
    known = [n for n in arms if n.value is not None and not n.note.startswith("CONFOUNDED")]
    where = f"At concurrency {level}"
    if not known:
        return f"{where}, no arm can be compared with {run.plain}{_left_out(arms)}."
    best, blocks = known[0], int(known[0].n or 0)
    said = _best(run, best, known, level) if best.low is not None else _described(run, best)
    requests = len(run.measured(level, tuple(run.classes(level)))[best.arm])
    sure = f"n={requests} requests an arm, {HOW_SURE[_grade(run, best)].format(blocks=blocks)}"
    return f"{where}, {said}{_left_out(arms)} ({sure})."


def _grade(run: FinishedRun, best: Number) -> str:
    """A key of HOW_SURE."""
    if best.low is None:
        return "descriptive"
    if (best.n or 0) < CLAIM_BLOCKS or not run.a_a:
        return "screen"
    return "unknown" if best.note.startswith("UNKNOWN") else "claim"


def _best(run: FinishedRun, best: Number, known: list[Number], level: int) -> str:
    """The fastest arm over plain and over the runner-up, or that none is faster."""
    claim = best.note.partition(": ")[2]
    if claim != "faster":
        slower = [n.arm for n in known if n.note.endswith(": slower")]
        told = f"; slower: {', '.join(slower)}" if slower else ""
        return f"no arm is detectably faster than {run.plain}: the highest is {best.arm} with {_ratio(best)}, {claim}{told}"
    text = f"{best.arm} delivers {_ratio(best)} the output tokens/s of {run.plain}, {_control(best)}"
    return text + "".join(_rival(run, best.arm, other.arm, level) for other in known[1:2])


def _described(run: FinishedRun, best: Number) -> str:
    return f"the highest ratio to {run.plain} is {best.arm} with {best.value:.2f}x, {_control(best)}"


def _ratio(number: Number) -> str:
    return _interval(number.value or 0.0, number.low or 0.0, number.high or 0.0)


def _interval(ratio: float, low: float, high: float) -> str:
    """Two decimals, three where a limit would read as 1.00: it decides on which side of 1 the interval lies."""
    digits = 3 if "1.00" in (f"{low:.2f}", f"{high:.2f}") else 2
    return f"{ratio:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]"


def _control(number: Number) -> str:
    """The control verdict in a word of the sentence."""
    verdict = number.note.partition(": ")[0]
    words = {
        "CONTROLLED": "only the drafter differing (CONTROLLED)",
        "IMPLIED": "the engine having moved something because of the drafter (IMPLIED)",
    }
    return words.get(verdict, "with something that could not be read (UNKNOWN)")


def _rival(run: FinishedRun, best: str, other: str, level: int) -> str:
    """Best against runner-up, paired like any other comparison: `; 1.14x [...] over dflash, the next: not told apart`."""
    arms = run.within_sessions(run.measured(level, tuple(run.classes(level))))
    found = output_speedup(arms, best, other, level)
    control = run.pair(other, best, level)
    if (
        isinstance(found, Missing)
        or found.low is None
        or found.high is None
        or control is None
        or control.verdict == "CONFOUNDED"
    ):
        return f"; {other} is next and cannot be compared with it directly"
    told = "told apart" if _apart(found) else "not told apart"
    return f"; {_interval(found.ratio, found.low, found.high)} over {other}, the next: {told}"


def _apart(found: Speedup) -> bool:
    return judge(found, 0.0).kind in ("faster", "slower")


def _left_out(arms: list[Number]) -> str:
    """Arms that are in no ranking, with the reason in a word."""
    words = list(_reasons(arms))
    return f"; not compared: {', '.join(words)}" if words else ""


def _reasons(arms: list[Number]) -> Iterator[str]:
    for number in arms:
        if number.note.startswith("CONFOUNDED"):
            yield f"{number.arm} (confounded)"
        elif number.value is None:
            yield f"{number.arm} ({number.note.replace('_', ' ') or 'not measured'})"
