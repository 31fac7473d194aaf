"""The in-repository engine: one `drafters.worker` process per serving, spoken to in JSON lines over its own pipes.

The worker is a process of its own so that a serving is a fresh boot, the load client keeps an event loop to itself, and memory
can be told apart. It lives in its own process group and ends when its stdin closes, whatever happens to this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drafters.serving import load_dotted
from harness.config import Arm, Run
from harness.engines.base import (
    ArmError,
    ArmPlan,
    Chunk,
    Counters,
    DeadEngineError,
    EngineError,
    Launched,
    Memory,
    RefusedError,
    Request,
    Scalar,
    Step,
)
from harness.engines.chunk_stream import ChunkStream
from harness.engines.reference_files import outlined, resolved_target, served_memory, target_folder, target_problem
from harness.engines.reference_plan import (
    command,
    estimate,
    missing,
    no_drafter,
    pinned,
    speculation,
    takes_no_flags,
    without_drafter,
)
from harness.inside import Replay, WidthTime

READY_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 5.0
LINE_LIMIT = 64 << 20
_REFUSALS = ("ValueError", "FileNotFoundError")  # what a worker raises for a rig that it will not serve
_UNCAUGHT = 1  # exit status of a Python process that an exception ended
MEMORY_SOURCE = {
    "weights_bytes": "sum of the target's parameters, packed copies included",
    "drafter_weights_bytes": "sum of the drafter's parameters",
    "kv_bytes": "size of the allocated cache",
    "kv_tokens": "slots times context",
    "draft_state_bytes": "the drafter's own count",
    "graph_bytes": "allocator, before and after capture",
    "peak_bytes": "process high-water mark (CPU), since it was ready where Linux lets it be reset; allocator peak (CUDA)",
}


class ReferenceEngine:
    """The engine protocol of `harness.engines.base` over a worker."""

    @classmethod
    def plan(cls, run: Run, arm: Arm) -> ArmPlan:
        check_arm(arm)
        takes_no_flags(arm)
        folder = target_folder(run, build=False)
        drafter = outlined(run, arm, folder)
        return ArmPlan(
            base=(sys.executable, *command(run, str(folder or f"<{run.target.name}>"))),
            speculation=tuple(speculation(arm)),
            pinned=pinned(run),
            missing=(*missing(run, target_problem(run), _can_capture(run)), *without_drafter(arm)),
            memory=estimate(run, folder, served_memory(run, folder), drafter.memory() if drafter else no_drafter(arm)),
        )

    @classmethod
    def tokenizer_folder(cls, run: Run) -> Path:
        return resolved_target(run)

    def __init__(self, run: Run, arm: Arm, log_path: Path) -> None:
        self._run, self._arm, self._log_path = run, arm, log_path
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._streams: dict[str, ChunkStream] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0

    async def launch(self) -> Launched:
        argv = [sys.executable, *command(self._run, str(resolved_target(self._run))), *speculation(self._arm)]
        started = time.monotonic()
        self._ready = asyncio.get_running_loop().create_future()
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_LIMIT,
                start_new_session=True,
                env={**os.environ, **self._run.engine.env},
            )
        self._reader = asyncio.create_task(self._read())
        try:
            facts = await asyncio.wait_for(self._ready, READY_TIMEOUT_S)
        except TimeoutError:
            await self.stop()
            raise EngineError(f"reference engine: not ready after {READY_TIMEOUT_S:.0f} s{self._last_lines()}") from None
        return Launched(
            pids=(self._process.pid,),
            argv=tuple(argv),
            env=self._run.engine.env,
            versions=facts["versions"],
            startup_s=time.monotonic() - started,
            load_s=facts["load_s"],
            graph_capture_s=facts["graph_capture_s"],
        )

    async def generate(self, request: Request) -> AsyncIterator[Chunk]:
        stream = self._streams[request.request_id] = ChunkStream()
        try:
            self._send(_generate_message(request))
            while True:
                for chunk in await stream.arrived():
                    if isinstance(chunk, EngineError):
                        raise chunk
                    yield chunk
                    if chunk.finish:
                        return
        finally:
            # Still there means that it did not finish: the caller gave up, and the slot must come free.
            if self._streams.pop(request.request_id, None) and self._alive:
                self._send({"op": "cancel", "id": request.request_id})

    async def counters(self) -> Counters | None:
        return Counters(**await self._ask("counters"), cached_tokens=0, preemptions=0)

    async def resolved(self) -> Mapping[str, Scalar]:
        told: dict[str, Scalar] = await self._ask("resolved")
        return {"engine": "reference", **told}

    async def memory(self) -> Memory:
        return Memory(**await self._ask("memory"), source=MEMORY_SOURCE)

    async def steps(self) -> list[Step] | None:
        return [Step(*fields) for fields in await self._ask("steps")]

    async def widths(self, texts: Sequence[Sequence[int]], widths: Sequence[int], rounds: int) -> list[WidthTime]:
        told = await self._ask("widths", texts=[list(text) for text in texts], widths=list(widths), rounds=rounds)
        return [WidthTime(*fields) for fields in told]

    async def replay(self, prompt_ids: Sequence[int], token_ids: Sequence[int], max_tokens: int, draft: bool) -> Replay:
        told = await self._ask("replay", prompt=list(prompt_ids), answer=list(token_ids), max_tokens=max_tokens, draft=draft)
        counts = told["acceptance"] or dict.fromkeys(("steps_with_draft", "steps_without_draft", "drafted", "accepted"))
        return Replay(tuple(told["choices"]["deficits"]), tuple(told["choices"]["gaps"]), **counts)

    async def flush(self) -> None:
        """Nothing to do: this engine has no prefix cache."""

    async def stop(self) -> None:
        """Close stdin, which ends the worker; then signal its whole group until nothing of it is left."""
        process = self._process
        if process is None:
            return
        if process.stdin and not process.stdin.is_closing():
            process.stdin.close()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
                break
            except TimeoutError:
                _signal_group(process.pid, sign)
        await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
        if self._reader:
            await self._reader

    @property
    def _alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _read(self) -> None:
        """Stamp each line as it arrives, before it is parsed, and hand it on. Ends when the worker's stdout closes."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._dispatch(time.monotonic_ns(), json.loads(line))
        await self._process.wait()
        self._fail_all(self._death(self._process.returncode))

    def _death(self, code: int | None) -> DeadEngineError:
        """What the worker says is wrong with what it was given, else how it ended and its last exception or lines.

        Only before it is ready is that a refusal: what is raised later is a fault of ours, and may not come again.
        """
        said = last_exception(self._log()) if code == _UNCAUGHT else None  # one that was killed may have logged a caught one
        was_ready = self._ready is not None and self._ready.done()
        if said and said[0] in _REFUSALS and not was_ready:
            return RefusedError(f"reference engine: {said[1]}")
        told = f"; {': '.join(said)}; traceback in {self._log_path}" if said else self._last_lines()
        return DeadEngineError(f"reference engine: {_ending(code)}{told}")

    def _dispatch(self, arrived_ns: int, message: dict[str, Any]) -> None:
        if "tokens" in message:
            for request_id, token_ids, drafted, accepted, finish in message["tokens"]:
                if stream := self._streams.get(request_id):
                    stream.put(Chunk(arrived_ns, tuple(token_ids), drafted, accepted, finish))
                if finish:
                    self._streams.pop(request_id, None)
        elif "answer" in message:
            self._answers.pop(message["answer"]).set_result(message["value"])
        elif "failed" in message:
            if stream := self._streams.pop(message["failed"], None):
                stream.put(EngineError(message["error"]))
        elif self._ready:
            self._ready.set_result(message["ready"])

    def _fail_all(self, error: EngineError) -> None:
        for stream in self._streams.values():
            stream.put(error)
        for waiting in [self._ready, *self._answers.values()]:
            if waiting and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # marks it retrieved: nobody may be waiting any more

    async def _ask(self, what: str, **given: Any) -> Any:
        self._asked += 1
        answer = self._answers[self._asked] = asyncio.get_running_loop().create_future()
        self._send({"op": "ask", "n": self._asked, "what": what, "with": given})
        return await answer

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self._alive or self._process is None or self._process.stdin is None:
            raise DeadEngineError(f"reference engine: not running{self._last_lines()}")
        self._process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _last_lines(self, count: int = 6) -> str:
        lines = self._log()[-count:]
        return "; last log lines: " + " | ".join(line.strip() for line in lines) if lines else f"; {self._log_path} is empty"

    def _log(self) -> list[str]:
        """Lines of this serving's log; none where it wrote nothing."""
        if not self._log_path.exists():
            return []
        return self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()


