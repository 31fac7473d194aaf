"""Whether a stopped server gave its GPU memory back: used memory of each GPU, before the launch and after the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

SLACK_BYTES = 256 << 20  # what driver and desktop may move meanwhile
WAIT_S = 10.0  # the driver frees a dead process's memory a little later


class UsedMemory(Protocol):
    """A GPU as far as this file needs it: `harness.nvml.Gpu`."""

    @property
    def index(self) -> int: ...

    def used_bytes(self) -> int | None: ...


class GpuMemory:
    """Built before the launch. A GPU that does not tell is left out; pids are not compared, for containers show the host's."""

    def __init__(self, gpus: Sequence[UsedMemory]) -> None:
        self._before = [(gpu, used) for gpu in gpus if (used := gpu.used_bytes()) is not None]

    async def not_returned(self, wait_s: float = WAIT_S) -> list[str]:
        """A line for each GPU on which more is used than before, once `wait_s` have passed; empty as soon as none is."""
        end = time.monotonic() + wait_s
        while lines := self._lines():
            if time.monotonic() > end:
                return lines
            await asyncio.sleep(0.1)
        return []

    def _lines(self) -> list[str]:
        held = [(gpu.index, (gpu.used_bytes() or 0) - before) for gpu, before in self._before]
        return [f"gpu{index} has {more >> 20} MiB more in use than before" for index, more in held if more > SLACK_BYTES]
