"""Findings from the requests: whether both arms were asked the same, under the same load, and answered."""

from __future__ import annotations

from collections.abc import Callable

from harness.control.findings import Finding, Kind, Side, values_of
from harness.metrics import (
    EMPTY_LIMIT,
    Missing,
    Row,
    as_map,
    effective_concurrency,
    error_rate,
    integer,
    is_null,
    outcome,
    prompt_key,
)

LAG_LIMIT_MS = 1.0
SOURCE_LIMIT = 0.01
# True holds, False is broken, null cannot be told; with the value to show.
Held = tuple[bool | None, str]


def prompts(plain: Side, arm: Side, concurrency: int) -> list[Finding]:
    """The same prompts in each block, rendered the same, under the same limits."""
    findings: list[Finding] = []
    sides = [side.measured(concurrency) for side in (plain, arm)]
    asked = [{(int(r["block"]), *prompt_key(r)) for r in rows} for rows in sides]
    blocks = {key[0] for key in asked[0]} & {key[0] for key in asked[1]}
    if not blocks or any(key[0] in blocks for key in asked[0] ^ asked[1]):
        counts = f"{len(asked[0])} asked", f"{len(asked[1])} asked"
        findings.append(Finding("prompts", "confounder", *counts, "ask every arm the same prompts in each block"))
    for column, remedy in (
        ("prompt_hash", "the rendered prompts differ; check chat template and tokenizer"),
        ("max_tokens", "send the same limit to every arm"),
        ("ignore_eos", "use one stop rule for every arm"),
    ):
        a, b = ({prompt_key(r): str(r[column]) for r in rows} for rows in sides)
        if differ := sorted(k for k in a.keys() & b.keys() if a[k] != b[k]):
            shown = a[differ[0]][:12], b[differ[0]][:12]
            findings.append(Finding(f"{column} of {len(differ)} prompts", "confounder", *shown, remedy))
    return findings


def cache(plain: Side, arm: Side, concurrency: int) -> list[Finding]:
    """Prompt tokens that came from the prefix cache: per request, else the serving's counter, else known to be off."""
    hits = [_cached(side, concurrency) for side in (plain, arm)]
    shown = ["not reported" if h is None else str(h) for h in hits]
    if None not in hits and hits[0] == hits[1]:
        return []
    if None in hits:
        is_off = all(values_of(side, "resolved").get("prefix_cache") == {"false"} for side in (plain, arm))
        unread = Finding("cached prompt tokens", "unknown", shown[0], shown[1], "switch the prefix cache off")
        return [] if is_off else [unread]
    return [Finding("cached prompt tokens", "confounder", shown[0], shown[1], "flush or salt the prefix cache")]


def _cached(side: Side, concurrency: int) -> int | None:
    hits = [integer(row["cached_tokens"]) for row in side.measured(concurrency)]
    known = [h for h in hits if h is not None]
    return sum(known) if hits and len(known) == len(hits) else _counted(side, "cached_tokens")


def _counted(side: Side, counter: str) -> int | None:
    counts = [integer(as_map(row["counters"]).get(counter)) for row in side.servings]
    known = [c for c in counts if c is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def each_side(plain: Side, arm: Side, concurrency: int) -> list[Finding]:
    """What must hold in each arm by itself; the finding shows both values."""
    checks: tuple[tuple[str, Kind, Callable[[Side, int], Held], str], ...] = (
        ("error rate", "confounder", _errors, "an arm that fails is not comparable; see its errors"),
        ("concurrency reached", "confounder", _concurrency, "raise the engine's cap for every arm"),
        ("preemptions", "confounder", _preemptions, "give the KV cache more tokens, or lower the concurrency"),
        ("repeated prompts", "confounder", _repeats, "a prompt must not repeat in a window"),
        ("warm-up prompts measured", "confounder", _warmed, "warm up with disjoint prompts"),
        ("counters against requests", "confounder", _counters, "two sources differ by more than 1 %; trust neither"),
    )
    findings = []
    for factor, kind, check, remedy in checks:
        (a, a_shown), (b, b_shown) = check(plain, concurrency), check(arm, concurrency)
        if a is False or b is False:
            findings.append(Finding(factor, kind, a_shown, b_shown, remedy))
        elif None in (a, b):
            findings.append(Finding(factor, "unknown", a_shown, b_shown, "not readable in every arm"))
    return findings


def _errors(side: Side, concurrency: int) -> Held:
    rate = error_rate(side.measured(concurrency))
    return (None, "no requests") if isinstance(rate, Missing) else (rate <= EMPTY_LIMIT, f"{100 * rate:.1f} %")


def _concurrency(side: Side, asked: int) -> Held:
    """The worst cell of this arm. An open load asks for a rate, not for a concurrency: there is nothing to reach."""
    if any(row["scheduled_ns"] != row["sent_ns"] for row in side.measured(asked)):
        return True, "open load"
    cells: dict[str, list[Row]] = {}
    for row in side.measured(asked):
        cells.setdefault(str(row["cell_id"]), []).append(row)
    steps: dict[str, list[Row]] = {cell_id: [] for cell_id in cells}
    for step in side.steps:
        if str(step["cell_id"]) in steps:
            steps[str(step["cell_id"])].append(step)
    found = [_cell_concurrency(cell, steps[cell_id], asked) for cell_id, cell in cells.items()]
    worst_first = sorted(found, key=lambda held: {False: 0, None: 1, True: 2}[held[0]])
    return worst_first[0] if found else (None, "no requests")


def _cell_concurrency(cell: list[Row], steps: list[Row], asked: int) -> Held:
    running = effective_concurrency(cell, steps, asked)
    if isinstance(running, Missing):
        return (False if running.reason == "concurrency_not_reached" else None), running.reason
    return running.reached(asked), f"{running.median if running.source == 'steps' else running.peak:g} of {asked}"


def _preemptions(side: Side, concurrency: int) -> Held:
    total = _counted(side, "preemptions")
    return (None, "not reported") if total is None else (total == 0, str(total))


def _repeats(side: Side, concurrency: int) -> Held:
    keys = [(str(r["cell_id"]), str(r["prompt_hash"])) for r in side.measured(concurrency)]
    return len(keys) == len(set(keys)), str(len(keys) - len(set(keys)))


def _warmed(side: Side, concurrency: int) -> Held:
    warm = {str(r["prompt_hash"]) for r in side.requests if r["phase"] == "warmup"}
    both = warm & {str(r["prompt_hash"]) for r in side.measured(concurrency)}
    return not both, str(len(both))


def sources_agree(one: float, other: float) -> bool:
    """Two sources of one quantity agree within 1 % of the larger."""
    return abs(one - other) <= SOURCE_LIMIT * max(abs(one), abs(other))


def _counters(side: Side, concurrency: int) -> Held:
    """The engine's totals of drafted and accepted tokens against the sum over its requests, per serving that ended cleanly.

    Nothing is said of a serving that was killed, had failures, or has one source only.
    """
    for serving in side.servings:
        rows = [r for r in side.requests if r["serving_id"] == serving["serving_id"]]
        if is_null(serving["ended_ns"]) or any(outcome(r) != "ok" for r in rows):
            continue
        for counter, column in (("drafted", "drafted"), ("accepted", "accepted_by_engine")):
            told, parts = integer(as_map(serving["counters"]).get(counter)), [integer(r[column]) for r in rows]
            total = sum(p for p in parts if p is not None)
            if told is not None and parts and None not in parts and not sources_agree(told, total):
                return False, f"{counter} {told} and {total}"
    return True, "equal"
