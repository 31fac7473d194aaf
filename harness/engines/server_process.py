"""The process tree of a served engine: started in a group of its own, watched, and gone without a trace when stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from harness.engines.base import EngineError

GUARD = Path(__file__).with_name("server_guard.py")
TERM_S, KILL_S = 20.0, 10.0
LOG_BYTES = 8 << 20
_EXCEPTION = re.compile(r"\b\w+(?:Error|Exception): .*\S")


def free_port() -> int:
    """A port that nothing listens on now; whoever takes it before the server does is found by `owns_port`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """One command under the guard, and everything it spawned. Output goes to the log. `stop` is safe to call twice."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        self._argv, self._env, self._log_path = tuple(argv), dict(env), log_path
        self._log_from = log_path.stat().st_size if log_path.exists() else 0
        self._process: asyncio.subprocess.Process | None = None
        self._seen: dict[int, psutil.Process] = {}

    async def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", str(GUARD), *self._argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._env},
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pids(self) -> tuple[int, ...]:
        """The server and all its descendants that live now, the guard left out."""
        return tuple(process.pid for process in self._tree())

    async def settle(self, seconds: float = 1.0) -> None:
        """Give a process that is just dying time to be dead: its sockets close before it can be waited for."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), seconds)

    def ending(self) -> str:
        """How it ended, in words, with its last log lines."""
        code = self._process.returncode if self._process else None
        if code is None or code < 0:
            how = "is not running"
        elif code > 128:
            name = signal.Signals(code - 128).name
            how = f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        else:
            how = f"exited with code {code}"
        return how + self._first_error() + self.last_lines()

    def log(self) -> str:
        """What this serving has written so far, its last `LOG_BYTES`."""
        if not self._log_path.exists():
            return ""
        with self._log_path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._log_from, size - LOG_BYTES))
            return stream.read().decode("utf-8", "replace")

    def _first_error(self) -> str:
        """The first exception in the log, if the last lines do not hold it: engines of several processes end in long echoes."""
        found = _EXCEPTION.search(self.log())
        return "" if found is None or found[0] in self.last_lines() else f"; first error: {found[0]}"

    def last_lines(self, count: int = 8) -> str:
        lines = [line.strip() for line in self.log().splitlines() if line.strip()][-count:]
        return "; last log lines: " + " | ".join(lines) if lines else f"; it wrote nothing to {self._log_path}"

    async def stop(self) -> None:
        """TERM to the tree, KILL to what is left, closed pipes. Raises EngineError when something survives even that."""
        if self._process is None:
            return
        self._tree()
        for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            self._signal(number)
            if await self._gone_within(seconds):
                break
        else:
            raise EngineError(f"stop: processes {[p.pid for p in self._living()]} of the server survived SIGKILL")
        # A zombie may still have threads that hold its sockets: the guard ends when the kernel has buried its child.
        await self.settle(KILL_S)
        if self._process.stdin:
            self._process.stdin.close()
        self._signal_group(signal.SIGKILL)
        await self._process.wait()

    def _tree(self) -> list[psutil.Process]:
        """Descendants of the guard, remembered: one whose parent died would otherwise be lost."""
        if self._process is not None:
            try:
                found = psutil.Process(self._process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                found = []
            self._seen |= {process.pid: process for process in found}
        return self._living()

    def _living(self) -> list[psutil.Process]:
        return [process for process in self._seen.values() if _lives(process)]

    def _signal(self, number: signal.Signals) -> None:
        """To the group, and to members of the tree that left it for a session of their own."""
        for process in self._tree():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        if number != signal.SIGKILL:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    async def _gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._living() or self._group():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.05)
        return True

    def _group(self) -> list[int]:
        """Living processes of the guard's group, the guard left out: grandchildren whose parent is gone are here."""
        guard = self._process.pid if self._process else 0
        return [p.pid for p in psutil.process_iter() if p.pid != guard and _group_of(p.pid) == guard and _lives(p)]


def owns_port(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes listens on this port."""
    for pid in pids:
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
            return True
    return False


async def port_is_free(port: int, seconds: float = 5.0) -> bool:
    """Whether nothing answers on this port any more, or soon does not."""
    end = time.monotonic() + seconds
    while is_listened_on(port):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


def is_listened_on(port: int) -> bool:
    """Whether anything answers on this port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return -1
