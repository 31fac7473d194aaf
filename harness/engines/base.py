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
UNKNOWN_ID = -1


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
class Told:
    """What an engine tells about a whole request at its end; null is "not reported".

    `steps` is (drafted, accepted) of every decode step in order, draftless ones included; give it only when they are all
    there. The totals are for engines that tell no more than that: steps with a draft, tokens drafted, and tokens accepted,
    those past a stop token or the limit included.
    """

    cached_tokens: int | None = None
    steps: tuple[tuple[int, int], ...] | None = None
    steps_with_draft: int | None = None
    drafted: int | None = None
    accepted: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What arrived at once. `drafted` and `accepted` are the engine's own for the one step behind this chunk.

    A prefill chunk has `drafted` null. `accepted` may exceed what `token_ids` delivers: it runs past a stop token.
    An id is `UNKNOWN_ID` where the engine tells that there is a token but not which. `finish` is `stop`, `length` or null
    while the request goes on. `told` comes with the last chunk, from engines that tell about a request at its end.
    `sent_ns` comes with the first, from engines behind a connection: when the request left, the connection being made.
    """

    arrived_ns: int
    token_ids: tuple[int, ...]
    drafted: int | None = None
    accepted: int | None = None
    finish: str | None = None
    reasoning: bool = False
    told: Told | None = None
    sent_ns: int | None = None


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
    """Monotone totals since launch. `prefill_tokens` excludes `cached_tokens`; `requests` counts the finished ones,
    `output_tokens` those of prefill too. What contradicts the requests that were served is told as `acceptance_sources`.
    """

    requests: int | None = None
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
    """Bytes, each nullable; `source` names where each was read (`"weights": "sum of parameters"`).

    `recurrent_state_bytes` is what the target's recurrent layers keep in every arm; what a drafter adds is `draft_state_bytes`.
    `kv_room_tokens` is for plans: KV tokens for which there is room beside the rest, negative when even that is too much.
    """

    weights_bytes: int | None = None
    drafter_weights_bytes: int | None = None
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    draft_state_bytes: int | None = None
    recurrent_state_bytes: int | None = None
    graph_bytes: int | None = None
    peak_bytes: int | None = None
    kv_room_tokens: int | None = None
    source: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launched:
    """A ready serving. `argv` is what ran; `versions` the engine's own; seconds are wall time.

    `needs_probe`: the engine is not ours, so that its drafter must be seen at work before a window counts. `problems` are
    reasons, told by the engine itself, why it is not what was asked for: they make the serving invalid.
    """

    pids: tuple[int, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    versions: Mapping[str, str]
    startup_s: float
    load_s: float | None
    graph_capture_s: float | None
    needs_probe: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What would run for one arm, base and speculation apart, without running it.

    `env` is what the engine adds to the environment, equal for every arm.
    """

    base: tuple[str, ...]
    speculation: tuple[str, ...]
    pinned: Mapping[str, Scalar]
    missing: tuple[str, ...]
    memory: Memory
    env: Mapping[str, str] = field(default_factory=dict)


class EngineError(RuntimeError):
    """An engine that did not start, died, or answered wrongly; carries its last log lines."""


class ArmError(ValueError):
    """An arm that is wrong whatever the machine: `KEY: what; what to do`, KEY a key of the arm, such as `options.min_n`."""


class DeadEngineError(EngineError):
    """The serving is gone: no later request can succeed. Raised by `generate` instead of one error per request."""


class RefusedError(DeadEngineError):
    """An engine that says why it will never serve what the rig asks for: the same command would end the same way."""


class Engine(Protocol):
    """One serving of one arm. Built with `Adapter(run, arm, log_path)`; `stop` is safe to call twice.

    `plan` is pure, and raises ArmError for an option of the arm that its drafter or this engine does not have.
    `tokenizer_folder` is the folder with the target's tokenizer and generation config; it may build or download it, before
    anything is timed. `steps` drains the per-step truth since the last call, or returns null where the engine has none.
    `flush` forgets cached prompts and is called before every window. Concurrent `generate` calls are independent; cancelling
    one frees its slot.
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

    async def flush(self) -> None: ...

    async def stop(self) -> None: ...
