"""A run on the reference engine that is killed anywhere leaves no worker behind and resumes to the same cells and tokens."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pandas as pd
import psutil
import pytest
import reference_bench
from reference_bench import make_target, reference_run
from scripted_bench import run_bench

from harness.schedule import plan_servings
from harness.store import code_hash, read_tables

ROOT = Path(__file__).parents[2]
KILLS = 3
SECONDS = 300  # a machine that does much else needs long to import torch


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def complete(results: Path) -> int:
    return len(list(results.glob("*/cells/[!.]*")))


def tokens(folder: Path) -> pd.DataFrame:
    rows = read_tables(folder).requests
    rows = rows[rows.phase == "measured"].assign(token_ids=rows.token_ids.map(tuple))
    columns = ["cell_id", "prompt_id", "arm", "output_tokens", "drafted", "accepted", "token_ids"]
    return rows[columns].sort_values(["cell_id", "prompt_id"], ignore_index=True)


def workers(process: BaseProcess) -> list[psutil.Process]:
    assert process.pid is not None
    return psutil.Process(process.pid).children(recursive=True)


def check_resources(worker: psutil.Process) -> None:
    """What could outlive a worker is not there while it lives: no socket, no shared memory with a name."""
    try:
        sockets, maps = worker.net_connections(kind="all"), worker.memory_maps()
    except psutil.NoSuchProcess:
        return  # its serving just ended
    assert sockets == []
    assert [mapped.path for mapped in maps if mapped.path.startswith(("/dev/shm", "/SYSV"))] == []


def kill_after(process: BaseProcess, results: Path, cells: int, moment: float, number: signal.Signals) -> None:
    """Kill the harness `moment` seconds after it has a worker and so many complete cells; its worker must end by itself."""
    wait_until(lambda: not process.is_alive() or (complete(results) >= cells and bool(workers(process))))
    time.sleep(moment)
    assert process.pid is not None
    assert process.is_alive(), "it ended before it could be killed"
    left = workers(process)
    for worker in left:
        check_resources(worker)
    os.kill(process.pid, number)
    process.join(SECONDS)
    assert process.exitcode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert psutil.wait_procs(left, timeout=SECONDS)[1] == [], "a worker outlived its harness"


def test_a_reference_run_killed_at_random_moments_resumes_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the harness, once SIGINT, after a drawn number of cells and a drawn time: in a launch, warm-up or window."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(Path(__file__).parent))))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reference_bench"])
    target, results = tmp_path / "target", tmp_path / "killed"
    make_target(target)
    undisturbed = tokens(run_bench(reference_run(target), tmp_path / "undisturbed"))
    draw = random.Random(11)
    for number, cells in enumerate([0, *sorted(draw.sample(range(1, 8), KILLS - 1))]):
        process = context.Process(target=reference_bench.main, args=(str(results), str(target)))
        process.start()
        kill_after(process, results, cells, draw.uniform(0, 0.1), signal.SIGINT if number == 1 else signal.SIGKILL)
        for cell in results.glob("*/cells/[!.]*"):
            assert {path.stem for path in cell.iterdir()} == {"cells", "requests", "steps", "samples"}
    process = context.Process(target=reference_bench.main, args=(str(results), str(target)))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0
    _check_finished(results, target, undisturbed)


def _check_finished(results: Path, target: Path, undisturbed: pd.DataFrame) -> None:
    """One folder with every cell once, the requests and tokens of an undisturbed run, and nothing half written."""
    (folder,) = [path for path in results.iterdir() if (path / "run.json").exists()]
    found = tokens(folder)
    planned = {cell.cell_id for serving in plan_servings(reference_run(target), code_hash()) for cell in serving.cells}
    assert set(found.cell_id) == planned
    assert len(planned) == 8
    assert not found.duplicated(["cell_id", "prompt_id"]).any()
    pd.testing.assert_frame_equal(found, undisturbed)
    assert found[found.arm == "ngram"].accepted.sum() > 0
    texts = {arm: Counter(rows.token_ids) for arm, rows in found.groupby("arm")}
    assert texts["plain"] == texts["ngram"]
    assert not list(folder.rglob(".tmp-*"))
