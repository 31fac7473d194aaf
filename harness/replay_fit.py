"""What of a rig gives way so that it fits another machine and target: the protocol, answers, prompts a set.

Nothing here is silent: every key that changes is listed as moved by `harness.replay.moved`, as following from a substitution.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.config import Run
from harness.workloads import manifest, prompt_count

CPU_PROTOCOL = "screen"


def protocol_for(original: Run, run: Run, given: set[str]) -> Iterator[str]:
    """Overrides. A GPU's rig on a CPU takes `screen` unless a protocol is given: minutes instead of days, and an interval."""
    is_cpu_now = run.machine.kind == "cpu" and original.machine.kind != "cpu"
    if is_cpu_now and "protocol" not in given:
        yield f"protocol={CPU_PROTOCOL}"


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
