"""HTTP/1.1 as far as a load client needs it: one request per connection, bytes stamped the moment the loop reads them.

The stamp is taken in `data_received`, before any other task runs, so that parsing and bookkeeping of other streams cannot move
it. A fresh connection per request costs every arm the same and cannot hit a connection that the server is just closing.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from harness.clock import now_ns

CONNECT_TIMEOUT_S = 10.0


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


class _Wire(asyncio.Protocol):
    """One connection: bytes with the time they were read, in order."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def data_received(self, data: bytes) -> None:
        self._arrived.append((now_ns(), data))
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._news.set()

    async def read(self) -> tuple[int, bytes] | None:
        """The next bytes and when they were read; null when the connection is closed."""
        while not self._arrived:
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose head has arrived. `body` gives (arrival ns, bytes); it raises ConnectionError if cut short."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[tuple[int, bytes]]

    async def read(self) -> bytes:
        return b"".join([data async for _, data in self.body])


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one base URL (`http://host:port/prefix`). `headers` go with each one."""

    base_url: str
    headers: Mapping[str, str]

    @asynccontextmanager
    async def request(self, method: str, path: str, body: Any = None) -> AsyncIterator[Response]:
        """Send one request and wait for the head of its answer. Leaving the block closes the connection, which cancels it."""
        url = urlsplit(self.base_url.rstrip("/") + path)
        secure = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if secure else 80)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, wire = await asyncio.get_running_loop().create_connection(_Wire, url.hostname or "", port, ssl=secure)
        try:
            transport.write(self._message(method, url.netloc, url.path + (f"?{url.query}" if url.query else ""), body))
            yield await _response(wire)
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


async def _response(wire: _Wire) -> Response:
    decoder = ResponseDecoder()
    first: tuple[int, bytes] = (0, b"")
    while decoder.status is None:
        if (part := await wire.read()) is None:
            decoder.close()
            break
        first = part[0], decoder.feed(part[1])
    return Response(decoder.status or 0, decoder.headers, _body(wire, decoder, first))


async def _body(wire: _Wire, decoder: ResponseDecoder, first: tuple[int, bytes]) -> AsyncIterator[tuple[int, bytes]]:
    if first[1]:
        yield first
    while not decoder.done:
        if (part := await wire.read()) is None:
            decoder.close()
            return
        if body := decoder.feed(part[1]):
            yield part[0], body
