"""The engine contract: what every engine can be asked, and the types that cross the seam.

Times are integer nanoseconds of `time.monotonic_ns()` on this machine. Null means "not reported", never zero.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.config import Arm, Run, Sampler

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete. `stop_ids` are honoured unless `ignore_eos`."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    sampler: Sampler


@dataclass(frozen=True, slots=True)
class Chunk:
    """What arrived at once. `drafted` and `accepted` are the engine's own for the one step behind this chunk.

    A prefill chunk has `drafted` null. `accepted` may exceed what `token_ids` delivers: it runs past a stop token.
    `finish` is `stop`, `length` or null while the request goes on.
    """

    arrived_ns: int
    token_ids: tuple[int, ...]
    drafted: int | None = None
    accepted: int | None = None
    finish: str | None = None
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration of the engine over its batch, when the engine tells. Durations in ns; `rows` includes padding."""

    started_ns: int
    kind: str
    requests: int
    rows: int
    context_tokens: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    total_ns: int
    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Monotone totals since launch."""

    verify_steps: int | None = None
    draftless_steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    output_tokens: int | None = None
    prefill_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, each nullable; `source` names where each was read (`"weights": "sum of parameters"`)."""

    weights_bytes: int | None = None
    drafter_weights_bytes: int | None = None
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    draft_state_bytes: int | None = None
    graph_bytes: int | None = None
    peak_bytes: int | None = None
    source: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launched:
    """A ready serving. `argv` is what ran; `versions` the engine's own; seconds are wall time."""

    pids: tuple[int, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    versions: Mapping[str, str]
    startup_s: float
    load_s: float | None
    graph_capture_s: float | None


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What would run for one arm, base and speculation apart, without running it."""

    base: tuple[str, ...]
    speculation: tuple[str, ...]
    pinned: Mapping[str, Scalar]
    missing: tuple[str, ...]
    memory: Memory


class EngineError(RuntimeError):
    """An engine that did not start, died, or answered wrongly; carries its last log lines."""


class DeadEngineError(EngineError):
    """The serving is gone: no later request can succeed. Raised by `generate` instead of one error per request."""


class Engine(Protocol):
    """One serving of one arm. Built with `Adapter(run, arm, log_path)`; `stop` is safe to call twice.

    `plan` is pure. `tokenizer_folder` is the folder with the target's tokenizer and generation config; it may build or
    download it, before anything is timed. `steps` drains the per-step truth since the last call, or
    returns null where the engine has none. Concurrent `generate` calls are independent; cancelling one frees its slot.
    """

    @classmethod
    def plan(cls, run: Run, arm: Arm) -> ArmPlan: ...

    @classmethod
    def tokenizer_folder(cls, run: Run) -> Path: ...

    def __init__(self, run: Run, arm: Arm, log_path: Path) -> None: ...

    async def launch(self) -> Launched: ...

    def generate(self, request: Request) -> AsyncIterator[Chunk]: ...

    async def counters(self) -> Counters | None: ...

    async def resolved(self) -> Mapping[str, Scalar]: ...

    async def memory(self) -> Memory: ...

    async def steps(self) -> list[Step] | None: ...

    async def stop(self) -> None: ...
