"""Every recorded stream through framing, events and its engine's reader: the same trace wherever its bytes are cut."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compose import compose_run
from harness.engines.base import Chunk, EngineError, Request
from harness.engines.llama_cpp_stream import LlamaReader
from harness.engines.server_completions import CompletionsReader
from harness.engines.server_dialect import Reader
from harness.engines.server_events import chunks_of
from harness.engines.server_http import Response, ResponseDecoder
from harness.engines.sglang_stream import GenerateReader
from harness.engines.vllm_stream import SpeculationTeller

RECORDED = Path(__file__).parents[2] / "recorded"
STREAMS = {str(path.relative_to(RECORDED)): path.read_bytes() for path in sorted(RECORDED.glob("*/*/*.sse"))}
SAMPLER = compose_run("cpu_smollm2").run.sampler


def reader_of(name: str, data: bytes) -> Reader:
    """The reader of the route that the stream was recorded on; llama.cpp's of b11434 and one of SGLang's are OpenAI's."""
    request = Request("r", (1,) * prompt_tokens(data), 4096, (), True, SAMPLER)
    if "xllamacpp" in name:
        return LlamaReader(request, 4 if "/ngram/" in name else None)
    if name.endswith("/plain/stream.sse") and name.startswith("sglang"):
        return GenerateReader(request, 0)
    return CompletionsReader(request, SpeculationTeller() if name.startswith("vllm") else None)


def prompt_tokens(data: bytes) -> int:
    """As many as the server counted, for another number than was sent is an error."""
    counted = re.findall(rb'"prompt_tokens": ?(\d+)', data)
    return int(counted[-1]) if counted else 1


def framed(body: bytes, size: int) -> bytes:
    """The answer as HTTP/1.1 sends a stream: chunks of `size` bytes, which no event cares about."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts) + b"0\r\n\r\n"


def trace(name: str, parts: list[bytes]) -> tuple[list[Chunk], str]:
    """Chunks of an answer whose bytes arrive in these parts, the n-th at n ns, and why it was refused in the end, if it was."""
    chunks: list[Chunk] = []

    async def arriving(decoder: ResponseDecoder) -> AsyncIterator[tuple[int, bytes]]:
        for at, part in enumerate(parts):
            if body := decoder.feed(part):
                yield at, body
        decoder.close()

    async def go() -> str:
        response = Response(0, 200, {}, arriving(ResponseDecoder()))
        try:
            async for chunk in chunks_of(response, reader_of(name, STREAMS[name])):
                chunks.append(chunk)  # noqa: PERF401 - what came before an error is kept
        except EngineError as refused:
            return str(refused)
        return ""

    return chunks, asyncio.run(go())


def untimed(read: tuple[list[Chunk], str]) -> tuple[list[Chunk], str]:
    return [replace(chunk, arrived_ns=0) for chunk in read[0]], read[1]


def test_streams_of_every_engine_are_recorded() -> None:
    assert {name.partition("-")[0] for name in STREAMS} == {"llama_cpp", "vllm", "sglang"}
    assert len(STREAMS) == 19


@pytest.mark.parametrize("name", STREAMS)
@settings(deadline=None, max_examples=8)
@given(places=st.lists(st.integers(0, 10**6), max_size=30), size=st.integers(1, 3000))
def test_a_recorded_answer_has_one_trace_however_its_bytes_arrive(name: str, places: list[int], size: int) -> None:
    """The end of llama.cpp's OpenAI route may be refused: a token without an event of its own cannot be placed."""
    whole = trace(name, [framed(STREAMS[name], 1 << 20)])
    refused = name.startswith("llama_cpp-b11434") and "usage says 16 tokens" in whole[1]
    assert refused or (whole[0][-1].finish, whole[1]) == ("length", "")
    assert refused or sum(len(chunk.token_ids) for chunk in whole[0]) >= 12
    data = framed(STREAMS[name], size)
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    cut = trace(name, [data[a:b] for a, b in pairwise(edges)])
    assert untimed(cut) == untimed(whole)
    arrived = [chunk.arrived_ns for chunk in cut[0]]
    assert arrived == sorted(arrived)


@pytest.mark.parametrize("name", [name for name in STREAMS if name.endswith(("plain/stream.sse", "plain/utf8.sse"))])
def test_one_byte_at_a_time_is_one_trace_too(name: str) -> None:
    data = framed(STREAMS[name], 777)
    assert untimed(trace(name, [bytes([byte]) for byte in data])) == untimed(trace(name, [data]))
