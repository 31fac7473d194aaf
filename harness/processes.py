"""The processes of a serving: stopped in order, killed when they do not, never this one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable

import psutil

from harness.engines.base import Engine, EngineError

STOP_S = 60.0


async def stop(engine: Engine, pids: list[int]) -> list[str]:
    """Stop the engine, and kill it if it does not within `STOP_S`; what there is to tell about it.

    An engine that cannot account for everything it started (a process, a port) is told, not raised: the cells are measured.
    """
    try:
        async with asyncio.timeout(STOP_S):
            await engine.stop()
        return []
    except TimeoutError:
        kill(pids)
        return [f"stop: the engine had not stopped after {STOP_S:g} s and was killed"]
    except EngineError as left_over:
        kill(pids)
        return [f"stop: {left_over}"]
    finally:
        pids.clear()


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to the serving's processes, never to this one (an engine may run in it)."""
    for pid in pids:
        if pid != os.getpid() and psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
