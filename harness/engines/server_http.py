"""HTTP/1.1 as far as a load client needs it: one request per connection, bytes stamped the moment the loop reads them.

The stamp is taken in `data_received`, before any other task runs, and readers take turns, one stream per round of the event
loop (`Turns`): bytes that arrive wait for one stream's parse at most, however many are read at once. A fresh connection per
request costs every arm the same and cannot hit a connection that the server is just closing.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from harness.clock import now_ns

CONNECT_TIMEOUT_S = 10.0
HELD_PARTS, HELD_S = 16, 0.05  # a stream's parts wait for each other until there are so many, or for so long
BODY_END = b"\r\n\r\n"  # the end of a chunked body ends so; where its last piece is shorter, the rest came before


class ResponseDecoder:
    """Body bytes out of a response cut anywhere: chunked, with a length, or until the connection closes."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.done = False
        self._buffer = bytearray()
        self._left: int | None = None  # bytes of the body, or of the current chunk, still to come; null is until close
        self._chunked = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`, framing removed. Raises ValueError for what is no HTTP."""
        self._buffer += data
        if self.status is None and not self._read_head():
            return b""
        if self.done:
            return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def close(self) -> None:
        """The connection closed: an end where the length was open, else raises ConnectionError."""
        if self.status is not None and not self._chunked and self._left is None:
            self.done = True
        if not self.done:
            raise ConnectionError("the server closed the connection in the middle of its answer")

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(f"no HTTP answer: {first[:80]!r}")
        if (status := int(rest[:3])) < 200:
            return self._read_head()
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        self._left = 0 if self._chunked else int(length) if length is not None else None
        self.status, self.done = status, self._left == 0 and not self._chunked
        return True

    def _read_plain(self) -> bytes:
        taken = bytes(self._buffer if self._left is None else self._buffer[: self._left])
        del self._buffer[: len(taken)]
        if self._left is not None:
            self._left -= len(taken)
            self.done = self._left == 0
        return taken

    def _read_chunks(self) -> bytes:
        """A chunk is its size in hex, a line end, its bytes, a line end; size 0 ends the body (trailers are ignored)."""
        body = bytearray()
        while True:
            if not self._left:
                line, found, _ = self._buffer.partition(b"\r\n")
                if not found:
                    return bytes(body)
                self._left = int(line.split(b";")[0], 16) + 2  # its line end is taken with it
                del self._buffer[: len(line) + 2]
                if self._left == 2:
                    self.done = True
                    return bytes(body)
            taken = self._buffer[: self._left]
            body += taken[: max(0, self._left - 2)]
            self._left -= len(taken)
            del self._buffer[: len(taken)]
            if self._left:
                return bytes(body)


class Turns:
    """Lets those who wait go on one at a time, one per round of the event loop, in the order in which they asked.

    The loop looks for bytes once a round. Were all readers woken at once, 64 chunks that came together would all be parsed
    before the next look, and what arrived meanwhile would be stamped milliseconds late.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._called = False

    def ask(self, waiting: asyncio.Future[None]) -> None:
        """Let this one go on when its turn comes. Who has been cancelled by then costs nobody a round."""
        self._waiting.append(waiting)
        if not self._called:
            self._called = True
            waiting.get_loop().call_soon(self._next)

    def _next(self) -> None:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if self._waiting:
            waiting = self._waiting.popleft()
            waiting.set_result(None)
            waiting.get_loop().call_soon(self._next)
        else:
            self._called = False


class _Wire(asyncio.Protocol):
    """One connection: bytes with the time they were read, in order.

    While it `holds`, its reader is woken for several parts together, which cost less parsed in one go than each by itself in
    cold caches. What looks like the end of an answer is handed on at once, as is all while it does not hold.
    """

    def __init__(self, turns: Turns) -> None:
        self.holds = False
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._urgent = self._closed = False

    def data_received(self, data: bytes) -> None:
        self._arrived.append((now_ns(), data))
        self._urgent = self._urgent or len(data) < len(BODY_END) or data.endswith(BODY_END)
        self._look()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._look()

    async def read(self) -> list[tuple[int, bytes]]:
        """The next parts and when they were read, in their turn; nothing when the connection is closed."""
        while True:
            self._waiting = turn = self._loop.create_future()
            self._look()
            await turn
            if self._arrived or self._closed:
                break  # else a timer that was set for parts which left with an earlier turn
        parts = [self._arrived.popleft() for _ in range(min(HELD_PARTS, len(self._arrived)))]
        self._urgent = self._urgent and bool(self._arrived)
        return parts

    def _look(self) -> None:
        """Wake the reader if there is something that it should not wait for any longer."""
        if self._closed or self._urgent or len(self._arrived) >= (HELD_PARTS if self.holds else 1):
            self._wake()
        elif self._arrived and self._timer is None:
            self._timer = self._loop.call_later(HELD_S, self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self._turns.ask(waiting)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose head has arrived. `body` gives (arrival ns, bytes); it raises ConnectionError if cut short.

    `sent_ns` is when the request was handed to the kernel, over a connection that stood: making it is left out.
    """

    sent_ns: int
    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[tuple[int, bytes]]

    async def read(self) -> bytes:
        return b"".join([data async for _, data in self.body])


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one base URL (`http://host:port/prefix`). `headers` go with each one; its answers are read in turns."""

    base_url: str
    headers: Mapping[str, str]
    turns: Turns = field(default_factory=Turns)

    @asynccontextmanager
    async def request(self, method: str, path: str, body: Any = None) -> AsyncIterator[Response]:
        """Send one request and wait for the head of its answer. Leaving the block closes the connection, which cancels it."""
        url = urlsplit(self.base_url.rstrip("/") + path)
        secure = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if secure else 80)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            loop = asyncio.get_running_loop()
            transport, wire = await loop.create_connection(lambda: _Wire(self.turns), url.hostname or "", port, ssl=secure)
        try:
            message = self._message(method, url.netloc, url.path + (f"?{url.query}" if url.query else ""), body)
            sent_ns = now_ns()
            transport.write(message)
            yield await _response(wire, sent_ns)
        finally:
            transport.abort()

    async def get(self, path: str, method: str = "GET", body: Any = None, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """Status and whole body of a small request. Raises OSError, TimeoutError included."""
        async with asyncio.timeout(timeout_s), self.request(method, path, body) as response:
            return response.status, await response.read()

    def _message(self, method: str, host: str, target: str, body: Any) -> bytes:
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Host": host, "Connection": "close", "Content-Length": str(len(content)), **self.headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + content


async def _response(wire: _Wire, sent_ns: int) -> Response:
    decoder = ResponseDecoder()
    begun: list[tuple[int, bytes]] = []
    while decoder.status is None:
        if not (parts := await wire.read()):
            decoder.close()
            break
        begun += [(at, body) for at, data in parts if (body := decoder.feed(data))]
    return Response(sent_ns, decoder.status or 0, decoder.headers, _body(wire, decoder, begun))


async def _body(wire: _Wire, decoder: ResponseDecoder, begun: list[tuple[int, bytes]]) -> AsyncIterator[tuple[int, bytes]]:
    """The body's parts. The first is handed on at once, for a timeout asks whether anything came; then they may be held."""
    for part in begun:
        yield part
    wire.holds = bool(begun)
    while not decoder.done:
        if not (parts := await wire.read()):
            decoder.close()
            return
        wire.holds = True
        for at, data in parts:
            if body := decoder.feed(data):
                yield at, body
