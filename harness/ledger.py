"""The acceptance ledger of one request, in integers, from its chunks.

P tokens emitted by prefill · S steps with a draft · Z steps without · D drafted · A accepted and delivered · A* accepted by the
engine (may run past a stop token or the limit) · O delivered output tokens · e 1 if the request ended inside an accepted run,
so that step's own token never came. Always `O = P + S + Z + A - e`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.engines.base import Chunk
from harness.load import Result


@dataclass(frozen=True, slots=True)
class Ledger:
    """Totals of one request; every field but `output_tokens` is null when the engine does not tell its steps."""

    prefill_tokens: int | None
    steps_with_draft: int | None
    steps_without_draft: int | None
    drafted: int | None
    accepted: int | None
    accepted_by_engine: int | None
    output_tokens: int
    ended_inside_run: int | None


def ledger(request_id: str, chunks: Sequence[Chunk], budget: int | None, tells_steps: bool) -> Ledger:
    """Add up the steps behind the chunks. `budget` is the arm's draft budget, null for plain.

    `tells_steps` says that the engine reports every step: a request that ended with its prefill chunk then has zero steps,
    otherwise its steps are unknown. Any chunk with `drafted` says it too. Raises ValueError naming the request when a chunk
    contradicts the identities. What an engine told at the end of a request counts as its steps or its totals.
    """
    chunks = with_told_steps(chunks)
    output = sum(len(chunk.token_ids) for chunk in chunks)
    if not tells_steps and all(chunk.drafted is None for chunk in chunks):
        totals = _told_totals(chunks, output)
        if totals.steps_with_draft is not None:
            _check_totals(request_id, totals, budget or 0)
        return totals
    prefill, steps = _split(request_id, chunks)
    totals = _add_up(steps, sum(len(chunk.token_ids) for chunk in prefill), output)
    _check_steps(request_id, steps, budget or 0)
    _check_totals(request_id, totals, budget or 0)
    return totals


def request_row(cell: Mapping[str, Any], result: Result, prompt: Mapping[str, Any], totals: Ledger | None) -> dict[str, Any]:
    """A row of REQUESTS. `cell` holds the cell's keys and the phase, `prompt` prompt_id and prompt_hash.

    `totals` null is a request whose ledger was refused: its raw steps are kept, its totals are null.
    """
    request, chunks = result.request, with_told_steps(result.chunks)
    output = sum(len(chunk.token_ids) for chunk in chunks)
    totals = totals or Ledger(None, None, None, None, None, None, output, None)
    steps = _steps_of(chunks)
    told = bool(steps) or (totals.steps_with_draft, totals.steps_without_draft) == (0, 0)
    return {
        **cell,
        **prompt,
        "request_id": request.request_id,
        "prompt_tokens": len(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "ignore_eos": request.ignore_eos,
        "scheduled_ns": result.scheduled_ns,
        "sent_ns": result.sent_ns,
        "ended_ns": result.ended_ns,
        "chunk_ns": [chunk.arrived_ns for chunk in chunks],
        "chunk_tokens": [len(chunk.token_ids) for chunk in chunks],
        "chunk_reasoning": [chunk.reasoning for chunk in chunks],
        "token_ids": [token for chunk in chunks for token in chunk.token_ids],
        "step_drafted": [drafted for drafted, _ in steps] if told else None,
        "step_accepted": [accepted for _, accepted in steps] if told else None,
        "prefill_tokens": totals.prefill_tokens,
        "steps_with_draft": totals.steps_with_draft,
        "steps_without_draft": totals.steps_without_draft,
        "drafted": totals.drafted,
        "accepted": totals.accepted,
        "accepted_by_engine": totals.accepted_by_engine,
        "output_tokens": totals.output_tokens,
        "ended_inside_run": totals.ended_inside_run,
        "cached_tokens": chunks[-1].told.cached_tokens if chunks and chunks[-1].told else None,
        "finish": None if result.error else chunks[-1].finish,
        "error": result.error,
    }


def with_told_steps(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """Chunks with the steps that the engine told at the end of the request, if there is one decode chunk for each.

    Prefill emits the first token, so the first chunk is none. Several steps in one chunk cannot be told apart: they stay as
    they came, and only the totals are known.
    """
    told = chunks[-1].told if chunks else None
    if told is None or told.steps is None or any(chunk.drafted is not None for chunk in chunks):
        return chunks
    decode = [i for i, chunk in enumerate(chunks) if chunk.token_ids][1:]
    fits = len(decode) == len(told.steps) and all(
        len(chunks[i].token_ids) <= accepted + 1 for i, (_, accepted) in zip(decode, told.steps, strict=True)
    )
    if not fits:
        return chunks
    steps = dict(zip(decode, told.steps, strict=True))
    return [replace(c, drafted=steps[i][0], accepted=steps[i][1]) if i in steps else c for i, c in enumerate(chunks)]


def _steps_of(chunks: Sequence[Chunk]) -> list[tuple[int, int]]:
    """(drafted, accepted) of every decode step: of the chunks, or as told at the end where chunks hold several."""
    steps = [(chunk.drafted, chunk.accepted or 0) for chunk in chunks if chunk.drafted is not None]
    told = chunks[-1].told if chunks else None
    return steps or list(told.steps or ()) if told else steps


def _told_totals(chunks: Sequence[Chunk], output: int) -> Ledger:
    """The ledger of an engine that tells no more than totals; nulls where it does not even do that.

    P is 1. `O - P - S - A*` is the number of steps without a draft; below zero, the request ended inside an accepted run, and
    what is missing beyond the step's own token was accepted and not delivered. Exact where every step drafts.
    """
    told = chunks[-1].told if chunks else None
    if told is not None and told.steps is not None:
        drafting = [step for step in told.steps if step[0]]
        drafted, accepted = sum(d for d, _ in drafting), sum(a for _, a in drafting)
        told = replace(told, steps_with_draft=len(drafting), drafted=drafted, accepted=accepted)
    if told is None or told.steps_with_draft is None or told.accepted is None or output == 0:
        return Ledger(None, None, None, None, None, None, output, None)
    rest = output - 1 - told.steps_with_draft - told.accepted
    ended_inside = int(rest < 0)
    accepted = told.accepted + min(0, rest + 1)
    return Ledger(1, told.steps_with_draft, max(0, rest), told.drafted, accepted, told.accepted, output, ended_inside)


def _split(request_id: str, chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """Prefill chunks first, then one chunk per step. A closing chunk without tokens belongs to neither."""
    first = next((i for i, chunk in enumerate(chunks) if chunk.drafted is not None), len(chunks))
    steps = [chunk for chunk in chunks[first:] if chunk.drafted is not None or chunk.token_ids]
    if any(chunk.drafted is None for chunk in steps):
        raise ValueError(f"request {request_id}: a decode chunk carries no step truth; the engine must tell all steps or none")
    return list(chunks[:first]), steps


def _add_up(steps: Sequence[Chunk], prefill_tokens: int, output: int) -> Ledger:
    with_draft = sum(1 for chunk in steps if chunk.drafted)
    return Ledger(
        prefill_tokens=prefill_tokens,
        steps_with_draft=with_draft,
        steps_without_draft=len(steps) - with_draft,
        drafted=sum(chunk.drafted or 0 for chunk in steps),
        accepted=sum(min(chunk.accepted or 0, len(chunk.token_ids)) for chunk in steps),
        accepted_by_engine=sum(chunk.accepted or 0 for chunk in steps),
        output_tokens=output,
        ended_inside_run=sum(1 for chunk in steps if len(chunk.token_ids) <= (chunk.accepted or 0)),
    )


def _check_steps(request_id: str, steps: Sequence[Chunk], budget: int) -> None:
    """Every step: accepted <= drafted <= budget, and it delivers accepted + 1 tokens; only the last may be cut."""
    for index, chunk in enumerate(steps):
        drafted, accepted, delivered = chunk.drafted or 0, chunk.accepted or 0, len(chunk.token_ids)
        if not 0 <= accepted <= drafted <= budget:
            raise ValueError(
                f"request {request_id}: step {index} has accepted {accepted}, drafted {drafted}, budget {budget}; "
                "must hold: accepted <= drafted <= budget"
            )
        is_last = index == len(steps) - 1
        if delivered > accepted + 1 or (delivered < accepted + 1 and not is_last):
            raise ValueError(
                f"request {request_id}: step {index} accepted {accepted} drafts but delivered {delivered} tokens; "
                "a chunk must be one step: accepted + 1 tokens, fewer only at the end"
            )


def _check_totals(request_id: str, totals: Ledger, budget: int) -> None:
    p, s, z = totals.prefill_tokens or 0, totals.steps_with_draft or 0, totals.steps_without_draft or 0
    a, a_star, e = totals.accepted or 0, totals.accepted_by_engine or 0, totals.ended_inside_run or 0
    if totals.output_tokens != p + s + z + a - e:
        raise ValueError(f"request {request_id}: O={totals.output_tokens} but P+S+Z+A-e={p + s + z + a - e}")
    if not 0 <= a_star - a <= budget:
        raise ValueError(f"request {request_id}: overshoot {a_star - a} exceeds the draft budget {budget}")
    if a > s * budget:
        raise ValueError(f"request {request_id}: acceptance length 1+{a}/{s} exceeds {budget}+1")
