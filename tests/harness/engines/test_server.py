"""The process behind a served engine: ready or refused, ours or not, gone without a trace. Real processes, no real engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.compose import compose_run
from harness.config import Run
from harness.engines import server, server_process, server_ready
from harness.engines.base import DeadEngineError, EngineError, Launched, Request
from harness.engines.openai import OpenAIEngine
from harness.engines.server_gpu import GpuMemory
from harness.engines.server_metrics import parse_metrics, total
from harness.engines.server_process import ServerProcess, free_port, is_listened_on, owns_port
from harness.load import run_window
from harness.processes import is_alive

SERVER = Path(__file__).parents[1] / "misbehaving_server.py"
RUN = compose_run("cpu_smollm2", ["engine=openai", "engine.flags.health=/health"]).run


def launching(*, prefix_cache: bool = False, endpoint: str | None = None, **play: Any) -> Run:
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(SERVER))} --play {shlex.quote(json.dumps(play))}"
    words = "--port {port} --served-model-name {name}" if endpoint is None else endpoint
    flags = {**RUN.engine.flags, "command": command, "endpoint": words, "flush": "/reset_prefix_cache"}
    return RUN.model_copy(update={"engine": RUN.engine.model_copy(update={"flags": flags, "prefix_cache": prefix_cache})})


def with_engine(run: Run, log: Path, do: Callable[[OpenAIEngine, Launched], Awaitable[None]]) -> None:
    async def go() -> None:
        engine = OpenAIEngine(run, run.arms["plain"], log)
        launched = await engine.launch()
        try:
            await do(engine, launched)
        finally:
            await engine.stop()
            await engine.stop()

    asyncio.run(go())


def asked(name: str) -> Request:
    return Request(name, (1, 2, 3), 64, (), False, RUN.sampler)


def test_a_launched_server_is_ours_and_leaves_nothing_behind(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    async def look(engine: OpenAIEngine, launched: Launched) -> None:
        port = int(launched.argv[launched.argv.index("--port") + 1])
        grandchild = int(re.search(r"grandchild (\d+)", (tmp_path / "log").read_text())[1])
        window = await run_window(engine, [asked("a"), asked("b")], timeout_s=5, concurrency=2)
        assert [result.error for result in window.results] == [None, None]
        assert owns_port(launched.pids, port)
        assert os.getpgid(launched.pids[0]) not in (os.getpgid(0), os.getpgid(grandchild))
        assert launched.needs_probe
        assert 0 < launched.startup_s < 30
        seen.update(port=port, pids=[*launched.pids, grandchild])

    with_engine(launching(grandchild=True), tmp_path / "log", look)
    assert [pid for pid in seen["pids"] if is_alive(pid)] == []
    assert not is_listened_on(seen["port"])


def test_a_child_that_dies_fails_the_launch_at_once_with_its_last_lines(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(
        EngineError, match=r"exited with code 1; last log lines: loading weights \| RuntimeError: no kernel image"
    ):
        with_engine(launching(fault="die_at_start"), tmp_path / "log", _nothing)
    assert time.monotonic() - started < 20


def test_a_slow_start_is_waited_for_and_an_endless_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(launching(start_s=0.7), tmp_path / "log", _nothing)
    monkeypatch.setattr(server_ready, "READY_TIMEOUT_S", 3.0)
    with pytest.raises(EngineError, match=r"not ready after 3 s; last log lines: loading weights"):
        with_engine(launching(fault="never_ready"), tmp_path / "log2", _nothing)
    assert _children_of_servers() == []


def test_a_port_that_another_process_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launched server never listens; something else on its port says that it is ready."""
    port = free_port()
    words = ["--port", str(port), "--served-model-name", "x"]
    monkeypatch.setattr(server, "free_port", lambda: port)
    foreign = subprocess.Popen([sys.executable, str(SERVER), *words], stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: is_listened_on(port))
        with pytest.raises(EngineError, match=rf"port {port} is answered by a process that this launch did not start"):
            with_engine(launching(fault="no_port"), tmp_path / "log", _nothing)
    finally:
        foreign.kill()
        foreign.wait()
    assert _children_of_servers() == []


def test_a_server_with_another_name_is_another_server(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"names \['qwen'\], launched as cpu_smollm2-[0-9a-f]{8}: this is another server"):
        with_engine(launching(name="qwen"), tmp_path / "log", _nothing)


def test_a_server_that_dies_in_a_window_ends_it(tmp_path: Path) -> None:
    async def kill_it(engine: OpenAIEngine, launched: Launched) -> None:
        with pytest.raises(DeadEngineError, match="exited with code 3; last log lines: loading weights"):
            await run_window(engine, [asked(str(i)) for i in range(8)], timeout_s=5, concurrency=2)

    with_engine(launching(fault="die"), tmp_path / "log", kill_it)


