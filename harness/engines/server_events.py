"""One answer as chunks: event stream to events, events through the adapter's reader, failures in words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from harness.engines.base import Chunk, EngineError
from harness.engines.server_dialect import Reader
from harness.engines.server_http import Response
from harness.engines.sse import EventParser


async def chunks_of(response: Response, reader: Reader) -> AsyncIterator[Chunk]:
    """Chunks of one answer. Raises EngineError for an HTTP error, an error event, or a body that is no event stream."""
    if response.status != 200:
        raise EngineError(f"HTTP {response.status}: {short(await response.read())}")
    parser, events = EventParser(), 0
    async for arrived_ns, data in response.body:
        for text in parser.feed(data):
            events += 1
            if text == b"[DONE]":
                break
            for chunk in reader.read(arrived_ns, _event(text)):
                yield chunk
    if not events and parser.pending.strip():
        raise EngineError(f"no event stream: {short(parser.pending)}")
    for chunk in reader.end():
        yield chunk


def short(text: bytes) -> str:
    """The beginning of a body, on one line."""
    return " ".join(text[:300].decode("utf-8", "replace").split())


def json_object(text: bytes) -> dict[str, Any]:
    """A body as an object, empty if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _event(text: bytes) -> Mapping[str, Any]:
    event = json.loads(text.decode())  # from bytes, json would look for UTF-16 in every event
    if not isinstance(event, dict):
        raise EngineError(f"an event that is no object: {short(text)}")
    if error := event.get("error"):
        raise EngineError(f"error event: {error.get('message', error) if isinstance(error, dict) else error}")
    return event
