"""One serving: launch an arm, warm it up, measure its cells, stop it. Every cell is on disk before the next one starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import probe
from harness.after import Looked, after_cells
from harness.asked import Prompts
from harness.baselines import for_arm
from harness.calibration import calibrate
from harness.clock import now_ns, utc_now
from harness.config import Run
from harness.engines.base import Counters, Engine, EngineError, Scalar
from harness.facts import json_map, launch_facts, memory_facts, percentile_ms, since
from harness.grading import Grader
from harness.liveness import liveness_problems
from harness.monitor import Monitor
from harness.nvml import Gpu
from harness.processes import is_alive, stop
from harness.progress import RunProgress
from harness.schedule import Cell, Serving
from harness.store import Store, code_hash
from harness.validity import cache_problems, cell_problems, log_problems, serving_flags
from harness.windows import Measured, Windows
from harness.workloads import set_label


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
    wake_limit_us: int | None = None
    pids: list[int] = field(default_factory=list)
    grader: Grader | None = None


async def serve(session: Session, planned: Serving, todo: Sequence[Cell]) -> None:
    """Measure the cells `todo` in one fresh serving. Raises EngineError when it does not start or dies; complete cells stay."""
    run, store = session.run, session.store
    if code_hash() != session.code_hash:
        raise RuntimeError("the sources of harness or drafters changed during the run; measure anew, and do not edit meanwhile")
    serving_id = f"b{planned.block}-{planned.arm_name}-{session.session_id}"
    log_path = store.folder / "logs" / f"{serving_id}.log"
    log_path.parent.mkdir(exist_ok=True)
    monitor = Monitor(run.protocol.sample_period_s, session.gpus)
    engine = session.adapter(for_arm(run, planned.arm), planned.arm, log_path)
    measuring = _Measuring(session, planned, serving_id, engine, monitor)
    try:
        await measuring.launch()
        for cell in todo:
            await measuring.measure(cell)
        await measuring.look_after()
    finally:
        measuring.flags += await stop(engine, session.pids)
        monitor.stop()
    measuring.write(ended_ns=now_ns())


class _Measuring:
    """The facts of one serving as they come in; `write` puts its row on disk as it stands."""

    def __init__(self, session: Session, planned: Serving, serving_id: str, engine: Engine, monitor: Monitor) -> None:
        self.flags: list[str] = []
        self._log_path = session.store.folder / "logs" / f"{serving_id}.log"
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
        self._windows = Windows(session.run, planned.arm, engine, session.prompts, self._keys, planned.block, self._is_alive)
        self._facts: dict[str, Any] = {}
        self._host: dict[str, Scalar] = {}
        self._pids: tuple[int, ...] = ()
        self._at_ready: Counters | None = None
        self._counters: dict[str, int] = {}
        self._lags: list[int] = []
        self._dead: list[str] = []  # why this arm is not what it says, in every cell of it
        self._energy_j: float | None = None  # of launch and cells, once they are done

    async def launch(self) -> None:
        """Start the engine and write the serving's first row."""
        session = self._session
        self._tell("launching")
        self._host = {
            **probe.facts(session.gpus),
            "load_limit_cores": session.run.machine.max_load,
            "wake_limit_us": session.wake_limit_us,
            "calibration_time_ms": calibrate(session.run.protocol.calibration_s),
        }
        for flag in serving_flags(None, self._host, session.run.machine.max_load):
            session.progress.warn(flag)
        launched_ns, launched_at = now_ns(), utc_now()
        launched = await self._engine.launch()
        self._pids = launched.pids
        session.pids[:] = launched.pids
        self._monitor.start(launched.pids)
        self._facts = launch_facts(launched, self._host, probe.versions(session.gpus))
        self._facts |= {"launched_ns": launched_ns, "launched_at": launched_at}
        asked = {"stop_ids": ",".join(map(str, session.prompts.stop_ids)), "stop": self._run.workload.stop}
        asked |= {f"sampler.{name}": value for name, value in self._run.sampler.model_dump().items()}
        resolved = await self._engine.resolved()
        self._facts["resolved"] = json_map({**resolved, **asked})
        if launched.needs_probe:
            self._tell("probing")
            seen = await liveness_problems(self._engine, self._run, self._planned.arm, session.prompts, resolved)
            self._dead = [*launched.problems, *seen]
        self._facts |= memory_facts(await self._engine.memory(), 0)
        self._at_ready = await self._engine.counters()
        self.write()

    async def measure(self, cell: Cell) -> None:
        """Warm up if this concurrency and depth is new, then measure one cell and write it."""
        label, prompts = set_label(cell.prompt_set), self._session.prompts
        if not self._windows.is_warm(cell):
            self._tell(f"warming up at concurrency {cell.concurrency}")
        warm_up = await self._windows.warm_up(cell)
        if warm_up.settled is False:
            depth = f", depth {cell.prompt_set.depth}" if cell.prompt_set.depth else ""
            where = f"at concurrency {cell.concurrency}{depth}"
            self.flags.append(f"warm-up: time per step had not settled after {warm_up.batches} batches {where}")
        asked = prompts.measured(cell.prompt_set, cell.concurrency)
        self._tell(f"{label}, concurrency {cell.concurrency}: {len(asked)} requests")
        await self._windows.prepare(cell, asked)
        before, logged = await self._engine.counters(), self._log_size()
        used = probe.CpuUse.now(self._pids)
        measured = await self._windows.measure(cell, asked)
        others = used.until(probe.CpuUse.now(self._pids))
        counters = since(await self._engine.counters(), before)
        row = {
            **self._windows.keys_of(cell, asked[0].content_class),
            "started_ns": min(r["sent_ns"] for r in measured.rows),
            "ended_ns": max(r["ended_ns"] for r in measured.rows),
            "warmup_batches": warm_up.batches,
            "warmed_up": warm_up.settled,
            "counters": counters,
            "client_lag_p99_ms": percentile_ms(measured.lag_samples, 0.99),
            "invalid": [*self._problems(cell, measured, counters), *log_problems(self._logged_since(logged))],
            # A server that was there before has no pids of ours, and its work cannot be told from that of others.
            "busy_cores": others["load_busy_cores"] if self._pids else None,
            "stolen_cores": others["load_stolen_cores"],
        }
        self._session.store.write_cell(
            cell.cell_id,
            {
                "cells": [row],
                "requests": [*warm_up.rows, *measured.rows],
                "steps": [*warm_up.steps, *measured.steps],
                "samples": [{**self._keys, **sample} for sample in self._monitor.drain()],
            },
        )
        self._lags += measured.lag_samples
        self._counters = since(await self._engine.counters(), self._at_ready)
        self._facts |= memory_facts(await self._engine.memory(), self._monitor.peak_memory_bytes)
        self.write()
        self._session.progress.advance(len(asked) * self._run.max_tokens(cell.prompt_set))

    async def look_after(self) -> None:
        """What is untimed, once the cells are measured. A failure costs what would have been seen, and no cell."""
        session, protocol = self._session, self._run.protocol
        if not (protocol.width_rounds or protocol.replays_per_set or session.grader):
            return
        self._energy_j = self._monitor.energy_j()
        self._tell("reading texts again and checking answers, untimed")
        try:
            await after_cells(Looked(self._run, self._keys, session.prompts, session.store, session.grader), self._engine)
        except EngineError as error:
            self.flags.append(f"after the cells: {error}")

    def _problems(self, cell: Cell, measured: Measured, counters: Mapping[str, int]) -> list[str]:
        """Why this cell may not be compared. An open load asks for a rate, not for a concurrency."""
        asked = cell.concurrency if self._run.protocol.load == "closed" else None
        return [
            *self._dead,
            *measured.contradictions,
            *cell_problems(measured.rows, measured.steps, counters, asked),
            *cache_problems(measured.rows, counters, self._run.engine.prefix_cache, cell.prompt_set.cached),
        ]

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
            "energy_j": self._monitor.energy_j() if self._energy_j is None else self._energy_j,
            "throttle_reasons": self._monitor.throttle_reasons,
            "foreign_processes": self._monitor.foreign_processes,
            "client_lag_p50_ms": p50,
            "client_lag_p99_ms": p99,
            "flags": [*self.flags, *serving_flags(p99, self._host, run.machine.max_load)],
        }
        session.store.write_serving(row)

    def _log_size(self) -> int:
        return self._log_path.stat().st_size if self._log_path.exists() else 0

    def _logged_since(self, size: int) -> str:
        """What the engine wrote to its log since it had this size."""
        return self._log_path.read_bytes()[size:].decode("utf-8", "replace") if self._log_path.exists() else ""

    def _tell(self, doing: str) -> None:
        self._session.progress.tell(f"block {self._planned.block}: {self._planned.arm_name}, {doing}")

    def _is_alive(self) -> bool:
        return all(map(is_alive, self._pids))
