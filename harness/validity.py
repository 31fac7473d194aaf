"""Whether a cell may be compared: reasons that forbid it, and flags to tell beside a serving's numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.control.requests import LAG_LIMIT_MS, counters_disagree
from harness.metrics import (
    EMPTY_LIMIT,
    Missing,
    Row,
    Rows,
    effective_concurrency,
    error_rate,
    integer,
    outcome,
    token_chunks,
    tpot_ms,
)

# Blocks of a prefix cache hold up to so many tokens; share of a cold window's prompt tokens that a shared template may save.
BLOCK, COLD = 128, 0.05
# What engines say when they prepare a shape that the warm-up did not reach.
PREPARING = re.compile(
    r"captur\w*[^\n]{0,40}graph|autotun\w*|(jit|torch\.compile|triton|inductor|kernel)[^\n]{0,40}\bcompil\w*"
    r"|\bcompil(e|es|ing|ation)\b[^\n]{0,40}(kernel|graph|triton|took|shape)",
    re.IGNORECASE,
)


def cell_problems(rows: Rows, steps: Rows, counters: Mapping[str, int], concurrency: int | None) -> list[str]:
    """Why one cell may not be compared, from its measured rows, its steps and the engine's counters over its window.

    Failed requests above 0.5 %, preemptions, counters that contradict the requests, and, for a closed load of that
    `concurrency` (null is an open load), fewer requests at once than were asked for.
    """
    problems = [] if concurrency is None else _concurrency(rows, steps, concurrency)
    rate = error_rate(rows)
    if not isinstance(rate, Missing) and rate > EMPTY_LIMIT:
        failed = next(row for row in rows if row["phase"] == "measured" and outcome(row) != "ok")
        problems.append(f"errors: {100 * rate:.1f} % of measured requests failed, first: {failed['error']}")
    if preempted := counters.get("preemptions"):
        problems.append(f"preemptions: the engine preempted {preempted} requests; give the KV cache more tokens")
    for counter, told, total in counters_disagree(counters, rows):
        problems.append(f"counters: the engine counted {counter} {told}, its requests carried {total}")
    return [*problems, *foreign_traffic(rows, counters)]


def foreign_traffic(rows: Rows, counters: Mapping[str, int]) -> list[str]:
    """Why others used the engine in this window: it finished more requests than ours, or read more prompt tokens than we sent.

    Holds with failed requests too, for those only lower what is counted. A server that anybody can reach is shared.
    """
    found, remedy = [], "someone else uses this server; stop them, and repeat the block"
    if (told := counters.get("requests")) is not None and told > len(rows):
        found.append(f"foreign traffic: the engine finished {told} requests, {len(rows)} were ours; {remedy}")
    if (read := counters.get("prefill_tokens")) is None:
        return found
    sent, total = sum(int(row["prompt_tokens"]) for row in rows), read + counters.get("cached_tokens", 0)
    if total > sent:
        found.append(f"foreign traffic: the engine read {total} prompt tokens, ours were {sent}; {remedy}")
    return found


def cache_problems(rows: Rows, counters: Mapping[str, int], is_on: bool, warm: int | None) -> list[str]:
    """Why the prefix cache was not as declared: used though the rig has it off, warm in a cold window, or cold in a warm one.

    `warm` is the number of tokens of every prompt that must have come from it, null for a cold window, where what prompts share
    (their template) may: `COLD` of all prompt tokens. Engines cache whole blocks, so a warm prompt may miss `BLOCK` tokens.
    """
    told = [integer(row["cached_tokens"]) for row in rows]
    known = [cached for cached in told if cached is not None]
    if warm is not None:
        least = warm - max(BLOCK, warm // 100)
        if len(known) < len(told):
            return ["prefix cache: the engine does not tell what came from it, so the warm window cannot be confirmed"]
        missed = sum(cached < least for cached in known)
        return [f"prefix cache: {missed} of {len(known)} prompts had under {least} of {warm} tokens in it"] if missed else []
    cached, sent = max(sum(known), counters.get("cached_tokens", 0)), sum(int(row["prompt_tokens"]) for row in rows)
    if cached and not is_on:
        remedy = "the rig has engine.prefix_cache off; switch it off in the server too"
        return [f"prefix cache: {cached} prompt tokens came from it; {remedy}"]
    if cached > COLD * sent:
        return [f"prefix cache: {cached} of {sent} prompt tokens came from it in a window declared cold"]
    return []


def _concurrency(rows: Rows, steps: Rows, asked: int) -> list[str]:
    running = effective_concurrency(rows, steps, asked)
    if isinstance(running, Missing):
        reached = running.reason != "concurrency_not_reached"
        return [] if reached else [f"concurrency: {asked} requests were never in flight at once"]
    if running.reached(asked) is not False:  # null: the stream alone cannot tell
        return []
    how = "at most" if running.one_wave else "median over time"
    return [f"concurrency: {asked} asked, {running.typical:g} ran at once ({how}, by {running.source})"]


def log_problems(text: str) -> list[str]:
    """Why a cell may not be compared, from what the engine logged meanwhile: kernels or graphs made in the window."""
    lines = [line.strip() for line in text.splitlines() if PREPARING.search(line)]
    return [f"log: compiled or captured inside the window ({len(lines)} lines): {lines[0][:120]}"] if lines else []


def serving_flags(lag_p99_ms: float | None, host: Mapping[str, Any], max_load: float | None) -> list[str]:
    """What to tell beside the numbers of a serving. `host` holds the facts read just before its launch (`harness.probe`)."""
    flags = []
    busy, stolen = (host.get(f"load_{what}_cores", 0.0) for what in ("busy", "stolen"))
    if lag_p99_ms is not None and lag_p99_ms > LAG_LIMIT_MS:
        flags.append(f"client: event-loop lag p99 is {lag_p99_ms:.2f} ms; the client may limit the rate")
    if max_load is not None and busy > max_load:
        flags.append(f"load: {busy:.2f} cores were busy with other work before the launch, machine.max_load is {max_load:g}")
    if max_load is not None and stolen > max_load:
        neighbours = "neighbours of this virtual machine took"
        flags.append(f"load: {neighbours} {stolen:.2f} cores before the launch, machine.max_load is {max_load:g}")
    return flags


def is_stationary(batches: Sequence[Rows], budget: int | None, within: float) -> bool:
    """Whether the last two warm-up batches have median times per step that agree within a share of the larger.

    Steps where the engine tells them: time per token would also move with what the drafts of each text are worth.
    """
    if len(batches) < 2:
        return False
    before, last = (_median_ms(batch, budget) for batch in batches[-2:])
    return before is not None and last is not None and abs(last - before) <= within * max(last, before)


def _median_ms(batch: Rows, budget: int | None) -> float | None:
    times = sorted(t for row in batch if (t := _step_ms(row, budget)) is not None)
    return times[len(times) // 2] if times else None


def _step_ms(row: Row, budget: int | None) -> float | None:
    """Mean time per decode step of one request, or per output token where steps are not told."""
    steps = [integer(row["steps_with_draft"]), integer(row["steps_without_draft"])]
    if None in steps or outcome(row) != "ok":
        found = tpot_ms(row, budget)
        return None if isinstance(found, Missing) else found
    chunks, count = token_chunks(row), sum(step for step in steps if step is not None)
    return (chunks[-1][0] - chunks[0][0]) / 1e6 / count if chunks and count else None
