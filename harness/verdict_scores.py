"""A run's arms on a decision matrix: what can be measured is scored from the run, the rest from what the matrix states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.claims.arithmetic import weighted_total
from harness.config_errors import near
from harness.report.run import FinishedRun
from harness.report.summary import ALL, Number, cells, numbers
from harness.verdict_matrix import Criterion, Matrix


@dataclass(frozen=True, slots=True)
class Scored:
    """One arm's column of a decision matrix: scores by criterion, null where there is none, and the total.

    `counted` names the criteria in the total: those that every arm has a score for, so that totals compare.
    """

    arm: str
    scores: dict[str, float | None]
    counted: tuple[str, ...]
    total: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of a run by concurrency, content class, arm and metric."""

    run: FinishedRun
    table: Mapping[tuple[int, str, str, str], Number]

    def of(self, level: int, content: str, arm: str, metric: str) -> float | None:
        """A number; null where it is missing or confounded. A speedup of plain is 1."""
        if metric == "speedup" and arm == self.run.plain:
            return 1.0
        number = self.table.get((level, content, arm, metric))
        return None if number is None or number.note.startswith("CONFOUNDED") else number.value

    def over_all(self, level: int, arm: str, metric: str) -> float | None:
        """The same over all content classes; null where nothing was measured."""
        if not (classes := self.run.classes(level)):
            return None
        return self.of(level, ALL if len(classes) > 1 else classes[0], arm, metric)

    @property
    def lowest(self) -> int:
        return next(iter(self.run.levels()), 1)


def decision_matrix(run: FinishedRun, matrix: Matrix) -> list[Scored]:
    """Every arm on every criterion. Raises ValueError for a measure that is not in `MEASURES`."""
    figures = Figures(run, {(n.concurrency, n.content_class, n.arm, n.metric): n for cell in cells(run) for n in numbers(cell)})
    arms = [arm for arm in run.methods if arm not in (run.a_a, run.plain_best)]
    scores = {arm: {c.name: _score(figures, arm, c) for c in matrix.criteria} for arm in arms}
    counted = tuple(c.name for c in matrix.criteria if all(scores[arm][c.name] is not None for arm in arms))
    return [Scored(arm, scores[arm], counted, _total(scores[arm], counted, matrix)) for arm in arms]


def _total(scores: Mapping[str, float | None], counted: tuple[str, ...], matrix: Matrix) -> float | None:
    known = {name: score for name in counted if (score := scores[name]) is not None}
    return weighted_total(known, {name: matrix.weights[name] for name in counted}) if known else None


def _score(figures: Figures, arm: str, criterion: Criterion) -> float | None:
    if criterion.measure is None:
        return criterion.scores.get(figures.run.methods[arm])
    if criterion.measure not in MEASURES:
        raise ValueError(
            f"criterion '{criterion.name}': measure '{criterion.measure}' is unknown; {near(criterion.measure, MEASURES)}"
        )
    value = MEASURES[criterion.measure](figures, arm)
    return None if value is None else criterion.score(value)


def speedup_lowest(figures: Figures, arm: str) -> float | None:
    """Speedup over all content classes at the lowest concurrency."""
    return figures.over_all(figures.lowest, arm, "speedup")


def speedup_highest(figures: Figures, arm: str) -> float | None:
    """Speedup over all content classes at the highest concurrency; null when the run has one level only."""
    levels = figures.run.levels()
    return figures.over_all(levels[-1], arm, "speedup") if len(levels) > 1 else None


def speedup_worst_class(figures: Figures, arm: str) -> float | None:
    """The smallest speedup of any content class at any concurrency; null when one of them is missing."""
    run = figures.run
    found = [figures.of(level, name, arm, "speedup") for level in run.levels() for name in run.classes(level)]
    known = [value for value in found if value is not None]
    return min(known) if known and len(known) == len(found) else None


def ttft_ratio(figures: Figures, arm: str) -> float | None:
    """Median time to the first token over plain's, at the lowest concurrency; null for a pair that is confounded."""
    if figures.over_all(figures.lowest, arm, "speedup") is None:
        return None
    ours, plain = (figures.over_all(figures.lowest, name, "ttft_ms_p50") for name in (arm, str(figures.run.plain)))
    return None if ours is None or not plain else ours / plain


def drafter_memory_share(figures: Figures, arm: str) -> float | None:
    """The drafter's memory over plain's peak; 0 for plain."""
    ours = 0.0 if arm == figures.run.plain else figures.over_all(figures.lowest, arm, "drafter_memory")
    peak = figures.over_all(figures.lowest, str(figures.run.plain), "peak_memory")
    return None if ours is None or not peak else ours / peak


def wasted_per_step(figures: Figures, arm: str) -> float | None:
    """Drafts thrown away per step at the lowest concurrency; 0 for plain."""
    return 0.0 if arm == figures.run.plain else figures.over_all(figures.lowest, arm, "wasted_per_step")


MEASURES: dict[str, Callable[[Figures, str], float | None]] = {
    rule.__name__: rule
    for rule in (speedup_lowest, speedup_highest, speedup_worst_class, ttft_ratio, drafter_memory_share, wasted_per_step)
}
