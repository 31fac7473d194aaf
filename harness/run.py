"""`bench`: measure every cell of a run once, in order, and survive being stopped.

Blocks, then arms, then cells. What is complete is skipped; what was interrupted is measured again from its start.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console

from harness import probe
from harness.after import grader_for
from harness.asked import Prompts
from harness.awake import cores_awake
from harness.compose import load_dotted
from harness.config import Run
from harness.engines.base import Engine, EngineError, RefusedError
from harness.folders import telling_full
from harness.processes import kill
from harness.progress import RunProgress
from harness.schedule import Cell, Serving, plan_servings
from harness.serving import Session, serve
from harness.store import code_hash, left_by_other_code, open_store
from harness.workloads import prompt_count

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Composed(Protocol):
    """What `harness.compose` gives: the judged run, its resolved YAML and hash."""

    @property
    def run(self) -> Run: ...

    @property
    def yaml(self) -> str: ...

    @property
    def config_hash(self) -> str: ...


def bench(composed: Composed, results: Path, fresh: bool, console: Console, prompts: Prompts | None = None) -> Path:
    """Measure the run, or what is left of it; the folder of its tables.

    Raises ValueError for a workload that does not fit, RuntimeError when another process measures the same run, EngineError
    (a RuntimeError) when an arm does not start or dies, KeyboardInterrupt when it was told to stop. Complete cells survive all.
    """
    run, code = composed.run, code_hash()
    adapter: type[Engine] = load_dotted(run.engine.adapter)
    servings = plan_servings(run, code)
    prompts = prompts or _rendered(run, adapter)
    store = open_store(results, run.name, composed.yaml, composed.config_hash, code, fresh)
    try:
        todo = _left(servings, store.complete_cells())
        if not store.resumed and not fresh and (other := left_by_other_code(results, composed.config_hash, code)):
            console.print(f"not resuming {other}: the sources of harness or drafters changed since", soft_wrap=True)
        if store.resumed:
            count = sum(len(cells) for _, cells in todo)
            what_is_left = f"{count} of {sum(len(s.cells) for s in servings)} cells left{_torn(servings, todo)}"
            console.print(f"resuming {store.folder}: {what_is_left}", soft_wrap=True)
        gpus = probe.gpus() if run.machine.kind == "cuda" else []
        total, left = (
            sum(_weight(run, cell) for _, cells in part for cell in cells) for part in (_left(servings, set()), todo)
        )
        with (
            telling_full(store.folder),
            cores_awake(run.machine.kind != "cpu") as wake_limit_us,
            RunProgress(console, total, total - left) as progress,
        ):
            facts = (run, composed.config_hash, code, secrets.token_hex(4), adapter, store, prompts, progress, gpus)
            session = Session(*facts, wake_limit_us=wake_limit_us, grader=grader_for(run, prompts))
            asyncio.run(_serve_all(session, todo))
            store.finish()
    except asyncio.CancelledError:
        raise KeyboardInterrupt(f"stopped; complete cells are in {store.folder}, the same command resumes") from None
    finally:
        store.close()
    return store.folder


async def _serve_all(session: Session, todo: Sequence[tuple[Serving, Sequence[Cell]]]) -> None:
    gc.collect()
    gc.freeze()  # what is loaded by now stays: the collection before every window need not look at it again
    with _stopping_on_signals(session.pids):
        for planned, cells in todo:
            try:
                await serve(session, planned, cells)
            except EngineError as error:
                kept = f"complete cells are in {session.store.folder}"
                kept += "" if isinstance(error, RefusedError) else ", the same command resumes"
                raise EngineError(f"arm {planned.arm_name}, block {planned.block}: {error}; {kept}") from error


def _rendered(run: Run, adapter: type[Engine]) -> Prompts:
    from harness.prompts import WorkloadPrompts  # takes seconds: a tokenizer comes with it

    return WorkloadPrompts(run, adapter.tokenizer_folder(run))


def _left(servings: Sequence[Serving], complete: set[str]) -> list[tuple[Serving, list[Cell]]]:
    """Servings that still have cells to measure, with those cells."""
    left = [(serving, [cell for cell in serving.cells if cell.cell_id not in complete]) for serving in servings]
    return [(serving, cells) for serving, cells in left if cells]


def _torn(servings: Sequence[Serving], todo: Sequence[tuple[Serving, Sequence[Cell]]]) -> str:
    """What going on costs: blocks that two sessions share give no speedup for the cells around the interruption."""
    left = {block: sum(len(cells) for s, cells in todo if s.block == block) for block in {s.block for s, _ in todo}}
    torn = [n for n, count in sorted(left.items()) if count < sum(len(s.cells) for s in servings if s.block == n)]
    if not torn:
        return ""
    return (
        f"; block {torn[0]} now spans two sessions, and cells that no session measured for all arms give no speedup (--fresh)"
    )


def _weight(run: Run, cell: Cell) -> int:
    """Tokens that a cell may ask for."""
    return prompt_count(run.protocol, cell.concurrency) * run.max_tokens(cell.prompt_set)


@contextmanager
def _stopping_on_signals(pids: list[int]) -> Iterator[None]:
    """The first SIGINT or SIGTERM cancels this task, which stops the engine in order; the second kills it and this process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread, and to whoever runs this outside it
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    seen: list[int] = []

    def stop() -> None:
        seen.append(1)
        if len(seen) > 1:
            kill(pids)
            os._exit(130)
        if task is not None:
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
