"""llama.cpp's native stream, one event per token, put together into chunks of one step each.

With `timings_per_token` every event carries running totals: tokens predicted, drafted and accepted. A step shows at its first
token, where the totals jump by what it drafted and accepted; it delivers accepted + 1 tokens, so the events that follow without
a jump complete it, and what then still comes without a jump are steps without a draft. Seen in b11434 and xllamacpp 2026.10.

A token whose bytes do not complete a UTF-8 character has no event: the next one has a gap in `tokens_predicted`. Such tokens
are counted, arrive with the event that reveals them, and have no id. When drafts were verified inside a gap, totals stay exact
but are shared out among as few steps as can have made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.engines.base import UNKNOWN_ID, Chunk, EngineError, Request, Told

FINISHES = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass(frozen=True, slots=True)
class _Open:
    """A step that has not delivered all its tokens yet."""

    drafted: int
    accepted: int
    ids: tuple[int, ...]
    arrived_ns: int

    @property
    def room(self) -> int:
        return self.accepted + 1 - len(self.ids)

    def chunk(self) -> Chunk:
        return Chunk(self.arrived_ns, self.ids, self.drafted, self.accepted)


class LlamaReader:
    """Reads one answer. `budget` is the arm's, null for plain."""

    def __init__(self, request: Request, budget: int | None) -> None:
        self._request, self._budget = request, budget or 0
        self._predicted = self._drafted = self._accepted = 0
        self._open: _Open | None = None

    def read(self, arrived_ns: int, event: Mapping[str, Any]) -> list[Chunk]:
        timings = event.get("timings") or {}
        ids = self._new_ids(event)
        drafted, accepted = int(timings.get("draft_n") or 0), int(timings.get("draft_n_accepted") or 0)
        jump = drafted - self._drafted, accepted - self._accepted
        self._drafted, self._accepted = max(drafted, self._drafted), max(accepted, self._accepted)
        chunks = self._place(arrived_ns, ids, max(0, jump[0]), max(0, jump[1]))
        return [*chunks, *self._close(arrived_ns, event, timings)] if event.get("stop") else chunks

    def end(self) -> list[Chunk]:
        """A proper stream has closed everything with its last event; what a broken one leaves open still arrived."""
        left, self._open = self._open, None
        return [left.chunk()] if left else []

    def _new_ids(self, event: Mapping[str, Any]) -> tuple[int, ...]:
        tokens, total = tuple(event.get("tokens") or ()), int(event.get("tokens_predicted") or 0)
        hidden = max(0, total - self._predicted - len(tokens))
        self._predicted = max(total, self._predicted + len(tokens))
        return (UNKNOWN_ID,) * hidden + tokens

    def _place(self, arrived_ns: int, ids: tuple[int, ...], drafted: int, accepted: int) -> list[Chunk]:
        chunks = []
        if ids and self._predicted == len(ids):  # the first token comes from prefill
            chunks.append(Chunk(arrived_ns, ids[:1]))
            ids = ids[1:]
        if self._open is not None:
            room = self._open.room
            step = _Open(self._open.drafted, self._open.accepted, self._open.ids + ids[:room], arrived_ns)
            ids = ids[room:]
            self._open = step if step.room else None
            chunks += [] if step.room else [step.chunk()]
        for step_drafted, step_accepted in hidden_steps(len(ids), drafted, accepted, self._budget):
            step = _Open(step_drafted, step_accepted, ids[: step_accepted + 1], arrived_ns)
            ids = ids[step_accepted + 1 :]
            self._open = step if step.room else None
            chunks += [] if step.room else [step.chunk()]
        return chunks

    def _close(self, arrived_ns: int, event: Mapping[str, Any], timings: Mapping[str, Any]) -> list[Chunk]:
        finish = FINISHES.get(str(event.get("stop_type")))
        if finish is None:
            raise EngineError(f"request {self._request.request_id}: llama.cpp stopped with '{event.get('stop_type')}'")
        cached = timings.get("cache_n")
        told = Told(cached_tokens=None if cached is None else int(cached))
        return [*self.end(), Chunk(arrived_ns, (), finish=finish, told=told)]


def hidden_steps(tokens: int, drafted: int, accepted: int, budget: int) -> list[tuple[int, int]]:
    """(drafted, accepted) of the steps behind `tokens` new tokens, of which the last step may still owe some.

    One step, unless tokens were held back: then as few drafting steps as the budget allows, each filled before the next, after
    the draftless ones that the number of tokens needs.
    """
    if tokens == 0:
        return []
    steps = []
    while drafted > 0 or accepted > 0:
        part = min(drafted, budget) if budget else drafted
        steps.append((part, min(accepted, part)))
        if part == 0:
            raise EngineError(f"llama.cpp accepted {accepted} tokens that it did not draft")
        drafted, accepted = drafted - part, accepted - steps[-1][1]
    draftless = max(0, tokens - len(steps) - sum(a for _, a in steps))
    return [(0, 0)] * draftless + steps
