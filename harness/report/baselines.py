"""Two baselines: what a drafter does, all else equal, is over plain; what a user gains is over plain at its best.

A run may hold a plain arm with engine flags of its own (`harness.baselines`). The table, its claims and every verdict stay over
plain, which pays what the rig pins for every arm and is called plain_matched here. Over the best baseline, the drafter and the
stated flags move together; anything that moves beside them confounds as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.baselines import moved_flags
from harness.control import Control
from harness.metrics import REASONS, Missing, Row
from harness.report.run import FinishedRun
from harness.speedup import claims, output_speedup
from harness.stats import Finding, Speedup, noise_floor

if TYPE_CHECKING:
    from harness.report.summary import Cell, Number

METRIC = "speedup_over_best"
Arms = dict[str, list[Row]]
Speedups = dict[str, Speedup | Missing]


def best_numbers(cell: Cell) -> Iterator[Number]:
    """`output_speedup` over plain at its best, for every arm but that and the A/A arm; of plain it says what the pins cost."""
    run, best = cell.run, cell.run.plain_best
    if best is None or cell.arm not in _compared(run):
        return
    every = tuple(run.classes(cell.concurrency))
    control = run.pair(best, cell.arm, cell.concurrency, (cell.label,) if cell.label in every else every)
    found = _over_best(run, cell.arms, cell.concurrency)
    ratio, verdict = found[cell.arm], "UNKNOWN" if control is None else control.beside_stated.verdict
    if isinstance(ratio, Missing):
        yield cell.number(METRIC, ratio, "ratio", 0, "blocks")
        return
    note = f"{verdict} beside the flags of {best}: {_claims(run, cell.arms, cell.concurrency, found)[cell.arm]}"
    yield replace(cell.number(METRIC, ratio.ratio, "ratio", ratio.blocks, "blocks"), low=ratio.low, high=ratio.high, note=note)


def best_lines(run: FinishedRun) -> Iterator[str]:
    """Which flags, then per concurrency every arm over all classes, and what else differed; nothing without such an arm."""
    best = run.plain_best
    if best is None or run.plain is None:
        return
    engine, flags = run.config["engine"], run.config["arms"][best]["engine_flags"]
    told = "; ".join(f"{name}: {words}" for name, words in moved_flags(engine, engine["flags"], flags).items())
    yield f"flags of {best}: {told}"
    yield (
        f"{run.plain} pays what the rig pins for every arm: it is plain_matched, the baseline of the table and of all verdicts;"
        f" over {best} the drafter and these flags move together"
    )
    for level in run.levels():
        arms = run.measured(level, tuple(run.classes(level)))
        found = _over_best(run, arms, level)
        controls = {arm: control for arm in found if (control := run.pair(best, arm, level)) is not None}
        known = _claims(run, arms, level, found)
        words = (f"{_name(run, arm)} {_ratio(found[arm], controls.get(arm), known.get(arm))}" for arm in found)
        yield f"concurrency {level}, over {best}, all classes: {', '.join(words)}"
        for arm, control in controls.items():
            yield _control(_name(run, arm), best, control)


def _compared(run: FinishedRun) -> list[str]:
    return [arm for arm in run.methods if arm not in (run.plain_best, run.a_a)]


def _over_best(run: FinishedRun, arms: Arms, concurrency: int) -> Speedups:
    """Every arm over plain at its best, on the rows of one line group of the table."""
    best, within = str(run.plain_best), run.within_sessions(arms)
    return {
        arm: Missing("two_sessions") if run.is_torn(arms, arm, best) else output_speedup(within, arm, best, concurrency)
        for arm in _compared(run)
    }


def _claims(run: FinishedRun, arms: Arms, concurrency: int, found: Speedups) -> dict[str, Finding]:
    """Adjusted for the number of arms, above the noise floor that plain against plain sets, as for the speedups over plain."""
    a_a, plain = run.a_a, str(run.plain)
    floor = 0.0 if a_a is None else noise_floor(output_speedup(run.within_sessions(arms), a_a, plain, concurrency))
    return claims(found, None, floor)


def _name(run: FinishedRun, arm: str) -> str:
    return "plain_matched" if arm == run.plain else arm


def _ratio(found: Speedup | Missing, control: Control | None, claim: Finding | None) -> str:
    if isinstance(found, Missing):
        return f"- ({REASONS[found.reason]})"
    if control is not None and control.beside_stated.verdict == "CONFOUNDED":
        return "confounded"
    if found.low is None or found.high is None:
        return f"{found.ratio:.2f}x descriptive"
    mark = " ~" if claim is not None and claim.kind == "no detected difference" else ""
    return f"{found.ratio:.2f}x [{found.low:.2f}, {found.high:.2f}]{mark}"


def _control(arm: str, best: str, control: Control) -> str:
    """The verdict as it is, the stated differences, and what else there is to tell with its own verdict."""
    stated = [f"{f.factor} ({f.arm} against {f.plain})" for f in control.findings if f.stated]
    others = control.beside_stated
    text = f"control: {arm} against {best} {control.verdict} · stated: {', '.join(stated) or 'nothing that was seen to differ'}"
    rest = "; ".join(str(finding) for finding in others.findings_that_count)
    return f"{text} · beside that {others.verdict}{f', {rest}' if rest else ''}"
