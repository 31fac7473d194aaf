"""A completions server that does what it is told, well or badly: in this process for streams, as a program for launches.

python misbehaving_server.py --port N --served-model-name NAME --play '{"fault": "http_500"}'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Beat = Sequence[Any]  # (t_ms, tokens, field), as in tests/recorded/streams.json


@dataclass
class Play:
    """What to do. `ids` sends token ids, `usage` is running, final or none, `beats` the answer; `fault` is how to fail."""

    beats: Sequence[Beat] = ((0, 1, "text"), (1, 1, "text"), (2, 1, "text"), (3, 1, "text"))
    ids: bool = True
    usage: str = "running"
    finish: str | None = "stop"
    token_ids: Sequence[int] | None = None  # of the whole answer; null counts up from 100
    texts: Sequence[str] | None = None
    fault: str | None = None
    cached: int | None = None
    prompt_tokens: int | None = None
    start_s: float = 0.0
    name: str | None = None  # served under another name
    grandchild: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class MisbehavingServer:
    """Answers GET of /v1/models and /metrics, and POST of /v1/completions as the play says. `bodies` is what was asked."""

    def __init__(self, play: Play, name: str) -> None:
        self.play, self.name = play, name
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, path, body = await _request(reader)
            self.paths.append(f"{method} {path}")
            if path == "/v1/completions":
                self.bodies.append(body)
                await self._complete(writer, body)
            elif path == "/v1/models":
                _whole(writer, 200, json.dumps({"data": [{"id": self.play.name or self.name}]}))
            elif path == "/metrics":
                _whole(writer, 200, "".join(f"{name} {value}\n" for name, value in self.play.metrics.items()))
            elif path == "/health":
                _whole(writer, 503 if self.play.fault == "never_ready" else 200, "")
            else:
                _whole(writer, 200, '{"success": ' + ("false" if self.play.fault == "no_flush" else "true") + "}")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _complete(self, writer: asyncio.StreamWriter, body: Mapping[str, Any]) -> None:
        play = self.play
        if play.fault == "http_500":
            return _whole(writer, 500, '{"error": "out of luck"}')
        if play.fault == "no_stream":
            return _whole(writer, 200, '{"object": "error", "message": "streaming is not for you"}')
        if play.fault == "hang":
            await asyncio.sleep(3600)
        if play.fault == "die":
            os._exit(3)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n")
        await self._stream(writer, body)
        if play.fault == "cut_inside_chunk":
            writer.write(b"40\r\ndata: {")
            return None
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return None

    async def _stream(self, writer: asyncio.StreamWriter, body: Mapping[str, Any]) -> None:
        play, start, sent = self.play, time.monotonic(), 0
        supply = list(play.token_ids) if play.token_ids is not None else list(range(100, 1000))
        for index, (at_ms, count, kind) in enumerate(play.beats):
            if (wait := start + at_ms / 1e3 - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if play.fault == "error_event" and index == 2:
                return _event(writer, json.dumps({"error": {"message": "the model fell over"}}))
            if play.fault == "truncate" and index == 2:
                return None
            ids, sent = supply[sent : sent + count], sent + count
            text = play.texts[index] if play.texts else " w" * count
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            if kind in ("reasoning", "reasoning_content"):
                choice |= {"delta": {kind: text}}
            else:
                choice |= {"text": text}
            if play.ids:
                choice["token_ids"] = ids
            usage = self._usage(body, sent) if play.usage == "running" else None
            self._send(writer, {"choices": [choice], **({"usage": usage} if usage else {})})
            await writer.drain()
        self._send(writer, {"choices": [{"index": 0, "text": "", "finish_reason": play.finish}]} if play.finish else None)
        self._send(writer, {"choices": [], "usage": self._usage(body, sent)} if play.usage != "none" else None)
        return None

    def _usage(self, body: Mapping[str, Any], sent: int) -> dict[str, Any]:
        prompt = len(body["prompt"]) if self.play.prompt_tokens is None else self.play.prompt_tokens
        details = {} if self.play.cached is None else {"prompt_tokens_details": {"cached_tokens": self.play.cached}}
        return {"prompt_tokens": prompt, "completion_tokens": sent, **details}

    @staticmethod
    def _send(writer: asyncio.StreamWriter, event: Any) -> None:
        if event is not None:
            _event(writer, json.dumps(event, ensure_ascii=False))


@asynccontextmanager
async def serving(play: Play) -> AsyncIterator[tuple[MisbehavingServer, str]]:
    """The server and its URL, in this event loop."""
    server = MisbehavingServer(play, "here")
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    try:
        yield server, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    length = next((int(line.split(":")[1]) for line in head if line.lower().startswith("content-length")), 0)
    return method, path, json.loads(await reader.readexactly(length) or b"{}") if length else {}


def _whole(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = text.encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    """One event, cut in two chunks in the middle of its bytes: that may be inside a character."""
    body = f"data: {data}\n\n".encode()
    for part in (body[: len(body) // 2], body[len(body) // 2 :]):
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--port", type=int)
    flags.add_argument("--served-model-name")
    flags.add_argument("--play", default="{}")
    args = flags.parse_args()
    play = Play(**json.loads(args.play))
    print("loading weights", flush=True)
    if play.grandchild:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print(f"grandchild {child.pid}", flush=True)
    time.sleep(play.start_s)
    if play.fault == "die_at_start":
        sys.exit("RuntimeError: no kernel image for this device")
    asyncio.run(_forever(MisbehavingServer(play, args.served_model_name), args.port))


async def _forever(server: MisbehavingServer, port: int) -> None:
    if server.play.fault == "no_port":
        await asyncio.sleep(600)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", port)
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    main()
