"""What a run would do, said before anything is launched: commands, what is pinned, memory, order, size, and what is missing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.baselines import for_arm, moved_by
from harness.best_budget import sweep_run
from harness.compose import ComposedRun, ConfigError, load_dotted, missing_parts
from harness.config import Arm, Run
from harness.design import design_lines
from harness.doctor_checkpoints import only_on_the_hub
from harness.engines.base import ArmError, ArmPlan, Engine, Memory
from harness.estimate import estimate
from harness.held import beside_asked, too_small
from harness.schedule import arms_with_control, plan_servings
from harness.workloads import check_workload, prompt_count

MEMORY_KINDS = {
    "weights_bytes": "target weights",
    "drafter_weights_bytes": "drafter weights",
    "kv_bytes": "KV cache",
    "draft_state_bytes": "draft state",
    "recurrent_state_bytes": "recurrent state",
    "graph_bytes": "CUDA graphs",
    "peak_bytes": "peak",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, unlaunched. `arms` is empty when the engine's adapter is missing; `seconds`, the least and the most that it will
    take, are null when unknown, and rough where the earlier run was of another rig or measured otherwise."""

    composed: ComposedRun
    arms: dict[str, ArmPlan]
    missing: tuple[str, ...]
    seconds: tuple[float, float] | None
    pace_from: str | None
    is_rough: bool = False


def plan_run(composed: ComposedRun, results: Path) -> Plan:
    """Asks the engine's adapter what it would run for each arm. Launches nothing; `results` is searched for an earlier pace.

    Raises ConfigError for an arm that the adapter refuses, on whatever machine.
    """
    run = composed.run
    arms = _arm_plans(run)
    lacking = (*missing_parts(run), *check_workload(run), *_lacking(arms), *_too_small(run, arms), *_sweep_lacks(composed))
    found, items = estimate(_parts(composed), results), tuple(dict.fromkeys(lacking))
    if found is None:
        return Plan(composed, arms, items, None, None)
    return Plan(composed, arms, items, (found.low, found.high), found.run_id, found.is_rough)


def _parts(composed: ComposedRun) -> list[Run]:
    """What would be measured: the run and, for best budgets, the sweep before it."""
    return [composed.run, *([sweep_run(composed).run] if composed.run.best_budget else [])]


def _sweep_lacks(composed: ComposedRun) -> list[str]:
    """Prompts that the budget sweep would need behind the measured ones and that are not there."""
    if not composed.run.best_budget:
        return []
    return [
        f"best_budget: the sweep asks prompts that are not measured; {text}" for text in check_workload(_parts(composed)[1])
    ]


def _arm_plans(run: Run) -> dict[str, ArmPlan]:
    try:
        adapter = load_dotted(run.engine.adapter)
    except ConfigError:
        return {}  # told by missing_parts
    if not hasattr(adapter, "plan"):
        raise ConfigError(f"engine.adapter: '{run.engine.adapter}' is no engine; rigs/engine/ names those that there are")
    return {name: _arm_plan(adapter, run, name, arm) for name, arm in arms_with_control(run).items()}


def _arm_plan(adapter: type[Engine], run: Run, name: str, arm: Arm) -> ArmPlan:
    """Raises ConfigError that names the arm's key, for what the adapter says this arm can never be."""
    try:
        return adapter.plan(for_arm(run, arm), arm)
    except ArmError as error:
        raise ConfigError(f"arms.{name}.{error}") from None


def _too_small(run: Run, arms: dict[str, ArmPlan]) -> list[str]:
    return too_small(run, next(iter(arms.values())).pinned) if arms else []


def _lacking(arms: dict[str, ArmPlan]) -> list[str]:
    """What the adapters miss, each item once, with the arms that need it unless all do."""
    items: dict[str, list[str]] = {}
    for name, arm in arms.items():
        for item in arm.missing:
            items.setdefault(item, []).append(name)
    return [item if len(names) == len(arms) else f"{item} (arm {', '.join(names)})" for item, names in items.items()]


def require_nothing_missing(plan: Plan) -> None:
    """Raises ConfigError with the first thing that this machine lacks for the run."""
    if plan.missing:
        more = len(plan.missing) - 1
        rest = f" (and {more} more: samerig plan {plan.composed.rig})" if more else ""
        raise ConfigError(f"missing: {plan.missing[0]}{rest}")


def print_plan(plan: Plan, console: Console) -> None:
    """The plan as text: per arm, then the schedule, then what is missing."""
    run = plan.composed.run
    console.print(f"[bold]{run.name}[/]  {escape(run.summary)}", soft_wrap=True)
    console.print(f"config {plan.composed.config_hash[:12]}   runs nothing: this is what [bold]bench[/] would do\n")
    for name, arm in plan.arms.items():
        _print_arm(name, arm, moved_by(run, run.arms[name]) if name in run.arms else {}, console)
    if all(arm.method == "plain" for arm in run.arms.values()):
        told = "no arm drafts, so that a run would compare nothing; add one: +arm@arms.ngram=ngram"
        console.print(f"[yellow]nothing to compare[/]: {told}", soft_wrap=True)
    _print_pinned(run, plan.arms, console)
    _print_schedule(plan, console)
    for item in plan.missing:
        console.print(f"[red]missing[/]: {escape(item)}", soft_wrap=True)
    if not plan.missing:
        console.print("[green]nothing is missing on this machine[/]")
    if absent := only_on_the_hub(run):
        told = f"not in the hub's cache here: {', '.join(absent)}; whether it has them, and how to get them: samerig doctor"
        console.print(escape(f"{told} {plan.composed.rig}"), soft_wrap=True)