def _generate_message(request: Request) -> dict[str, Any]:
    sampler = request.sampler
    return {
        "op": "generate",
        "id": request.request_id,
        "prompt": request.prompt_ids,
        "max_tokens": request.max_tokens,
        "stop_ids": () if request.ignore_eos else request.stop_ids,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k,
        "seed": sampler.seed,
    }


def last_exception(log: Sequence[str]) -> tuple[str, str] | None:
    """(type, message) of the traceback that a log ends in, whose frames are for whoever reads the log; null without one."""
    starts = [i for i, line in enumerate(log) if line.startswith("Traceback (most recent call last)")]
    ends = [i for i in range(starts[-1] + 1, len(log)) if not log[i].startswith(" ")] if starts else []
    if not ends:
        return None
    kind, _, message = log[ends[0]].partition(": ")
    return kind, " ".join(" ".join([message, *log[ends[0] + 1 :]]).split()) or kind


def _ending(code: int | None) -> str:
    """How a worker ended, in words. SIGKILL is what the kernel sends when memory runs out."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def _signal_group(pid: int, sign: signal.Signals) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(pid, sign)
    except ProcessLookupError:
        return


def check_arm(arm: Arm) -> None:
    """Raises ArmError for a path that is no drafter, and for what the drafter itself says of the options. Reads no files."""
    if arm.drafter is None:
        if arm.options:
            raise ArmError(f"options.{min(arm.options)}: an arm without a drafter has no options; remove it")
        return
    try:
        drafter = load_dotted(arm.drafter)
    except (ImportError, AttributeError):
        return  # told by the plan, with what else is missing
    if not isinstance(drafter, type) or not hasattr(drafter, "propose"):
        raise ArmError(f"drafter: '{arm.drafter}' is no drafter class; arm files name one, such as rigs/arm/ngram.yaml")
    try:
        getattr(drafter, "check_options", lambda options: None)(arm.options)
    except ValueError as error:
        raise ArmError(str(error)) from None


def _can_capture(run: Run) -> bool:
    try:
        return hasattr(load_dotted(run.target.implementation), "capture")
    except (ImportError, AttributeError):
        return False  # the plan tells that there is no such implementation
