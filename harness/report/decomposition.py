"""The section on causes: what a decode step is made of, what would be needed, what the parts predict, and what decides."""

from __future__ import annotations

from collections.abc import Iterator

from harness import metrics as m
from harness.decompose import Decomposition, crossover_of, decompose
from harness.decompose_causes import cause
from harness.metrics import Maybe, Missing, Row
from harness.metrics.breakeven import Crossover
from harness.metrics.decomposition import StepCost, step_cost, step_difference_ms, sweep_fault, verify_ms_by_width
from harness.report.run import FinishedRun
from harness.speedup import output_speedup
from harness.stats import Speedup


def decomposition_of(
    run: FinishedRun, arm: str, concurrency: int, classes: tuple[str, ...] | None = None
) -> Decomposition | Missing:
    """An arm's steps beside plain's at a concurrency, over these content classes (null is all)."""
    if run.plain is None:
        return Missing("no_pairs")
    measured = run.measured(concurrency, tuple(run.classes(concurrency)) if classes is None else classes)
    ledgers = [m.ledger_of(row, run.budget(arm)) for row in m.succeeded(measured[arm])]
    coverage: Maybe = m.coverage(m.pool(ledgers)) if ledgers else Missing("no_requests")
    sweep = [row for row in run.widths if row["arm"] == run.plain]
    steps = (steps_of(run, arm, concurrency, classes), steps_of(run, run.plain, concurrency, classes))
    return decompose(*steps, sweep, concurrency, run.budget(arm), coverage)


def steps_of(run: FinishedRun, arm: str, concurrency: int, classes: tuple[str, ...] | None = None) -> list[Row]:
    steps = [step for step in run.steps if step["arm"] == arm and int(step["concurrency"]) == concurrency]
    return steps if classes is None else [step for step in steps if step["content_class"] in classes]


def decomposition_lines(run: FinishedRun) -> Iterator[str]:
    """Per concurrency: the steps of every arm, a sentence per drafting arm, the width sweep; then the crossovers."""
    for level in run.levels():
        if run.plain is None:
            return
        plain = step_cost(steps_of(run, run.plain, level), level)
        if not isinstance(plain, Missing):
            yield f"concurrency {level}, {run.plain}: {_step(plain)}"
        for arm, method in run.methods.items():
            if method != "plain":
                yield from _arm(run, arm, level)
        yield from _sweep(run, level)
    yield from _crossovers(run)


def _arm(run: FinishedRun, arm: str, level: int) -> Iterator[str]:
    """The parts of an arm's step are its own; beside plain they say something only where the pair is comparable."""
    found = decomposition_of(run, arm, level)
    if unlike := _not_comparable(run, arm, level):
        own = "" if isinstance(found, Missing) else f"{_step(found.arm)} · "
        yield f"concurrency {level}, {arm}: {own}no cause: {m.REASONS[unlike]}"
        return
    if isinstance(found, Missing):
        yield from _from_streams(run, arm, level, found)
        return
    yield f"concurrency {level}, {arm}: {_step(found.arm)} · {_needed(found)} · {_speeds(found)}"
    yield cause(arm, found).sentence


def _not_comparable(run: FinishedRun, arm: str, level: int) -> str | None:
    """The reason for which an arm's steps say nothing beside plain's."""
    control = run.control(arm, level)
    if control is not None and control.verdict == "CONFOUNDED":
        return "confounded"
    return "two_sessions" if run.is_torn(run.measured(level, tuple(run.classes(level))), arm) else None


def _step(cost: StepCost) -> str:
    parts = f"draft {cost.draft_ms:.2f} + verify {cost.verify_ms:.2f} + sample {cost.sample_ms:.2f} + other {cost.other_ms:.2f}"
    return f"step {cost.total_ms:.2f} ms = {parts} · {cost.tokens:.2f} tokens/step · {cost.width:.1f} rows a request"


def _needed(found: Decomposition) -> str:
    if isinstance(found.break_even, Missing):
        return f"break-even accept length - ({m.REASONS[found.break_even.reason]})"
    most = "" if found.budget is None else f" of at most {found.budget + 1}"
    return f"break-even accept length {found.break_even:.2f}{_interval(found.break_even_interval)}{most}"


def _speeds(found: Decomposition) -> str:
    """Measured and predicted, each named as what it is."""
    low, high = found.measured.low, found.measured.high
    measured = f"decode {found.measured.ratio:.2f}x{_interval(None if low is None or high is None else (low, high))} measured"
    if isinstance(found.predicted, Missing):
        return f"{measured}, not predicted ({m.REASONS[found.predicted.reason]})"
    return f"{measured}, {found.predicted:.2f}x{_interval(found.predicted_interval)} predicted from the parts"


