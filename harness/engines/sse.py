"""Server-sent events out of bytes that are cut anywhere: between events, inside a line, inside a UTF-8 character.

Only the `data` field matters here; comments, event names and ids are dropped. Rules: HTML standard, section 9.2.6.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventParser:
    """Feed bytes as they arrive, get the data of each event that is complete. An event ends at an empty line."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that these bytes complete, in order; lines of one event are joined by newlines."""
        buffer = self._rest + data
        if b"\r" not in buffer:  # what servers send, and several times faster
            *lines, self._rest = buffer.split(b"\n")
            return [event for line in lines if (event := self._line(line)) is not None]
        events, start = [], 0
        for end in _LINE_END.finditer(buffer):
            if end.group() == b"\r" and end.end() == len(buffer):
                break  # the other half of a line end may still come
            if (event := self._line(buffer[start : end.start()])) is not None:
                events.append(event)
            start = end.end()
        self._rest = buffer[start:]
        return events

    @property
    def pending(self) -> bytes:
        """What arrived after the last complete event: a body that answers with an error instead of events is all here."""
        return b"\n".join([*self._data, self._rest])

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            event, self._data = self._data, []
            return b"\n".join(event) if event else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
