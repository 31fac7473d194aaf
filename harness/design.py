"""The design of the experiment in words: what `samerig plan` says before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator

from harness.config import Run
from harness.schedule import A_A, arms_with_control
from harness.workloads import prompt_count

CLAIM_BLOCKS = 5  # as harness.stats grades a speedup


def design_lines(run: Run) -> list[str]:
    """Unequal budgets, order, replication, pace, warm-up and window of a run, one line each."""
    return [*_budgets(run), *_order(run), _replication(run), *_pace(run), _warm_up(run), _window(run)]


def _budgets(run: Run) -> Iterator[str]:
    """Arms with other budgets than their fellows differ in more than the drafter."""
    budgets = {name: arm.draft_budget for name, arm in run.arms.items() if arm.draft_budget is not None}
    if len(set(budgets.values())) > 1:
        told = ", ".join(f"{name} {budget}" for name, budget in budgets.items())
        yield f"budgets: not equal ({told}), so the drafter is not the only variable between these arms"


def _order(run: Run) -> Iterator[str]:
    blocks, arms = run.protocol.blocks, len(arms_with_control(run))
    how = "A B, B A, ... (ABBA)" if arms == 2 else "rotated by one place per block"
    yield f"order: {how}; every arm is a fresh boot in every block"
    if blocks > 1 and blocks % arms:
        more = arms - blocks % arms
        yield f"order: {blocks} blocks of {arms} arms leave places uneven by one; {blocks + more} blocks would even them out"


def _replication(run: Run) -> str:
    blocks, a_a = run.protocol.blocks, run.protocol.a_a
    if blocks == 1:
        return "replicates: one block is descriptive, no interval"
    grade = "can carry a claim" if blocks >= CLAIM_BLOCKS and a_a else "a screen; a claim takes five and an A/A arm"
    floor = f"{A_A} is plain again: its difference from plain is the noise floor" if a_a else "no A/A arm: no noise floor"
    return f"replicates: {blocks} blocks, {grade}; {floor}"


def _pace(run: Run) -> Iterator[str]:
    if seconds := run.protocol.calibration_s:
        yield f"pace: {seconds:g} s of fixed work before every launch tell whether the machine was as fast for every arm"


def _warm_up(run: Run) -> str:
    protocol = run.protocol
    if protocol.warmup_prompts == 0:
        return "warm-up: none"
    sizes = ", ".join(str(max(protocol.warmup_prompts, level)) for level in sorted(set(run.concurrency)))
    return (
        f"warm-up: at each concurrency batches of {sizes} other prompts, until the time per step of two in a row agrees within"
        f" {100 * protocol.settled_within:g} %, at most {protocol.warmup_batches}"
    )


def _window(run: Run) -> str:
    if run.protocol.load == "open":
        return f"window: open load at {run.protocol.rate_rps:g} requests a second"
    once = [str(level) for level in sorted(set(run.concurrency)) if 1 < level >= prompt_count(run.protocol, level)]
    wave = f" (at concurrency {', '.join(once)}, one wave: from first send to last end)" if once else ""
    return (
        f"window: rates count from when all slots are busy until fewer are for good{wave}; what was compiled inside is refused"
    )
