"""One serving: launch an arm, warm it up, measure its cells, stop it. Every cell is on disk before the next one starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness import probe
from harness.asked import Asked, Prompts
from harness.clock import now_ns, utc_now
from harness.config import PromptSet, Run, Sampler
from harness.engines.base import Counters, DeadEngineError, Engine, Request
from harness.facts import json_map, launch_facts, memory_facts, percentile_ms, since
from harness.ledger import ledger, request_row
from harness.load import Result, Window, run_window
from harness.monitor import Monitor
from harness.nvml import Gpu
from harness.processes import is_alive, stop
from harness.progress import RunProgress
from harness.schedule import Cell, Serving
from harness.store import Store, code_hash
from harness.validity import cell_problems, is_stationary, serving_flags, serving_problems
from harness.workloads import set_label

WARMUP_BATCHES = 4  # a warm-up ends here if the times per token have not settled before


@dataclass(frozen=True, slots=True)
class Session:
    """What every serving of one process shares."""

    run: Run
    config_hash: str
    code_hash: str
    session_id: str
    adapter: type[Engine]
    store: Store
    prompts: Prompts
    progress: RunProgress
    gpus: Sequence[Gpu]
    pids: list[int] = field(default_factory=list)


async def serve(session: Session, planned: Serving, todo: Sequence[Cell]) -> None:
    """Measure the cells `todo` in one fresh serving. Raises EngineError when it does not start or dies; complete cells stay."""
    run, store = session.run, session.store
    if code_hash() != session.code_hash:
        raise RuntimeError("the sources of harness or drafters changed during the run; measure anew, and do not edit meanwhile")
    serving_id = f"b{planned.block}-{planned.arm_name}-{session.session_id}"
    log_path = store.folder / "logs" / f"{serving_id}.log"
    log_path.parent.mkdir(exist_ok=True)
    monitor = Monitor(run.protocol.sample_period_s, session.gpus)
    engine = session.adapter(run, planned.arm, log_path)
    measuring = _Measuring(session, planned, serving_id, engine, monitor)
    try:
        await measuring.launch()
        for cell in todo:
            await measuring.measure(cell)
    finally:
        measuring.flags += await stop(engine, session.pids)
        monitor.stop()
    measuring.write(ended_ns=now_ns())


class _Measuring:
    """The facts of one serving as they come in; `write` puts its row on disk as it stands."""

    def __init__(self, session: Session, planned: Serving, serving_id: str, engine: Engine, monitor: Monitor) -> None:
        self.flags: list[str] = []
        self._session = session
        self._run = session.run
        self._planned = planned
        self._engine = engine
        self._monitor = monitor
        self._keys = {
            "run_id": session.store.run_id,
            "serving_id": serving_id,
            "block": planned.block,
            "arm": planned.arm_name,
        }
        self._facts: dict[str, Any] = {}
        self._busy_cores: float | None = None
        self._pids: tuple[int, ...] = ()
        self._at_ready: Counters | None = None
        self._counters: dict[str, int] = {}
        self._warmed: set[tuple[int, int | None]] = set()
        self._rows: list[dict[str, Any]] = []
        self._lags: list[int] = []
        self._problems: list[str] = []

    async def launch(self) -> None:
        """Start the engine and write the serving's first row."""
        session = self._session
        self._tell("launching")
        host = probe.facts(session.gpus)
        self._busy_cores = float(host["load_busy_cores"] or 0.0)
        for flag in serving_flags(None, self._busy_cores, session.run.machine.max_load):
            session.progress.warn(flag)
        launched_ns, launched_at = now_ns(), utc_now()
        launched = await self._engine.launch()
        self._pids = launched.pids
        session.pids[:] = launched.pids
        self._monitor.start(launched.pids)
        self._facts = launch_facts(launched, host, probe.versions(session.gpus))
        self._facts |= {"launched_ns": launched_ns, "launched_at": launched_at}
        asked = {"stop_ids": ",".join(map(str, session.prompts.stop_ids)), "stop": self._run.workload.stop}
        asked |= {f"sampler.{name}": value for name, value in self._run.sampler.model_dump().items()}
        self._facts["resolved"] = json_map({**await self._engine.resolved(), **asked})
        self._facts |= memory_facts(await self._engine.memory(), 0)
        self._at_ready = await self._engine.counters()
        self.write()

    async def measure(self, cell: Cell) -> None:
        """Warm up if this concurrency and depth is new, then measure one cell and write it."""
        rows, steps = await self._warm_up(cell)
        asked = self._session.prompts.measured(cell.prompt_set, cell.concurrency)
        label = set_label(cell.prompt_set)
        self._tell(f"{label}, concurrency {cell.concurrency}: {len(asked)} requests")
        window, measured, measured_steps = await self._window(cell, "measured", asked, f"{cell.cell_id[:16]}-m")
        self._require_alive(window)
        self._lags += window.lag_samples
        if self._run.protocol.load == "closed":
            problems = cell_problems(measured, measured_steps, cell.concurrency)
            self._problems += [f"{label} x {cell.concurrency}: {problem}" for problem in problems]
        samples = [{**self._keys, **sample} for sample in self._monitor.drain()]
        rows, steps = [*rows, *measured], [*steps, *measured_steps]
        self._session.store.write_cell(cell.cell_id, {"requests": rows, "steps": steps, "samples": samples})
        self._rows += rows
        self._counters = since(await self._engine.counters(), self._at_ready)
        self._facts |= memory_facts(await self._engine.memory(), self._monitor.peak_memory_bytes)
        self.write()
        self._session.progress.advance(len(asked) * self._run.max_tokens(cell.prompt_set))

    def write(self, ended_ns: int | None = None) -> None:
        """Write or replace the row of this serving."""
        session, arm, run = self._session, self._planned.arm, self._run
        p50, p99 = (percentile_ms(self._lags, share) for share in (0.50, 0.99))
        row = {
            **self._keys,
            **self._facts,
            "session_id": session.session_id,
            "method": arm.method,
            "draft_budget": arm.draft_budget,
            "order_in_block": self._planned.order,
            "config_hash": session.config_hash,
            "code_hash": session.code_hash,
            "ended_ns": ended_ns,
            "counters": self._counters,
            "energy_j": self._monitor.energy_j(),
            "throttle_reasons": self._monitor.throttle_reasons,
            "foreign_processes": self._monitor.foreign_processes,
            "client_lag_p50_ms": p50,
            "client_lag_p99_ms": p99,
            "flags": [*self.flags, *serving_flags(p99, self._busy_cores, run.machine.max_load)],
            "invalid": [*self._problems, *serving_problems(self._rows, self._counters)],
        }
        session.store.write_serving(row)

    async def _warm_up(self, cell: Cell) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Batches of disjoint prompts until the time per token has settled: two batches at least, `WARMUP_BATCHES` at most.

        A batch is `protocol.warmup_prompts`, or one full concurrency where that is more. Rows belong to the cell that follows.
        """
        key = (cell.concurrency, cell.prompt_set.depth)
        if key in self._warmed or self._run.protocol.warmup_prompts == 0:
            return [], []
        self._warmed.add(key)
        self._tell(f"warming up at concurrency {cell.concurrency}")
        size = max(self._run.protocol.warmup_prompts, cell.concurrency)
        prompts = self._session.prompts.warmup(cell.prompt_set, size * WARMUP_BATCHES)
        batches: list[list[dict[str, Any]]] = []
        steps: list[dict[str, Any]] = []
        budget = self._planned.arm.draft_budget
        while len(batches) < WARMUP_BATCHES and not is_stationary(batches, budget):
            asked = prompts[len(batches) * size :][:size]
            window, rows, told = await self._window(cell, "warmup", asked, f"{cell.cell_id[:16]}-w{len(batches)}")
            self._require_alive(window)
            batches.append(rows)
            steps += told
        if not is_stationary(batches, budget):
            where = f"at concurrency {cell.concurrency}, depth {cell.prompt_set.depth or 'natural'}"
            self.flags.append(f"warm-up: time per token had not settled within 5 % after {len(batches)} batches {where}")
        return [row for batch in batches for row in batch], steps

    async def _window(
        self, cell: Cell, phase: str, asked: Sequence[Asked], prefix: str
    ) -> tuple[Window, list[dict[str, Any]], list[dict[str, Any]]]:
        """Send the prompts; the window, its request rows and its step rows."""
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
        keys = {
            **self._keys,
            "cell_id": cell.cell_id,
            "prompt_set": set_label(cell.prompt_set),
            "concurrency": cell.concurrency,
            "phase": phase,
        }
        rows = [self._row(keys, result, prompt, told is not None) for result, prompt in zip(window.results, asked, strict=True)]
        content_class = asked[0].content_class
        return window, rows, [{**keys, "content_class": content_class, **asdict(step)} for step in told or ()]

    def _request(self, prompt_set: PromptSet, prompt: Asked, request_id: str) -> Request:
        run = self._run
        sampler = _seeded(run.sampler, self._planned.block, prompt.prompt_id)
        limit, ignore = run.max_tokens(prompt_set), run.workload.stop == "fixed"
        return Request(request_id, prompt.prompt_ids, limit, self._session.prompts.stop_ids, ignore, sampler)

    def _row(self, keys: Mapping[str, Any], result: Result, prompt: Asked, tells_steps: bool) -> dict[str, Any]:
        """A request's row. A ledger that contradicts itself makes the serving invalid and leaves the row without totals."""
        try:
            totals = ledger(result.request.request_id, result.chunks, self._planned.arm.draft_budget, tells_steps)
        except ValueError as contradiction:
            self._problems.append(f"ledger: {contradiction}")
            totals = None
        named = {"content_class": prompt.content_class, "prompt_id": prompt.prompt_id, "prompt_hash": prompt.prompt_hash}
        return request_row(keys, result, named, totals)

    def _tell(self, doing: str) -> None:
        self._session.progress.tell(f"block {self._planned.block}: {self._planned.arm_name}, {doing}")

    def _require_alive(self, window: Window) -> None:
        """A cell with failures from an engine that is gone is no cell."""
        if any(result.error for result in window.results) and not all(map(is_alive, self._pids)):
            raise DeadEngineError(
                f"the engine ended while it was measured; its log is in {self._session.store.folder / 'logs'}"
            )


def _seeded(sampler: Sampler, block: int, prompt_id: str) -> Sampler:
    """A seed per prompt and block, the same in every arm: draws of two prompts are independent, pairs stay pairs."""
    digest = hashlib.sha256(f"{sampler.seed} {block} {prompt_id}".encode()).digest()
    return sampler.model_copy(update={"seed": int.from_bytes(digest[:4], "big") >> 1})
