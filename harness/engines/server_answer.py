"""What is taken from a stream, whatever the server sends: nothing past a stop token, never more than was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.engines.base import Chunk, EngineError, Request


class Answer:
    """Passes chunks of one request through. `done` says that the rest of the stream is of no use: cancel it.

    A stop token ends the answer. Tokens behind it in the same chunk are cut (the step's `accepted` stays what the engine
    says); tokens in a later chunk are a server that went on, which is cancelled. Raises EngineError above `max_tokens`.
    """

    def __init__(self, request: Request) -> None:
        self.done = False
        self._stop_ids = frozenset() if request.ignore_eos else frozenset(request.stop_ids)
        self._request = request
        self._count = 0
        self._last: Chunk | None = None  # it ended in a stop token; its finish and totals may still come

    def take(self, chunk: Chunk) -> Iterator[Chunk]:
        if self._last is not None:
            yield from self._close(chunk)
            return
        ids = self._cut(chunk.token_ids)
        self._count += len(ids)
        if self._count > self._request.max_tokens:
            asked = self._request.max_tokens
            raise EngineError(
                f"request {self._request.request_id}: the server sent more than the {asked} tokens it was asked for"
            )
        is_stop = bool(ids) and ids[-1] in self._stop_ids
        if is_stop and chunk.finish is None:
            self._last = replace(chunk, token_ids=ids)
            return
        self.done = chunk.finish is not None
        as_it_came = len(ids) == len(chunk.token_ids) and not is_stop  # nearly all are: a copy of each would cost
        yield chunk if as_it_came else replace(chunk, token_ids=ids, finish="stop" if is_stop else chunk.finish)

    def end(self) -> Iterator[Chunk]:
        """The stream is over; an answer that ended in a stop token is whole even if nothing came after it."""
        if self._last is not None:
            yield replace(self._last, finish="stop")
            self._last = None

    def _close(self, chunk: Chunk) -> Iterator[Chunk]:
        assert self._last is not None
        if chunk.token_ids or chunk.finish:
            yield replace(self._last, finish="stop", told=None if chunk.token_ids else chunk.told)
            self._last, self.done = None, True

    def _cut(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if self._stop_ids.isdisjoint(ids):
            return ids
        end = next((i + 1 for i, token in enumerate(ids) if token in self._stop_ids), len(ids))
        return ids[:end]
