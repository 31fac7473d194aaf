"""Whether a foreign engine does what its arm says, seen before any window counts.

An engine that was launched with a drafter may serve without it: a flag that was ignored, a fallback, a checkpoint that drafts
nothing right. Three requests tell: two warm-up prompts, and one that repeats itself, so that even a drafter without weights has
something to say. They are in no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.asked import Prompts
from harness.config import Arm, Run
from harness.engines.base import Chunk, Engine, Request, Scalar
from harness.facts import since
from harness.ledger import Ledger, ledger
from harness.load import Result, run_window

PROBE_TOKENS = 48
REPEATS = 4


async def liveness_problems(engine: Engine, run: Run, arm: Arm, prompts: Prompts, resolved: Mapping[str, Scalar]) -> list[str]:
    """Why this arm is not what it says, a line each; empty when it is. Unreadable is not a problem, it is unknown."""
    before = await engine.counters()
    window = await run_window(engine, probes(run, prompts), timeout_s=run.protocol.request_timeout_s, concurrency=1)
    counted = since(await engine.counters(), before)
    problems = [*_failures(window.results), *resolved_problems(arm, resolved)]
    return [*problems, *acceptance_problems(arm, window.results, counted)]


def probes(run: Run, prompts: Prompts) -> list[Request]:
    """Greedy, with the run's stop rule off, so that every probe has as many steps as it may."""
    sampler = run.sampler.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0})
    texts = [asked.prompt_ids for asked in prompts.warmup(run.workload.sets[0], 2)]
    last = texts[-1][-min(24, len(texts[-1])) :]
    return [
        Request(f"probe-{i}", ids, PROBE_TOKENS, prompts.stop_ids, True, sampler)
        for i, ids in enumerate([*texts, tuple(last) * REPEATS])
    ]


def resolved_problems(arm: Arm, resolved: Mapping[str, Scalar]) -> list[str]:
    """The method and the budget that the engine resolved against those asked for; a null is not read."""
    problems = []
    method = resolved.get("method")
    same = ("plain", "none", "off") if arm.method == "plain" else (arm.method,)
    if method is not None and str(method).lower() not in same:
        problems.append(f"liveness: the engine resolved method '{method}', the arm asks for '{arm.method}'")
    budget = resolved.get("draft_budget")
    if budget is not None and arm.draft_budget is not None and budget != arm.draft_budget:
        problems.append(f"liveness: the engine resolved a budget of {budget}, the arm asks for {arm.draft_budget}")
    simulated = resolved.get("synthetic_acceptance")
    if simulated not in (None, False, "off", "none") and arm.method != "synthetic":
        problems.append(f"liveness: the engine simulates acceptance ({simulated})")
    return problems


def acceptance_problems(arm: Arm, results: Sequence[Result], counted: Mapping[str, int]) -> list[str]:
    """Drafts where none may be, none where there must be, or none accepted; from the requests, else from the counters."""
    drafted, accepted = _sums(arm, results)
    drafted = counted.get("drafted") if drafted is None else drafted
    accepted = counted.get("accepted") if accepted is None else accepted
    if drafted is None:
        return []
    if arm.draft_budget is None:
        return [f"liveness: plain drafted {drafted} tokens on the probe"] if drafted else []
    if drafted == 0:
        return [f"liveness: {arm.label} drafted nothing on the probe; its drafter is not at work"]
    if accepted == 0:
        return [f"liveness: {arm.label} drafted {drafted} tokens on the probe and not one was accepted"]
    return []


def _sums(arm: Arm, results: Sequence[Result]) -> tuple[int | None, int | None]:
    ledgers = [found for result in results if (found := _ledger(arm, result.chunks)) is not None]
    drafted = [found.drafted for found in ledgers if found.drafted is not None]
    accepted = [found.accepted_by_engine for found in ledgers if found.accepted_by_engine is not None]
    return sum(drafted) if drafted else None, sum(accepted) if accepted else None


def _ledger(arm: Arm, chunks: Sequence[Chunk]) -> Ledger | None:
    try:
        return ledger("probe", chunks, arm.draft_budget, tells_steps=False) if chunks else None
    except ValueError:
        return None  # the window's own rows will say it


def _failures(results: Sequence[Result]) -> list[str]:
    return [f"liveness: probe {result.request.request_id} failed: {result.error}" for result in results if result.error]
