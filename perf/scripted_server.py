"""A streaming server that costs little and knows what it did: OpenAI's completions and chat routes, answers by the clock.

    python -m perf.scripted_server [--streams 64] [--script FILE.json]

Prints its URL. Model `steady` answers with as many chunks of one token as are asked for, STEP_MS apart, the first FIRST_MS
after the request was read. The first `--streams` requests after a reading of /told wait longer, one answer's length spread
evenly over them, so that a closed load does not start all its requests at once, wave after wave.
`--script` adds models, each a list of (ms after the request, tokens, field), as in tests/recorded/streams.json.

GET /told: what was played since the last reading, one object per request, by the clock of this process: from the moment in
which the request was read to those in which chunks were handed to the kernel. That, not the schedule, is a client's truth.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

FIRST_MS, STEP_MS, TOKENS = 50.0, 10.0, 100
Beat = tuple[float, int, str]  # ms after the request, tokens, field
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class ScriptedServer:
    """What every connection shares: the scripts, how many requests came, and what was played."""

    def __init__(self, scripts: Mapping[str, Sequence[Beat]], streams: int) -> None:
        self._scripts = {
            name: tuple((float(at), int(count), str(kind)) for at, count, kind in s) for name, s in scripts.items()
        }
        self._streams = streams
        self._begun = 0
        self._played: list[dict[str, float]] = []

    @property
    def models(self) -> list[str]:
        return ["steady", *self._scripts]

    def beats(self, body: Mapping[str, Any]) -> tuple[Beat, ...]:
        """The answer to this request: a script as it is, or `steady` as long as asked."""
        if (script := self._scripts.get(str(body.get("model")))) is not None:
            return script
        length = int(body.get("max_tokens") or body.get("max_completion_tokens") or TOKENS)
        first = FIRST_MS
        if self._begun < self._streams:
            first += self._begun * length * STEP_MS / self._streams
        self._begun += 1
        return tuple((first + i * STEP_MS, 1, "content") for i in range(length))

    def keep(self, beats: Sequence[Beat], read_s: float, first_s: float, last_s: float, late_s: float) -> None:
        """Remember one whole answer. Its time per token leaves out the tokens of the first chunk."""
        tokens = sum(count for _, count, _ in beats)
        after = tokens - beats[0][1]
        self._played.append(
            {
                "chunks": len(beats),
                "tokens": tokens,
                "ttft_ms": (first_s - read_s) * 1e3,
                "tpot_ms": (last_s - first_s) * 1e3 / after if after else 0.0,
                "late_ms": late_s * 1e3,
            }
        )

    def told(self) -> list[dict[str, float]]:
        played, self._played, self._begun = self._played, [], 0
        return played


class _Connection(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._buffer = b""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        read_s = self._loop.time()
        self._buffer += data
        head, whole, rest = self._buffer.partition(b"\r\n\r\n")
        if not whole:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, _ = first.split(" ")
        self._answer(method, path.partition("?")[0], json.loads(rest[:length] or b"{}"), read_s)

    def _answer(self, method: str, path: str, body: dict[str, Any], read_s: float) -> None:
        if method == "POST" and path in ("/v1/completions", "/v1/chat/completions") and body.get("stream"):
            beats = self._server.beats(body)
            self._play(beats, _events(tuple(beat[1:] for beat in beats), *_form(path, body)), read_s)
        elif path == "/v1/models":
            self._whole(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self._server.models]})
        elif path == "/told":
            self._whole(200, self._server.told())
        elif path == "/health":
            self._whole(200, {})
        else:
            self._whole(404, {"error": f"{method} {path}: this server streams completions and nothing else"})

    def _whole(self, status: int, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self._transport.write(f"HTTP/1.1 {status} .\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)

    def _play(self, beats: tuple[Beat, ...], events: tuple[bytes, ...], read_s: float) -> None:
        """Hand every chunk to the kernel when it is due, the head with the first, as engines do."""
        index, first_s, late_s = 0, 0.0, 0.0

        def beat() -> None:
            nonlocal index, first_s, late_s
            now = self._loop.time()
            self._transport.write(events[index] if index else HEAD + events[0])
            first_s = first_s or now
            late_s = max(late_s, now - read_s - beats[index][0] / 1e3)
            index += 1
            if index < len(beats):
                self._timer = self._loop.call_at(read_s + beats[index][0] / 1e3, beat)
            else:
                self._server.keep(beats, read_s, first_s, now, late_s)

        self._timer = self._loop.call_at(read_s + beats[0][0] / 1e3, beat)


def _form(path: str, body: Mapping[str, Any]) -> tuple[bool, str, bool, bool, bool, int]:
    """What the bytes of an answer depend on. A prompt in words counts its words: there is no tokenizer here."""
    options = body.get("stream_options") or {}
    prompt = body.get("prompt") or "".join(str(message.get("content")) for message in body.get("messages") or ())
    count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    usage, running = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
    return "chat" in path, str(body.get("model")), bool(body.get("return_token_ids")), usage, running, count


@lru_cache(maxsize=4096)
def _events(
    beats: tuple[tuple[int, str], ...], chat: bool, model: str, ids: bool, usage: bool, running: bool, prompt: int
) -> tuple[bytes, ...]:
    """One piece of bytes per beat, made before anything is due; the last also holds usage, end mark and end of body."""
    base = {"id": "scripted", "object": "chat.completion.chunk" if chat else "text_completion", "created": 0, "model": model}
    pieces, sent = [], 0
    for index, (count, kind) in enumerate(beats):
        text, told = " w" * count, {"token_ids": list(range(100 + sent, 100 + sent + count))} if ids else {}
        sent += count
        last = index == len(beats) - 1
        content = {"delta": {kind: text}} if chat or kind != "content" else {"text": text}
        choice = {"index": 0, **content, **told, "finish_reason": "length" if last else None}
        counts = {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}
        piece = _frame({**base, "choices": [choice], **({"usage": counts} if running else {})})
        if last:
            end = _frame({**base, "choices": [], "usage": counts}) if usage else b""
            piece += end + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        pieces.append(piece)
    return tuple(pieces)


def _frame(event: Mapping[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _serve(scripts: Mapping[str, Sequence[Beat]], streams: int) -> None:
    server = ScriptedServer(scripts, streams)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    gc.freeze()
    await listener.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="perf.scripted_server", description=__doc__)
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--script", type=Path)
    args = parser.parse_args()
    asyncio.run(_serve(json.loads(args.script.read_text("utf-8"))["streams"] if args.script else {}, args.streams))


if __name__ == "__main__":
    main()
