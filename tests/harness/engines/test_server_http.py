"""The HTTP client under many streams: stamps that parsing cannot move, parts held together and never lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from harness.clock import now_ns
from harness.engines.server_http import HELD_PARTS, HELD_S, Client, Turns, _Wire

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Play = Callable[[asyncio.StreamWriter], Awaitable[None]]


def framed(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


async def serving(play: Play, ask: Callable[[Client], Awaitable[None]]) -> None:
    """Run `ask` against a server whose every answer is `play`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await play(writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        await ask(Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}))


async def send(writer: asyncio.StreamWriter, *parts: bytes, gap_s: float = 0.0) -> None:
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(gap_s)


def test_bytes_are_stamped_between_the_parses_of_other_streams() -> None:
    """Twenty streams get a part at once and each takes 20 ms to parse: what comes 50 ms later must not wait for all of them."""
    ended_ns: list[int] = []
    stamps: list[int] = []
    all_here = asyncio.Event()
    asked = 0

    async def play(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        number = asked
        if number == 21:
            all_here.set()
        await all_here.wait()
        await asyncio.sleep(0.05 if number == 21 else 0)
        await send(writer, HEAD + framed(b"data"), END)

    async def read(client: Client, parse_s: float, into: list[int]) -> None:
        async with client.request("GET", "/") as response:
            async for at, _ in response.body:
                time.sleep(parse_s)
                into.append(now_ns() if parse_s else at)

    async def ask(client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(read(client, 0.02, ended_ns))
            await asyncio.sleep(0.1)
            group.create_task(read(client, 0.0, stamps))

    asyncio.run(serving(play, ask))
    assert len(ended_ns) == 20
    assert sum(end > stamps[0] for end in ended_ns) >= 5


def test_parts_that_are_held_keep_the_time_of_their_own_arrival() -> None:
    count, gap_s = 3 * HELD_PARTS, 0.004
    found: list[tuple[int, bytes]] = []

    async def play(writer: asyncio.StreamWriter) -> None:
        await send(writer, HEAD, *(framed(b"part %d" % i) for i in range(count)), END, gap_s=gap_s)

    async def ask(client: Client) -> None:
        async with client.request("GET", "/") as response:
            found.extend([part async for part in response.body])

    asyncio.run(serving(play, ask))
    assert b"".join(body for _, body in found) == b"".join(b"part %d" % i for i in range(count))
    gaps = [(b - a) / 1e9 for (a, _), (b, _) in pairwise(found)]
    assert sorted(gaps)[len(gaps) // 2] > gap_s / 2


def test_a_part_that_comes_between_the_call_for_a_turn_and_the_turn_is_no_closed_connection() -> None:
    """It leaves with that turn; what was set to hand it on later must not be read as an end."""

    class Late(Turns):
        def ask(self, waiting: asyncio.Future[None]) -> None:
            super().ask(waiting)
            if not late:
                late.append(True)
                wire.data_received(framed(b"second"))

    async def read_twice() -> None:
        nonlocal wire
        wire = _Wire(Late())
        wire.holds = True
        reading = asyncio.ensure_future(wire.read())
        await asyncio.sleep(0)
        wire.data_received(framed(b"first"))
        assert [data for _, data in await reading] == [framed(b"first"), framed(b"second")]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.read(), 4 * HELD_S)

    late: list[bool] = []
    wire: Any = None
    asyncio.run(read_twice())


def test_a_stream_that_falls_silent_hands_on_what_came() -> None:
    async def play(writer: asyncio.StreamWriter) -> None:
        await send(writer, HEAD, framed(b"one"), framed(b"two"), framed(b"three"), gap_s=0.002)
        await asyncio.sleep(60)

    async def ask(client: Client) -> None:
        bodies = b""
        async with asyncio.timeout(10 + HELD_S), client.request("GET", "/") as response:
            async for _, body in response.body:
                bodies += body
                if bodies == b"onetwothree":
                    return

    async def stopped() -> None:
        task = asyncio.create_task(serving(play, ask))
        await task

    asyncio.run(stopped())


@pytest.mark.parametrize("cut", range(len(END) + 1))
def test_an_end_cut_anywhere_ends_the_answer(cut: int) -> None:
    """Also in one piece with the last part. The connection stays open: only the end mark can tell."""
    whole: list[bytes] = []

    async def play(writer: asyncio.StreamWriter) -> None:
        await send(writer, HEAD, framed(b"first"), framed(b"last") + END[:cut], END[cut:], gap_s=0.01)
        await asyncio.sleep(60)

    async def ask(client: Client) -> None:
        async with asyncio.timeout(10), client.request("GET", "/") as response:
            whole.append(await response.read())

    asyncio.run(serving(play, ask))
    assert whole == [b"firstlast"]


def test_a_connection_that_breaks_in_the_middle_loses_nothing_that_came() -> None:
    bodies: list[bytes] = []

    async def play(writer: asyncio.StreamWriter) -> None:
        await send(writer, HEAD, framed(b"one"), framed(b"two"), gap_s=0.01)
        writer.close()

    async def ask(client: Client) -> None:
        async with client.request("GET", "/") as response:
            async for _, body in response.body:
                bodies.append(body)

    with pytest.raises(ConnectionError, match="middle of its answer"):
        asyncio.run(serving(play, ask))
    assert b"".join(bodies) == b"onetwo"


def test_a_request_is_sent_when_it_is_handed_to_the_kernel_and_not_when_its_connection_is_asked_for() -> None:
    """The server reads it after that, and a connection that takes long to be made does not count as waiting for an answer."""
    read_ns: list[int] = []
    found: list[tuple[int, int]] = []

    async def play(writer: asyncio.StreamWriter) -> None:
        read_ns.append(now_ns())
        await send(writer, HEAD + framed(b"data"), END)

    class Slow(asyncio.SelectorEventLoop):
        async def create_connection(self, *words: Any, **more: Any) -> Any:
            made = await super().create_connection(*words, **more)
            await asyncio.sleep(0.2)
            return made

    async def ask(client: Client) -> None:
        asked_ns = now_ns()
        async with client.request("GET", "/") as response:
            await response.read()
            found.append((asked_ns, response.sent_ns))

    with asyncio.Runner(loop_factory=Slow) as runner:
        runner.run(serving(play, ask))
    ((asked_ns, sent_ns),) = found
    assert sent_ns - asked_ns >= 0.2e9
    assert sent_ns <= read_ns[0]