def _interval(found: tuple[float, float] | None) -> str:
    return "" if found is None else f" [{found[0]:.2f}, {found[1]:.2f}]"


def _sweep(run: FinishedRun, level: int) -> Iterator[str]:
    """Every width of the sweep as a ratio to one row, with one row's time; why there is none where it was disturbed."""
    sweep = [row for row in run.widths if row["arm"] == run.plain]
    by_width = verify_ms_by_width(sweep, level)
    if fault := sweep_fault(sweep, level):
        yield f"width sweep at {level}: left out, {fault}; leave the machine idle and repeat"
    elif 1 in by_width:
        ratios = ", ".join(f"{width} {ms / by_width[1]:.2f}" for width, ms in by_width.items() if width > 1)
        yield f"width sweep at {level}: one row {by_width[1]:.2f} ms; rows and ratio to one: {ratios}"


def _from_streams(run: FinishedRun, arm: str, level: int, reason: Missing) -> Iterator[str]:
    """For an engine that tells no steps: the difference of step times, drafting and the wider pass together."""
    times = {name: m.mean(_step_times(run, name, level)) for name in (arm, str(run.plain))}
    more = step_difference_ms(times[arm], times[str(run.plain)])
    if isinstance(more, Missing):
        yield f"concurrency {level}, {arm}: no decomposition ({m.REASONS[reason.reason]})"
        return
    ours, theirs = (time for time in times.values() if not isinstance(time, Missing))
    yield (
        f"concurrency {level}, {arm}: step {ours:.2f} ms, {run.plain} {theirs:.2f}, by the streams: {more:+.2f} ms for drafting"
        f" and the wider pass together ({m.REASONS[reason.reason]})"
    )


def _step_times(run: FinishedRun, arm: str, level: int) -> list[Maybe]:
    found: list[Maybe] = []
    for row in m.succeeded(_rows(run, arm, level)):
        gaps = m.step_ms(row, run.budget(arm))
        found += [gaps] if isinstance(gaps, Missing) else [sum(gaps) / len(gaps)]
    return found


def _crossovers(run: FinishedRun) -> Iterator[str]:
    """Per drafting arm, where there are two levels: the concurrency up to which it pays."""
    levels = run.levels()
    if len(levels) < 2 or run.plain is None:
        return
    for arm, method in run.methods.items():
        if method == "plain":
            continue
        if unlike := next(filter(None, (_not_comparable(run, arm, level) for level in levels)), None):
            yield f"{arm}: no crossover ({m.REASONS[unlike]})"
            continue
        speedups = {level: _speedup(run, arm, level) for level in levels}
        found = crossover_of(speedups)
        if isinstance(found, Crossover):
            yield f"{arm}: speedup falls through 1 at concurrency {found.concurrency:.1f}{_bounds(found, levels)}"
        else:
            yield f"{arm}: {_no_crossover(speedups, found)}"


def _speedup(run: FinishedRun, arm: str, level: int) -> Speedup | Missing:
    arms = run.within_sessions(run.measured(level, tuple(run.classes(level))))
    return output_speedup(arms, arm, str(run.plain), level)


def _bounds(found: Crossover, levels: list[int]) -> str:
    if found.low is None and found.high is None:
        return " (interpolated between the measured levels)"
    low = f"below {levels[0]}" if found.low is None else f"{found.low:.1f}"
    high = f"above {levels[-1]}" if found.high is None else f"{found.high:.1f}"
    return f" [{low}, {high}]"


def _no_crossover(speedups: dict[int, Speedup | Missing], reason: Missing) -> str:
    known = {level: s.ratio for level, s in speedups.items() if not isinstance(s, Missing)}
    if reason.reason != "no_crossover" or not known:
        return f"no crossover ({m.REASONS[reason.reason]})"
    if min(known.values()) > 1:
        return f"faster at every measured level, {min(known)} to {max(known)}; where it would cross was not measured"
    side = "not faster at any measured level" if max(known.values()) <= 1 else "faster at higher levels only"
    return f"{side}, {min(known)} to {max(known)}"


def _rows(run: FinishedRun, arm: str, concurrency: int) -> list[Row]:
    return run.measured(concurrency, tuple(run.classes(concurrency)))[arm]
