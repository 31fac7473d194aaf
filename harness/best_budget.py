"""Each drafter at its own best draft budget: swept on prompts that nobody measures, then measured beside the matched budgets.

One budget for all is the clean swap, and it flatters whoever likes that budget. So with `best_budget` a sweep run of its own
asks the next prompts of every set at every candidate budget, in one block; the fastest budget of each arm at each concurrency
level joins the run as an arm of its own. The choice is made on other prompts, so the winner's luck does not carry over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from omegaconf import OmegaConf

from harness.compose import ComposedRun, judge
from harness.config import Arm, Run, Tuned
from harness.metrics import Missing
from harness.report.run import FinishedRun, read_run
from harness.speedup import output_speedup
from harness.store import code_hash, find_finished
from harness.workloads import prompt_count

Measure = Callable[[ComposedRun], Path]
Choice = Mapping[str, Mapping[int, int]]  # arm -> concurrency -> budget


def at_budget(name: str, budget: int) -> str:
    """Name of an arm at another budget than the matched one."""
    return f"{name}_k{budget}"


def sweep_run(composed: ComposedRun) -> ComposedRun:
    """The run that tries every candidate budget of every drafting arm beside plain, on the prompts behind the measured ones."""
    run, arms = composed.run, _untuned(composed.run)
    tried = {name: arm for name, arm in arms.items() if arm.draft_budget is None and arm.engine_flags is None}
    for name, arm in arms.items():
        if arm.draft_budget is not None:
            tried |= {at_budget(name, k): arm.model_copy(update={"draft_budget": k}) for k in run.budget_candidates}
    off = {"blocks": 1, "a_a": False, "width_rounds": 0, "replays_per_set": 0, "check_answers": "none"}
    changes = {
        "name": f"{run.name}-budgets",
        "summary": f"budget sweep for {run.name}: one block, prompts that {run.name} does not measure",
        "best_budget": False,
        "arms": tried,
        "protocol": run.protocol.model_copy(update=off),
        "workload": run.workload.model_copy(update={"skip_prompts": run.workload.skip_prompts + _measured(run)}),
    }
    return _composed(composed, run.model_copy(update=changes))


def with_best_budgets(composed: ComposedRun, results: Path, fresh: bool, measure: Measure) -> ComposedRun:
    """The run with the arms that the sweep chose. Measures the sweep unless a finished one of the same sources is there."""
    sweep = sweep_run(composed)
    folder = None if fresh else find_finished(results, sweep.config_hash, code_hash())
    folder = folder or measure(sweep)
    return joined(composed, best_budgets(read_run(folder), composed.run), folder.name)


def best_budgets(sweep: FinishedRun, run: Run) -> Choice:
    """Per drafting arm and concurrency the candidate of the largest speedup over plain in the sweep; of equals the smaller."""
    drafting = [name for name, arm in _untuned(run).items() if arm.draft_budget is not None]
    return {name: dict(_best_by_level(sweep, name, sorted(run.budget_candidates))) for name in drafting}


def _best_by_level(sweep: FinishedRun, name: str, candidates: list[int]) -> Iterator[tuple[int, int]]:
    for level in sweep.levels():
        arms = sweep.measured(level, tuple(sweep.classes(level)))
        tried = [k for k in candidates if arms.get(at_budget(name, k))]
        found = {k: output_speedup(arms, at_budget(name, k), str(sweep.plain), level) for k in tried}
        ratios = {k: speedup.ratio for k, speedup in found.items() if not isinstance(speedup, Missing)}
        if ratios:
            yield level, max(ratios, key=lambda k: ratios[k])


def joined(composed: ComposedRun, choice: Choice, sweep_id: str) -> ComposedRun:
    """The run with an arm for every budget that is best somewhere. An arm whose matched budget is best stands for itself."""
    arms: dict[str, Arm] = {}
    for name, arm in _untuned(composed.run).items():
        by_budget: dict[int, list[int]] = {}
        for level, budget in sorted(choice.get(name, {}).items()):
            by_budget.setdefault(budget, []).append(level)
        own = by_budget.pop(arm.draft_budget or 0, None)
        arms[name] = arm.model_copy(update={"tuned": Tuned(of=name, at=tuple(own), run=sweep_id) if own else None})
        for budget, levels in sorted(by_budget.items()):
            tuned = Tuned(of=name, at=tuple(levels), run=sweep_id)
            label = f"{arm.label} at its best budget {budget}"
            arms[at_budget(name, budget)] = arm.model_copy(update={"draft_budget": budget, "tuned": tuned, "label": label})
    return _composed(composed, composed.run.model_copy(update={"arms": arms}))


def _untuned(run: Run) -> dict[str, Arm]:
    """The arms of the rig: those that an earlier sweep added are left out, so that a saved configuration can be run again."""
    return {name: arm for name, arm in run.arms.items() if arm.tuned is None or arm.tuned.of == name}


def _measured(run: Run) -> int:
    return prompt_count(run.protocol, max(run.concurrency))


def _composed(composed: ComposedRun, run: Run) -> ComposedRun:
    """Judged anew, as if it had come from a file."""
    return judge(OmegaConf.create(run.model_dump(mode="json")), composed.rig, composed.overrides)
