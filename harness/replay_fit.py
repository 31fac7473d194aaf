"""What of a rig gives way so that it fits another machine and target: protocol, concurrency, answers, prompts a set.

Nothing here is silent: every key that changes is listed as moved by `harness.replay.moved`, as following from a substitution.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from harness.config import Run
from harness.workloads import manifest, prompt_count

CPU_PROTOCOL = "screen"
CPU_LEVEL = 8  # requests at once that a few cores carry through `screen` as it stands; above, everything but the blocks is cut
CUT = {"max_tokens_cap": 24, "warmup_batches": 2, "width_rounds": 1}
PROMPT_TOKENS = 200  # of a prompt without a stated depth, rounded up from the tasks' means


def protocol_for(original: Run, run: Run, given: set[str]) -> Iterator[str]:
    """Overrides. A GPU's rig on a CPU takes `screen` unless a protocol is given: minutes instead of days, and an interval.

    At levels above `CPU_LEVEL` prefill and warm-up take most of the time: answers are shorter, warm-up ends at two batches.
    """
    if not _is_cpu_now(original, run) or "protocol" in given:
        return
    yield f"protocol={CPU_PROTOCOL}"
    if max(run.concurrency) > CPU_LEVEL:
        yield from (f"protocol.{key}={value}" for key, value in CUT.items() if f"protocol.{key}" not in given)


def without_unfilled(original: Run, run: Run, given: set[str]) -> tuple[Run, list[str]]:
    """The run on a CPU without levels that it would not reach, and a line about them; unchanged where `concurrency` is given.

    The lowest level always stays.
    """
    if not _is_cpu_now(original, run) or "concurrency" in given:
        return run, []
    lowest = min(run.concurrency)
    kept = tuple(level for level in run.concurrency if level == lowest or fills(run, level))
    if kept == run.concurrency:
        return run, []
    left = ", ".join(str(level) for level in run.concurrency if level not in kept)
    why = f"answers end before the last prompt is read, {run.engine.prefill_chunk} tokens a step (engine.prefill_chunk)"
    again = f"concurrency=[{','.join(map(str, run.concurrency))}] measures it all the same"
    return run.model_copy(update={"concurrency": kept}), [f"concurrency {left}: not reached here: {why}; {again}"]


def fills(run: Run, level: int) -> bool:
    """Whether a cell of one wave has `level` requests running at once, when every second draft is accepted.

    Prompts are read `engine.prefill_chunk` tokens per step, and those that are read decode meanwhile: the first answers must
    not end before the last prompt is read.
    """
    if prompt_count(run.protocol, level) > level:
        return True  # later prompts keep the slots full
    tokens_per_step = 1 + run.draft_budget / 2
    return all(
        ceil(level * (one.depth or PROMPT_TOKENS) / run.engine.prefill_chunk) * tokens_per_step <= run.max_tokens(one)
        for one in run.workload.sets
    )


def _is_cpu_now(original: Run, run: Run) -> bool:
    return run.machine.kind == "cpu" and original.machine.kind != "cpu"


def fitted(original: Run, run: Run) -> Run:
    """The run with answers that leave half of a shorter context to the prompt, and no more prompts a set than there are."""
    protocol = run.protocol
    changes: dict[str, int] = {}
    half = run.target.context // 2
    if run.target.context < original.target.context and any(run.max_tokens(one) > half for one in run.workload.sets):
        changes["max_tokens_cap"] = half
    have = min(manifest()[one.set][1].n for one in run.workload.sets) - run.workload.skip_prompts
    most = max(run.concurrency)
    if have >= most and prompt_count(protocol, most) > have:
        changes |= {"prompts_per_set": min(protocol.prompts_per_set, have), "waves": min(protocol.waves, have // most)}
    return run.model_copy(update={"protocol": protocol.model_copy(update=changes)}) if changes else run
