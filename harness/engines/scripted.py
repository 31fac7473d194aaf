"""A scripted engine that plays declared chunk schedules: used by tests and to measure the client itself.

It runs in the harness process, loads no model and computes nothing. An answer is a list of beats, either declared in a JSON
file (`{"streams": {name: [[t_ms, tokens, field], ...]}}`) or drawn from a seed and the prompt, so that the same prompt always
gets the same tokens. `engine.flags` says what to play and what to break; every flag is optional.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from pydantic import Field

from harness.config import Arm, Model, Run
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


class Script(Model):
    """`engine.flags` of this engine. Counts are of requests, from 1, over the life of one serving; 0 is never."""

    streams: str | None = Field(None, description="JSON file of declared streams; null draws answers from the seed")
    stream: str = "plain"
    tells_steps: bool = True
    step_ms: float = Field(1.0, ge=0)
    prefill_ms: float = Field(1.0, ge=0)
    jitter: float = Field(0.0, ge=0, le=1, description="share of a duration that is drawn per beat")
    cap: int = Field(0, ge=0, description="requests that run at once, below the rig's cap; 0 is the rig's")
    accept: float = Field(0.6, ge=0, le=1, description="probability that a draft is accepted, given the one before it")
    launch_fails: bool = False
    launch_s: float = Field(0.0, ge=0)
    stop_s: float = Field(0.0, ge=0)
    fail_every: int = Field(0, ge=0)
    empty_every: int = Field(0, ge=0)
    hang_every: int = Field(0, ge=0)
    hang_after: int = Field(0, ge=0)
    die_after: int = Field(0, ge=0)


@dataclass(frozen=True, slots=True)
class Beat:
    """A chunk to come: `at_ms` after the request, `tokens` of them, and the step behind it."""

    at_ms: float
    tokens: int
    drafted: int | None = None
    accepted: int | None = None
    reasoning: bool = False


class ScriptedEngine:
    """One serving of one arm, in this process."""

    @classmethod
    def plan(cls, run: Run, arm: Arm) -> ArmPlan:
        speculation = () if arm.draft_budget is None else (f"budget={arm.draft_budget}",)
        return ArmPlan(("scripted", *_argv(run)), speculation, {}, (), Memory())

    @classmethod
    def tokenizer_folder(cls, run: Run) -> Path:
        return Path(run.target.location)

    def __init__(self, run: Run, arm: Arm, log_path: Path) -> None:
        self._script = Script.model_validate(run.engine.flags)
        self._argv = ("scripted", *_argv(run))
        self._budget = arm.draft_budget or 0
        self._cap = self._script.cap or run.engine.max_running_requests
        self._slots = asyncio.Semaphore(self._cap)
        self._pinned = {"kv_dtype": run.engine.kv_dtype, "kv_tokens": run.engine.kv_tokens, "cuda_graphs": run.engine.graphs}
        self._log_path = log_path
        self._asked = 0
        self._running = 0
        self._steps: list[tuple[int, int, Beat]] = []  # when, requests that ran, and what; made into steps when asked for
        self._prepared: dict[str, tuple[Sequence[Beat], Iterator[int]]] = {}
        counted = "verify_steps draftless_steps drafted accepted output_tokens prefill_tokens cached_tokens preemptions"
        self._totals = dict.fromkeys(counted.split(), 0)

    async def launch(self) -> Launched:
        self._log_path.write_text("scripted engine\n", "utf-8")
        await asyncio.sleep(self._script.launch_s)
        if self._script.launch_fails:
            raise EngineError("scripted engine did not start: flag launch_fails is set\n  log: scripted engine")
        return Launched((os.getpid(),), self._argv, {}, {"scripted": "1"}, self._script.launch_s, None, None)

    async def generate(self, request: Request) -> AsyncIterator[Chunk]:
        self._asked += 1
        number, script = self._asked, self._script
        if script.die_after and number > script.die_after:
            raise DeadEngineError(f"scripted engine died after {script.die_after} requests")
        if _hits(number, script.fail_every):
            raise EngineError(f"scripted failure of request {number}")
        if _hits(number, script.hang_every) or 0 < script.hang_after < number:
            await asyncio.Event().wait()
        known = request.request_id in self._prepared
        drawn, tokens = self._prepared.pop(request.request_id) if known else self._answer(request)
        beats = [] if _hits(number, script.empty_every) else drawn
        if not beats:
            yield Chunk(time.monotonic_ns(), (), finish="stop")
        async with self._slots:
            async for chunk in self._play(request, beats, tokens):
                yield chunk

    async def _play(self, request: Request, beats: Sequence[Beat], tokens: Iterator[int]) -> AsyncIterator[Chunk]:
        self._running += 1
        self._totals["prefill_tokens"] += len(request.prompt_ids)
        start, sent = time.monotonic(), 0
        try:
            for index, beat in enumerate(beats):
                if (wait := start + beat.at_ms / 1e3 - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                sent += beat.tokens
                finish = None if index < len(beats) - 1 else "length" if sent >= request.max_tokens else "stop"
                self._count(beat)
                yield self._chunk(beat, tuple(islice(tokens, beat.tokens)), finish)
        finally:
            self._running -= 1

    async def counters(self) -> Counters | None:
        return Counters(**self._totals) if self._script.tells_steps else None

    async def resolved(self) -> Mapping[str, Scalar]:
        return {"engine": "scripted", "prefix_cache": False, "max_running_requests": self._cap, **self._pinned}

    async def memory(self) -> Memory:
        return Memory(weights_bytes=0, source={"weights": "the scripted engine has none"})

    async def steps(self) -> list[Step] | None:
        if not self._script.tells_steps:
            return None
        drained, self._steps = self._steps, []
        return [self._step(*told) for told in drained]

    async def flush(self) -> None:
        """Nothing to do: this engine has no prefix cache."""

    async def stop(self) -> None:
        await asyncio.sleep(self._script.stop_s)

    def prepare(self, requests: Sequence[Request]) -> None:
        """Draw the answers now, so that drawing them costs the client's event loop nothing while it is measured."""
        for request in requests:
            beats, tokens = self._answer(request)
            self._prepared[request.request_id] = beats, iter([next(tokens) for _ in range(sum(beat.tokens for beat in beats))])

    def _answer(self, request: Request) -> tuple[Sequence[Beat], Iterator[int]]:
        if self._script.streams is not None:
            return _declared(self._script.streams, self._script.stream), answer_tokens(request)
        return drawn_beats(request, self._budget, self._script), answer_tokens(request)

    def _chunk(self, beat: Beat, ids: tuple[int, ...], finish: str | None) -> Chunk:
        told = self._script.tells_steps
        drafted, accepted = (beat.drafted, beat.accepted) if told else (None, None)
        return Chunk(time.monotonic_ns(), ids, drafted, accepted, finish, beat.reasoning)

    def _count(self, beat: Beat) -> None:
        totals = self._totals
        totals["output_tokens"] += beat.tokens
        if beat.drafted is not None:
            totals["verify_steps" if beat.drafted else "draftless_steps"] += 1
            totals["drafted"] += beat.drafted
            totals["accepted"] += beat.accepted or 0
        self._steps.append((time.monotonic_ns(), self._running, beat))

    def _step(self, at: int, running: int, beat: Beat) -> Step:
        kind = "prefill" if beat.drafted is None else "decode"
        length, drafted, accepted = round(self._script.step_ms * 1e6), beat.drafted or 0, beat.accepted or 0
        return Step(at, kind, running, 1 + drafted, 0, 0, length, 0, length, drafted, accepted, beat.tokens)