def _print_arm(name: str, arm: ArmPlan, moved: dict[str, str], console: Console) -> None:
    console.print(f"[bold cyan]{escape(name)}[/]")
    for flag, told in moved.items():
        console.print(f"  its own      {escape(flag)}: {escape(told)}", soft_wrap=True)
    console.print("  base         " + escape(shlex.join(arm.base)), soft_wrap=True)
    console.print("  speculation  " + escape(shlex.join(arm.speculation) or "none"), soft_wrap=True)
    if arm.env:
        console.print(
            "  environment  " + escape(" ".join(f"{name}={value}" for name, value in arm.env.items())), soft_wrap=True
        )
    console.print("  memory       " + (memory_line(arm.memory) or "no estimate"), soft_wrap=True)
    if room := room_line(arm.memory) or _why_no_room(arm.memory):
        console.print("  room         " + room, soft_wrap=True)
    console.print()


def room_line(memory: Memory) -> str:
    """Whether the arm's KV cache fits beside its weights, by the estimate; empty where that cannot be told."""
    room, asked = memory.kv_room_tokens, memory.kv_tokens
    if room is None or asked is None:
        return ""
    if room < asked:
        return f"[red]does not fit[/]: room for {max(0, room)} KV tokens, the rig takes {asked}"
    return f"fits: {asked} KV tokens taken, room for {room}, so {room - asked} are left"


def _why_no_room(memory: Memory) -> str:
    is_drafter_unknown = memory.weights_bytes is not None and memory.drafter_weights_bytes is None
    return "drafter weights unknown; room not judged" if is_drafter_unknown else ""


def memory_line(memory: Memory) -> str:
    """Estimated bytes by kind, with a readable unit; kinds that the engine cannot estimate are left out."""
    known = [(label, getattr(memory, kind)) for kind, label in MEMORY_KINDS.items() if getattr(memory, kind) is not None]
    parts = [f"{label} {readable(size)} ({size} bytes)" for label, size in known]
    parts += [f"KV capacity {memory.kv_tokens} tokens"] if memory.kv_tokens is not None else []
    return "estimate: " + ", ".join(parts) if parts else ""


def readable(size: int) -> str:
    """Bytes with a binary unit: 1536 is 1.5 KiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _print_pinned(run: Run, arms: dict[str, ArmPlan], console: Console) -> None:
    """Factors held equal, once, beside what was asked where that is not the same; one that an arm's adapter pins differently is
    shown per arm."""
    if not arms:
        return
    console.print("[bold]pinned[/] (equal for every arm)")
    for factor in dict.fromkeys(factor for arm in arms.values() for factor in arm.pinned):
        values = {name: arm.pinned.get(factor, "not pinned") for name, arm in arms.items()}
        if len({repr(value) for value in values.values()}) == 1:
            asked = beside_asked(run, next(iter(arms.values())).pinned).get(factor)
            told = f" ({asked})" if asked else ""
            console.print(escape(f"  {factor} = {next(iter(values.values()))}{told}"), soft_wrap=True)
        else:
            told = ", ".join(f"{name} {value}" for name, value in values.items())
            console.print(f"  {escape(factor)} [yellow]differs[/]: {escape(told)}")
    console.print()


def _print_schedule(plan: Plan, console: Console) -> None:
    run = plan.composed.run
    servings = plan_servings(run, code_hash="")
    console.print(f"[bold]order[/] (protocol {escape(run.protocol.name)})")
    for block in range(run.protocol.blocks):
        order = [serving.arm_name for serving in servings if serving.block == block]
        console.print(f"  block {block}: {escape(' -> '.join(order))}")
    levels = ", ".join(str(level) for level in run.concurrency)
    cells = [cell for serving in servings for cell in serving.cells]
    requests = sum(prompt_count(run.protocol, cell.concurrency) for cell in cells)
    console.print(
        f"  {len(servings)} servings, {len(cells)} cells ({len(run.workload.sets)} prompt sets x concurrency {levels}), "
        f"{requests} measured requests",
        soft_wrap=True,
    )
    for line in design_lines(run):
        console.print(f"  {escape(line)}", soft_wrap=True)
    for sweep in _parts(plan.composed)[1:]:
        drafting = sum(arm.draft_budget is not None for arm in run.arms.values())
        console.print(
            f"  best budget: first a sweep of {len(plan_servings(sweep, code_hash=''))} servings over budgets "
            f"{', '.join(map(str, run.budget_candidates))} on prompts that are not measured; each of the {drafting} drafting "
            "arms then runs at its best budget too, where that is not the matched one (not in the time below)",
            soft_wrap=True,
        )
    console.print(f"  time: {time_line(plan)}\n", soft_wrap=True)


def time_line(plan: Plan) -> str:
    """What the run will take, with the earlier run that says so."""
    if plan.seconds is None:
        return "unknown; no earlier run of this machine, engine and target in the results folder"
    least, most = (_readable_time(seconds) for seconds in plan.seconds)
    if plan.is_rough:
        told = least if least == most else f"{least} to {most}"
        why = "which has other engine settings, methods, levels, answers or warm-up"
        return f"roughly {told}, from {plan.pace_from}, {why}"
    return f"about {_readable_time(sum(plan.seconds) / 2)}, estimated from {plan.pace_from}"


def _readable_time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
