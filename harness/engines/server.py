"""A served engine behind the contract of `harness.engines.base`: process, HTTP, SSE and clocks live here, once.

An adapter is a class with one attribute, `dialect`, an object with the pure functions of `server_dialect.Dialect`:

    command(run, model)        base command, never sees the arm     body(run, request, served)  JSON of a streaming request
    endpoint(port, name)       address and served name              reader(run, arm, request)   events to chunks
    speculation(run, arm)      what the arm adds, budget included   counters(families)          Prometheus samples to totals
    missing(run, arm)          gaps, refused versions and methods   resolved(run, arm, found)   canonical factors
    pinned, estimate, env      for the plan                         versions, startup, memory   from info, log and metrics

    class VllmEngine(ServerEngine):
        dialect = Vllm()

Promises of this module: the command runs in a process group of its own and is gone after `stop`, grandchildren and port
included, and also when this process dies; readiness fails at once with the last log lines when the child dies; a server is
ours only if one of our processes owns the port and the served name is the nonce of this launch. With `engine.url` nothing is
launched: the server behind the URL is measured as it is, and nothing about its process is known.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from harness import probe
from harness.config import Arm, Run
from harness.engines.base import (
    ArmPlan,
    Chunk,
    Counters,
    DeadEngineError,
    EngineError,
    Launched,
    Memory,
    Request,
    Scalar,
    Step,
)
from harness.engines.own_flags import check_own_flags
from harness.engines.server_answer import Answer
from harness.engines.server_checks import simulated_acceptance
from harness.engines.server_dialect import Dialect, Found, target_folder
from harness.engines.server_events import chunks_of, json_object, short
from harness.engines.server_gpu import GpuMemory
from harness.engines.server_http import Client
from harness.engines.server_metrics import parse_metrics
from harness.engines.server_process import ServerProcess, free_port, port_is_free
from harness.engines.server_ready import INFO_TIMEOUT_S, wait_until_ready


class ServerEngine:
    """One serving of one arm over HTTP. Adapters set `dialect`, or override `speak` where it depends on the rig's flags."""

    dialect: Dialect

    @classmethod
    def speak(cls, run: Run) -> Dialect:
        return cls.dialect

    @classmethod
    def plan(cls, run: Run, arm: Arm) -> ArmPlan:
        dialect = cls.speak(run)
        base = (*dialect.command(run, dialect.model(run, build=False)), *dialect.endpoint(0, "<name>"))
        check_own_flags(run, arm, base)
        speculation = tuple(dialect.speculation(run, arm))
        env = {**dialect.env(run), **run.engine.env}
        missing = (*dialect.missing(run, arm), *simulated_acceptance(run, arm, (*base, *speculation), env))
        return ArmPlan(base, speculation, dialect.pinned(run), missing, dialect.estimate(run, arm), env)

    @classmethod
    def tokenizer_folder(cls, run: Run) -> Path:
        folder = target_folder(run, build=True)
        assert folder is not None
        return folder

    def __init__(self, run: Run, arm: Arm, log_path: Path) -> None:
        self._run, self._arm, self._log_path = run, arm, log_path
        self.dialect = self.speak(run)
        self._process: ServerProcess | None = None
        self._client = Client("", {})
        self._argv: tuple[str, ...] = ()
        self._env = {**self.dialect.env(run), **run.engine.env}
        self._found = Found()
        self._port: int | None = None
        self._served = ""
        self._gpu_memory = GpuMemory([])

    async def launch(self) -> Launched:
        try:
            startup_s = await (self._attach(url) if (url := self._url) else self._start())
            self._found = await self._look()
        except BaseException as error:
            try:
                await self.stop()
            except EngineError as left_over:
                error.add_note(str(left_over))
            raise
        told = self.dialect.startup(self._found)
        return Launched(
            pids=self._process.pids if self._process else (),
            argv=self._argv,
            env=self._env,
            versions=self.dialect.versions(self._found),
            startup_s=startup_s,
            load_s=told.load_s,
            graph_capture_s=told.graph_capture_s,
            needs_probe=True,
            problems=tuple(self.problems()),
        )

    async def generate(self, request: Request) -> AsyncIterator[Chunk]:
        answer = Answer(request)
        body = self.dialect.body(self._run, request, self._served)
        try:
            async with self._client.request("POST", self.dialect.generate, body) as response:
                sent_ns: int | None = response.sent_ns
                async for chunk in chunks_of(response, self.dialect.reader(self._run, self._arm, request)):
                    for taken in answer.take(chunk):
                        yield taken if sent_ns is None else replace(taken, sent_ns=sent_ns)
                        sent_ns = None
                    if answer.done:
                        return
                for taken in answer.end():
                    yield taken if sent_ns is None else replace(taken, sent_ns=sent_ns)
        except OSError as error:
            raise await self._lost(error) from None

    async def counters(self) -> Counters | None:
        if self.dialect.metrics is None:
            return None
        status, text = await self._get(self.dialect.metrics)
        return self.dialect.counters(parse_metrics(text.decode("utf-8", "replace"))) if status == 200 else None

    async def resolved(self) -> Mapping[str, Scalar]:
        return {"engine": self.dialect.name, **self.dialect.resolved(self._run, self._arm, self._found)}

    async def memory(self) -> Memory:
        return self.dialect.memory(self._run, self._arm, await self._look())

    async def steps(self) -> list[Step] | None:
        return None

    def problems(self) -> list[str]:
        """Why the server, by its own words, is not the arm that was asked for. Adapters that can tell override it."""
        return []

    async def flush(self) -> None:
        """Empty the prefix cache where the rig has it on; raises EngineError when the engine refuses."""
        if self._run.engine.prefix_cache:
            await self._flush()

    async def _flush(self) -> None:
        if self.dialect.flush is None:
            return
        method, path = self.dialect.flush
        status, text = await self._get(path, method, 60.0)
        if status != 200 or b'"success":false' in text.replace(b" ", b""):
            raise EngineError(f"{self.dialect.name}: {method} {path} did not flush the prefix cache: {status} {short(text)}")

    async def stop(self) -> None:
        if self._process is None:
            return
        await self._process.stop()
        if self._port is not None and not await port_is_free(self._port):
            raise EngineError(f"{self.dialect.name}: port {self._port} is still listened on after the server was stopped")
        if held := await self._gpu_memory.not_returned():
            raise EngineError(f"{self.dialect.name}: after the server was stopped {', '.join(held)}")

    async def _attach(self, url: str) -> float:
        """A server that someone else runs. Its name and process prove nothing; whether it answers is all that is checked."""
        started = time.monotonic()
        self._argv = ("attach", url)
        self._client = Client(url, self._headers())
        names = await self._names()
        if not names:
            raise EngineError(
                f"{self.dialect.name}: {url}{self.dialect.identity} lists no model; is the URL the server's base?"
            )
        asked = self._run.engine.flags.get("model")
        if asked is not None and asked not in names:
            raise EngineError(f"{self.dialect.name}: engine.flags.model '{asked}' is none of the served models {names}")
        self._served = str(asked or names[0])
        return time.monotonic() - started

    async def _start(self) -> float:
        """Launch and wait; the seconds from the start of the process, for a model may have to be fetched or unpacked before."""
        dialect = self.dialect
        await self._prepare()
        port, self._served = free_port(), f"{self._run.name}-{secrets.token_hex(4)}"
        base = dialect.command(self._run, dialect.model(self._run, build=True))
        self._argv = (*base, *dialect.endpoint(port, self._served), *dialect.speculation(self._run, self._arm))
        self._client = Client(f"http://127.0.0.1:{port}", self._headers())
        self._gpu_memory = GpuMemory(probe.gpus() if self._run.machine.kind == "cuda" else [])
        self._process = ServerProcess(self._argv, self._env, self._log_path)
        started = time.monotonic()
        await self._process.start()
        await wait_until_ready(self._process, port, dialect.name, lambda: self._answers(dialect.health))
        seconds, self._port = time.monotonic() - started, port  # ours from here on, and to be free after the end
        if self._served not in (names := await self._names()):
            told = f"{dialect.identity} names {names}, launched as {self._served}"
            raise EngineError(f"{dialect.name}: {told}: this is another server")
        return seconds

    async def _prepare(self) -> None:
        """Make what the command names and what may not be there yet."""

    async def _names(self) -> list[str]:
        status, text = await self._get(self.dialect.identity)
        return [str(model.get("id")) for model in json_object(text).get("data", [])] if status == 200 else []

    async def _answers(self, path: str) -> bool:
        try:
            return (await self._client.get(path, timeout_s=5.0))[0] == 200
        except (OSError, ValueError):
            return False

    async def _look(self) -> Found:
        info = {}
        for path in self.dialect.info:
            with contextlib.suppress(EngineError, ValueError):
                status, text = await self._get(path, timeout_s=INFO_TIMEOUT_S)
                if status == 200:
                    info[path] = json.loads(text)
        metrics = await self._get(self.dialect.metrics) if self.dialect.metrics else (0, b"")
        families = parse_metrics(metrics[1].decode("utf-8", "replace")) if metrics[0] == 200 else {}
        return Found(info, families, self._process.log() if self._process else "", self._argv, self._env)

    async def _get(self, path: str, method: str = "GET", timeout_s: float = 10.0) -> tuple[int, bytes]:
        try:
            return await self._client.get(path, method, timeout_s=timeout_s)
        except OSError as error:
            raise await self._lost(error) from None

    async def _lost(self, error: OSError) -> EngineError:
        """Why a connection failed: the server is gone, or it is there and did not answer."""
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        if self._process is None:
            return EngineError(f"{self.dialect.name}: {what}")
        await self._process.settle()
        if self._process.alive:
            return EngineError(f"{self.dialect.name}: {what}")
        return DeadEngineError(f"{self.dialect.name} {self._process.ending()}")

    @property
    def _url(self) -> str | None:
        """Where to attach: the arm's own server (`options.url`), else the rig's; null launches one."""
        url = self._arm.options.get("url") or self._run.engine.url
        return None if url is None else str(url)

    def _headers(self) -> dict[str, str]:
        """Headers of every request, for a server that wants a key."""
        return {}