def drawn_beats(request: Request, budget: int, script: Script) -> list[Beat]:
    """Prefill, then steps until a drawn length or the limit, cut inside an accepted run where the length falls there."""
    draw = _seeded(request, f"beats {budget}")
    length = answer_length(request)
    at, sent = script.prefill_ms * (1 + script.jitter * draw.random()), 1
    beats = [Beat(at, 1)]
    while sent < length:
        at += script.step_ms * (1 + script.jitter * draw.random())
        drafted = min(budget, draw.choice((0, budget, budget, budget)))
        accepted = next((i for i in range(drafted) if draw.random() > script.accept), drafted)
        tokens = min(accepted + 1, length - sent)
        beats.append(Beat(at, tokens, drafted, accepted))
        sent += tokens
    return beats


def answer_length(request: Request) -> int:
    """Tokens that a drawn answer holds: the same for every arm and budget, as greedy decoding would give."""
    if request.ignore_eos:
        return request.max_tokens
    return _seeded(request, "length").randint(max(1, request.max_tokens // 2), request.max_tokens)


def answer_tokens(request: Request) -> Iterator[int]:
    """The token ids of an answer, drawn from the prompt, without end."""
    draw = _seeded(request, "tokens")
    while True:
        yield draw.randrange(1000)


def _seeded(request: Request, purpose: str) -> random.Random:
    text = f"{purpose} {request.sampler.seed} {request.prompt_ids}"
    return random.Random(hashlib.sha256(text.encode()).digest())


def _hits(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


def _argv(run: Run) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in sorted(run.engine.flags.items()))


@cache
def _declared(path: str, name: str) -> tuple[Beat, ...]:
    streams = json.loads(Path(path).read_text("utf-8"))["streams"]
    if name not in streams:
        raise ValueError(f"engine.flags.stream: '{name}' is not in {path}; it has {sorted(streams)}")
    return tuple(Beat(at, tokens, reasoning=field == "reasoning_content") for at, tokens, field in streams[name])
