"""Waiting for a launched server: it is ready when it says so and owns its port, and lost the moment its process ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from harness.engines.base import EngineError
from harness.engines.server_process import ServerProcess, is_listened_on, owns_port

READY_TIMEOUT_S = 1800.0
# vLLM looks at the whole system, with commands and packages, before it tells its configuration for the first time. What does
# not answer in time is unknown for good, so this is no place to be short.
INFO_TIMEOUT_S = 120.0
POLL_S = 0.1


async def wait_until_ready(process: ServerProcess, port: int, name: str, answers: Callable[[], Awaitable[bool]]) -> None:
    """Returns when the health route `answers` and our process listens. Raises EngineError with the last log lines otherwise."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        if not process.alive:
            raise EngineError(f"{name} {process.ending()}")
        if await answers() and _is_ours(process, port, name):
            return
        if time.monotonic() > deadline:
            raise EngineError(f"{name}: not ready after {READY_TIMEOUT_S:.0f} s{process.last_lines()}")
        await asyncio.sleep(POLL_S)


def _is_ours(process: ServerProcess, port: int, name: str) -> bool:
    """The port answers. False if our child has just died; raises EngineError if it lives and does not own the port."""
    if owns_port(process.pids, port):
        return True
    if process.alive and is_listened_on(port):
        raise EngineError(f"{name}: port {port} is answered by a process that this launch did not start; stop it")
    return False
