"""The windows of one serving: what is sent for a cell, warm-up first, and the rows that come of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.asked import Asked, Prompts
from harness.config import Arm, PromptSet, Run, Sampler
from harness.engines.base import DeadEngineError, Engine, EngineError, Request
from harness.ledger import ledger, request_row
from harness.load import Result, run_window
from harness.schedule import Cell
from harness.validity import is_stationary
from harness.workloads import set_label


@dataclass(frozen=True, slots=True)
class Measured:
    """One window: rows of its requests and steps, event-loop lags in ns, and ledgers that contradict themselves."""

    rows: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    lag_samples: tuple[int, ...] = ()
    contradictions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What was sent before a cell. `settled` is null where nothing was: an earlier cell had warmed this level up."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    batches: int = 0
    settled: bool | None = None


class Windows:
    """Sends to one serving. `keys` name it in every row; `is_alive` tells whether its processes still are."""

    def __init__(
        self,
        run: Run,
        arm: Arm,
        engine: Engine,
        prompts: Prompts,
        keys: Mapping[str, Any],
        block: int,
        is_alive: Callable[[], bool],
    ) -> None:
        self._run, self._arm, self._engine, self._prompts = run, arm, engine, prompts
        self._keys, self._block, self._is_alive = keys, block, is_alive
        self._warmed: set[tuple[int, int | None]] = set()

    def is_warm(self, cell: Cell) -> bool:
        """Whether this concurrency and depth need no warm-up: they had theirs, or the protocol has none."""
        return (cell.concurrency, cell.prompt_set.depth) in self._warmed or self._run.protocol.warmup_prompts == 0

    async def warm_up(self, cell: Cell) -> WarmUp:
        """Batches of disjoint prompts until the time per step has settled: two at least, `protocol.warmup_batches` at most.

        A batch is `protocol.warmup_prompts`, or one full concurrency where that is more. Rows belong to the cell that follows.
        """
        if self.is_warm(cell):
            return WarmUp()
        self._warmed.add((cell.concurrency, cell.prompt_set.depth))
        size, most = max(self._run.protocol.warmup_prompts, cell.concurrency), self._run.protocol.warmup_batches
        prompts = self._prompts.warmup(cell.prompt_set, size * most)
        batches: list[Measured] = []
        while len(batches) < most and not self._settled(batches):
            asked = prompts[len(batches) * size :][:size]
            await self._engine.flush()
            batches.append(await self._window(cell, "warmup", asked, f"{cell.cell_id[:16]}-w{len(batches)}"))
        rows = [row for batch in batches for row in batch.rows]
        return WarmUp(rows, [step for batch in batches for step in batch.steps], len(batches), self._settled(batches))

    async def prepare(self, cell: Cell, asked: Sequence[Asked]) -> None:
        """Bring the prefix cache into the state that the set declares: empty, or with the beginning of every prompt in it.

        Before the counters of a window are read: nothing of it is in a table. Raises EngineError when a priming request fails.
        """
        await self._engine.flush()
        if (cached := cell.prompt_set.cached) is None:
            return
        begun = [Asked(a.prompt_id, a.content_class, a.prompt_ids[:cached], a.prompt_hash) for a in asked]
        requests = [self._request(cell.prompt_set, prompt, f"{cell.cell_id[:16]}-p{i}") for i, prompt in enumerate(begun)]
        short = [replace(request, max_tokens=1, ignore_eos=True) for request in requests]
        window = await run_window(self._engine, short, timeout_s=self._run.protocol.request_timeout_s, concurrency=1)
        if failed := next((result.error for result in window.results if result.error), None):
            raise EngineError(f"prefix cache: a request that should fill it failed: {failed}")

    async def measure(self, cell: Cell, asked: Sequence[Asked]) -> Measured:
        """The measured window. Raises DeadEngineError when the engine went meanwhile: a cell with its failures is no cell."""
        return await self._window(cell, "measured", asked, f"{cell.cell_id[:16]}-m")

    def keys_of(self, cell: Cell, content_class: str) -> dict[str, Any]:
        """What names this cell in every table."""
        return {
            **self._keys,
            "cell_id": cell.cell_id,
            "prompt_set": set_label(cell.prompt_set),
            "content_class": content_class,
            "concurrency": cell.concurrency,
        }

    def _settled(self, batches: Sequence[Measured]) -> bool:
        return is_stationary([batch.rows for batch in batches], self._arm.draft_budget, self._run.protocol.settled_within)

    async def _window(self, cell: Cell, phase: str, asked: Sequence[Asked], prefix: str) -> Measured:
        run, protocol = self._run, self._run.protocol
        requests = [self._request(cell.prompt_set, prompt, f"{prefix}-{i}") for i, prompt in enumerate(asked)]
        is_open = phase == "measured" and protocol.load == "open"
        await self._engine.steps()
        window = await run_window(
            self._engine,
            requests,
            timeout_s=protocol.request_timeout_s,
            concurrency=None if is_open else cell.concurrency,
            rate_rps=protocol.rate_rps if is_open else None,
            seed=run.workload.seed,
        )
        told = await self._engine.steps()
        if any(result.error for result in window.results) and not self._is_alive():
            raise DeadEngineError("the engine ended while it was measured")
        keys = {**self.keys_of(cell, asked[0].content_class), "phase": phase}
        made = Measured([], [{**keys, **asdict(step)} for step in told or ()], window.lag_samples)
        for result, prompt in zip(window.results, asked, strict=True):
            made.rows.append(self._row(keys, result, prompt, told is not None, made.contradictions))
        return made

    def _request(self, prompt_set: PromptSet, prompt: Asked, request_id: str) -> Request:
        run = self._run
        sampler = _seeded(run.sampler, self._block, prompt.prompt_id)
        limit, ignore = run.max_tokens(prompt_set), run.workload.stop == "fixed"
        return Request(request_id, prompt.prompt_ids, limit, self._prompts.stop_ids, ignore, sampler)

    def _row(
        self, keys: Mapping[str, Any], result: Result, prompt: Asked, tells_steps: bool, contradictions: list[str]
    ) -> dict[str, Any]:
        """A request's row. A ledger that contradicts itself makes the cell invalid and leaves the row without totals."""
        try:
            totals = ledger(result.request.request_id, result.chunks, self._arm.draft_budget, tells_steps)
        except ValueError as contradiction:
            contradictions.append(f"ledger: {contradiction}")
            totals = None
        named = {"content_class": prompt.content_class, "prompt_id": prompt.prompt_id, "prompt_hash": prompt.prompt_hash}
        return request_row(keys, result, named, totals)


def _seeded(sampler: Sampler, block: int, prompt_id: str) -> Sampler:
    """A seed per prompt and block, the same in every arm: draws of two prompts are independent, pairs stay pairs."""
    digest = hashlib.sha256(f"{sampler.seed} {block} {prompt_id}".encode()).digest()
    return sampler.model_copy(update={"seed": int.from_bytes(digest[:4], "big") >> 1})
