"""Two tables where a run has best budgets: one matched budget for all, and each drafter at its own best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from harness.report.run import FinishedRun

Line = TypeVar("Line")
Groups = Mapping[str, Mapping[str, Line]]  # content class -> arm -> line


def matched_arms(run: FinishedRun) -> list[str]:
    """Arms at the budget that the rig gives them; without best budgets, all."""
    return [arm for arm in run.methods if (tuned := _tuned(run, arm)) is None or tuned["of"] == arm]


def best_arms(run: FinishedRun, concurrency: int) -> list[str]:
    """Plain arms, and of every drafter the arm with its best budget at this concurrency; empty without a sweep."""
    best = [arm for arm in run.methods if (tuned := _tuned(run, arm)) is not None and concurrency in tuned["at"]]
    return [arm for arm in run.methods if run.methods[arm] == "plain" or arm in best] if best else []


def split(run: FinishedRun, concurrency: int, groups: Groups[Line]) -> Iterator[tuple[str, dict[str, dict[str, Line]]]]:
    """The tables of one concurrency with their titles: the matched one, and the best-budget one where there is one."""
    best = best_arms(run, concurrency)
    yield f"concurrency {concurrency}{', matched draft budget' if best else ''}", _only(groups, matched_arms(run))
    if best:
        sweeps = sorted({str(tuned["run"]) for arm in best if (tuned := _tuned(run, arm)) is not None})
        label = f"each drafter at its own best draft budget, chosen on other prompts in {', '.join(sweeps)}"
        yield f"concurrency {concurrency}, best budget: {label}", _only(groups, best)


def _only(groups: Groups[Line], arms: list[str]) -> dict[str, dict[str, Line]]:
    return {name: {arm: line for arm, line in lines.items() if arm in arms} for name, lines in groups.items()}


def _tuned(run: FinishedRun, arm: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = run.config["arms"].get(arm, {}).get("tuned")
    return found