def test_a_server_that_is_killed_says_by_what(tmp_path: Path) -> None:
    async def kill_it(engine: OpenAIEngine, launched: Launched) -> None:
        os.kill(launched.pids[0], signal.SIGKILL)
        with pytest.raises(DeadEngineError, match=r"was killed by SIGKILL \(out of memory\?\)"):
            async for _ in engine.generate(asked("a")):
                pass

    with_engine(launching(), tmp_path / "log", kill_it)


def test_the_prefix_cache_is_flushed_where_the_rig_has_one(tmp_path: Path) -> None:
    async def flush(engine: OpenAIEngine, launched: Launched) -> None:
        await engine.flush()

    with_engine(launching(prefix_cache=True), tmp_path / "log", flush)
    with_engine(launching(prefix_cache=False, fault="no_flush"), tmp_path / "log", flush)
    with pytest.raises(EngineError, match="did not flush the prefix cache"):
        with_engine(launching(prefix_cache=True, fault="no_flush"), tmp_path / "log", flush)


def test_no_server_outlives_a_harness_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from harness.engines.server_process import ServerProcess
async def main():
    process = ServerProcess([sys.executable, "-c", "import time; time.sleep(600)"], {{}}, Path({str(tmp_path / "log")!r}))
    await process.start()
    while not process.pids: await asyncio.sleep(0.01)
    print(*process.pids, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    harness = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    pids = [int(pid) for pid in harness.stdout.readline().split()]
    assert pids
    harness.kill()
    harness.wait()
    harness.stdout.close()
    _wait(lambda: not any(map(is_alive, pids)))


def test_what_survives_even_sigkill_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        process = ServerProcess([sys.executable, "-c", "import time; time.sleep(600)"], {}, tmp_path / "log")
        await process.start()
        while not process.pids:
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patched:
            patched.setattr(server_process, "TERM_S", 0.05)
            patched.setattr(server_process, "KILL_S", 0.05)
            patched.setattr(server_process, "_lives", lambda process: True)
            with pytest.raises(EngineError, match="survived SIGKILL"):
                await process.stop()
        await process.stop()

    asyncio.run(go())


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    run = launching()
    flags = {**run.engine.flags, "command": "no-such-server --model x"}
    run = run.model_copy(update={"engine": run.engine.model_copy(update={"flags": flags})})
    assert any("'no-such-server' is no program" in gap for gap in OpenAIEngine.plan(run, run.arms["plain"]).missing)
    with pytest.raises(EngineError, match="No such file or directory: 'no-such-server'"):
        with_engine(run, tmp_path / "log", _nothing)


class Gpu:
    """A GPU whose used memory follows a list; the last value stays."""

    index = 0

    def __init__(self, *used: int | None) -> None:
        self._used = list(used)

    def used_bytes(self) -> int | None:
        return self._used.pop(0) if len(self._used) > 1 else self._used[0]


def test_gpu_memory_that_is_not_given_back_is_told() -> None:
    def held(*used: int | None, wait_s: float = 0.0) -> list[str]:
        return asyncio.run(GpuMemory([Gpu(*used)]).not_returned(wait_s))

    assert held(1 << 30, 1 << 30) == []
    assert held(1 << 30, 1100 << 20) == []  # a desktop moves
    assert held(1 << 30, 20 << 30) == ["gpu0 has 19456 MiB more in use than before"]
    assert held(1 << 30, 20 << 30, 20 << 30, 1 << 30, wait_s=5.0) == []  # the driver took a moment
    assert held(None) == []


def test_metrics_are_summed_over_labels_and_absent_ones_are_null() -> None:
    text = '# TYPE a counter\na{rank="0",name="x\\"y"} 3\na{rank="1"} 4e0\nb NaN\nc_total 7 1700000000\n'
    families = parse_metrics(text)
    assert families["a"][0].labels == {"rank": "0", "name": 'x\\"y'}
    assert (total(families, "a"), total(families, "b"), total(families, "c_total"), total(families, "d")) == (7, 0, 7, None)


async def _nothing(engine: OpenAIEngine, launched: Launched) -> None:
    return None


def _children_of_servers() -> list[str]:
    """Servers of these tests that still run."""
    mine = psutil.Process().children(recursive=True)
    return [" ".join(p.cmdline()) for p in mine if p.status() != psutil.STATUS_ZOMBIE and str(SERVER) in " ".join(p.cmdline())]


def _wait(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.05)
