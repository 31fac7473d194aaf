"""The stream of OpenAI's completions and chat routes, read as tokens: ids where the server sends them, else its own counts.

Tokens are never counted by events, characters or re-tokenising. In order: `token_ids` of a chunk; the difference of running
usage; the final usage, if it equals the number of text chunks (one token each, as without speculation). A stream that leaves
the tokens of a chunk unknown is an error, for no time per token can be had from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.engines.base import UNKNOWN_ID, Chunk, EngineError, Request, Told

FINISHES = {"stop": "stop", "eos": "stop", "end_turn": "stop", "length": "length", "max_tokens": "length"}
Teller = Callable[[Mapping[str, Any]], Told | None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A chunk whose number of tokens may still be unknown: then `has_text` says that it holds at least one."""

    chunk: Chunk
    known: bool
    has_text: bool


class CompletionsReader:
    """Reads one answer. `teller` finds what an engine tells about the request beside usage, in whichever event it is."""

    def __init__(self, request: Request, teller: Teller | None = None) -> None:
        self._request = request
        self._teller = teller
        self._held: list[_Piece] = []
        self._count = 0
        self._has_ids = False
        self._usage: Mapping[str, Any] | None = None
        self._told: Told | None = None
        self._finish: str | None = None
        self._last_ns = 0

    def read(self, arrived_ns: int, event: Mapping[str, Any]) -> list[Chunk]:
        self._last_ns = arrived_ns
        usage = event.get("usage")
        self._usage = usage or self._usage
        if self._teller is not None and (told := self._teller(event)) is not None:
            self._told = told
        for choice in event.get("choices") or ():
            self._take(arrived_ns, choice, usage)
        return self._ready()

    def end(self) -> list[Chunk]:
        """What was held back. Raises EngineError when the tokens of a chunk, or of the whole answer, are unknown."""
        missing = self._missing()
        chunks = [self._resolve(piece) for piece in self._held]
        total = Told(**{**_fields(self._told), **_cached(self._usage)})
        told = None if total == Told() else total
        if self._finish is None:
            return chunks
        closing = Chunk(self._last_ns, (UNKNOWN_ID,) * missing, finish=self._finish, told=told)
        if chunks and not missing:
            return [*chunks[:-1], replace(chunks[-1], finish=self._finish, told=told)]
        return [*chunks, closing]

    def _take(self, arrived_ns: int, choice: Mapping[str, Any], usage: Mapping[str, Any] | None) -> None:
        text, reasoning = _texts(choice)
        ids: Sequence[int] | None = choice.get("token_ids")
        finish = choice.get("finish_reason")
        if ids is not None:
            self._has_ids = True
            tokens, known = tuple(ids), True
        elif usage is not None and usage.get("completion_tokens") is not None:
            tokens, known = (UNKNOWN_ID,) * max(0, int(usage["completion_tokens"]) - self._count), True
        else:
            tokens, known = (), not (text or reasoning) or self._has_ids
        self._count += len(tokens)
        if tokens or not known:
            chunk = Chunk(arrived_ns, tokens, reasoning=bool(reasoning and not text))
            self._held.append(_Piece(chunk, known, bool(text or reasoning)))
        if finish is not None:
            self._finish = FINISHES.get(str(finish))
            if self._finish is None:
                raise EngineError(f"request {self._request.request_id}: the server finished it with '{finish}'")

    def _ready(self) -> list[Chunk]:
        """All that is known, in order; after the finish reason nothing leaves before the end, for totals may follow."""
        if self._finish is not None or not all(piece.known for piece in self._held):
            return []
        ready, self._held = self._held, []
        return [piece.chunk for piece in ready]

    def _missing(self) -> int:
        """Tokens that the usage has and no chunk carried: the stop token, at most. Raises EngineError for anything else."""
        name, unknown = self._request.request_id, sum(not piece.known for piece in self._held)
        if self._usage is None or self._usage.get("completion_tokens") is None:
            if unknown:
                raise EngineError(f"request {name}: neither token ids nor usage; tokens cannot be counted")
            return 0
        prompt, sent = self._usage.get("prompt_tokens"), len(self._request.prompt_ids)
        if prompt is not None and int(prompt) != sent:
            raise EngineError(f"request {name}: {sent} prompt tokens were sent, the server counted {prompt}: it rendered anew")
        total = int(self._usage["completion_tokens"])
        left = total - self._count - unknown
        if left == 0 or (left == 1 and self._finish == "stop"):
            return left
        raise EngineError(
            f"request {name}: usage says {total} tokens, {len(self._held)} chunks of unknown size after {self._count} known "
            "tokens; the server must send token ids, running usage, or one chunk per token"
        )

    @staticmethod
    def _resolve(piece: _Piece) -> Chunk:
        return piece.chunk if piece.known else replace(piece.chunk, token_ids=(UNKNOWN_ID,))


def _texts(choice: Mapping[str, Any]) -> tuple[str, str]:
    """Answer and reasoning text of a chunk, from either route; servers call reasoning by two names."""
    delta = choice.get("delta") or {}
    text = choice.get("text") or delta.get("content") or ""
    return str(text), str(delta.get("reasoning_content") or delta.get("reasoning") or choice.get("reasoning") or "")


def _cached(usage: Mapping[str, Any] | None) -> dict[str, int]:
    details = (usage or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return {} if cached is None else {"cached_tokens": int(cached)}


def _fields(told: Told | None) -> dict[str, Any]:
    names = ("cached_tokens", "steps", "steps_with_draft", "drafted", "accepted")
    return {name: getattr(told, name) for name in names} if told else {}
