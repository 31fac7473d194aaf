"""The hand-over between an engine's reader and one request: every chunk once, in order, whoever is faster."""

from __future__ import annotations

import asyncio
import random

import pytest

from harness.engines.base import Chunk, DeadEngineError, EngineError
from harness.engines.chunk_stream import ChunkStream


def chunk(number: int, finish: str | None = None) -> Chunk:
    return Chunk(number, (number,), finish=finish)


@pytest.mark.parametrize("seed", range(5))
def test_every_chunk_comes_once_and_in_order_whoever_is_faster(seed: int) -> None:
    draw = random.Random(seed)

    async def go() -> list[int]:
        stream = ChunkStream()

        async def write() -> None:
            for number in range(200):
                stream.put(chunk(number, "stop" if number == 199 else None))
                if draw.random() < 0.5:
                    await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        seen: list[int] = []
        while len(seen) < 200:
            seen += [one.arrived_ns for one in await stream.arrived() if isinstance(one, Chunk)]
            if draw.random() < 0.3:
                await asyncio.sleep(0)
        await writer
        return seen

    assert asyncio.run(go()) == list(range(200))


def test_an_error_comes_after_what_arrived_before_it() -> None:
    async def go() -> list[Chunk | EngineError]:
        stream = ChunkStream()
        stream.put(chunk(1))
        stream.put(gone)
        return await stream.arrived()

    gone = DeadEngineError("gone")
    assert asyncio.run(go()) == [chunk(1), gone]


def test_a_reader_that_gave_up_does_not_disturb_the_writer() -> None:
    async def go() -> None:
        stream = ChunkStream()
        reader = asyncio.create_task(stream.arrived())
        await asyncio.sleep(0)
        reader.cancel()
        stream.put(chunk(1))
        with pytest.raises(asyncio.CancelledError):
            await reader
        stream.put(chunk(2))
        assert await stream.arrived() == [chunk(1), chunk(2)]

    asyncio.run(go())
