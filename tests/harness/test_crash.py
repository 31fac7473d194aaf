"""A run that is killed at any moment resumes to the same cells and the same tokens; a run that is told to stop stops."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import scripted_bench
from scripted_bench import run_bench, scripted_run

from harness.run_file import runs_in
from harness.schedule import plan_servings
from harness.store import code_hash, read_tables

ROOT = Path(__file__).parents[2]
FLAGS = {"step_ms": 3.0, "prefill_ms": 3.0}
PROTOCOL = {"blocks": 2, "sample_period_s": 0.1}
KILLS = 20

Start = Callable[..., BaseProcess]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts a bench in a process of its own, forked from one that has imported everything: the kills then hit the run."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(Path(__file__).parent))))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scripted_bench"])

    def started(results: Path, flags: dict[str, Any] = FLAGS) -> BaseProcess:
        process = context.Process(target=scripted_bench.main, args=(str(results), flags, PROTOCOL))
        process.start()
        return process

    yield started
    patch.undo()


def tokens(folder: Path) -> pd.DataFrame:
    rows = read_tables(folder).requests
    rows = rows[rows.phase == "measured"].assign(token_ids=rows.token_ids.map(tuple))
    columns = ["cell_id", "prompt_id", "output_tokens", "drafted", "accepted", "token_ids"]
    return rows[columns].sort_values(["cell_id", "prompt_id"], ignore_index=True)


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_a_run_killed_at_twenty_random_moments_resumes_to_the_same_table(tmp_path: Path, start: Start) -> None:
    """SIGKILL, and every fifth time SIGINT. A run that gets to its end between kills is checked, and the next one started."""
    undisturbed = tokens(run_bench(scripted_run(FLAGS, PROTOCOL), tmp_path / "undisturbed"))
    draw = random.Random(5)
    killed = runs = 0
    while killed < KILLS:
        runs += 1
        results = tmp_path / f"run{runs}"
        done = False
        while not done:
            process = start(results)
            if killed < KILLS:
                process.join(draw.uniform(0.05, 0.8))
                if process.is_alive() and process.pid is not None:
                    killed += 1
                    os.kill(process.pid, signal.SIGINT if killed % 5 == 0 else signal.SIGKILL)
            process.join(60)
            assert process.exitcode in (0, 130, -signal.SIGKILL)
            done = any(facts.get("finished_at") for _, facts in runs_in(results))  # a kill may hit a run that is over
            assert done or process.exitcode != 0
            for cell in results.glob("*/cells/[!.]*"):
                assert {path.stem for path in cell.iterdir()} == {"cells", "requests", "steps", "samples"}
        _check_finished(results, undisturbed)


def _check_finished(results: Path, undisturbed: pd.DataFrame) -> None:
    """One folder with every cell once, the same tokens as without kills, and nothing half written."""
    (folder,) = [path for path in results.iterdir() if (path / "run.json").exists()]
    found = tokens(folder)
    servings = plan_servings(scripted_run(FLAGS, PROTOCOL), code_hash())
    assert set(found.cell_id) == {cell.cell_id for serving in servings for cell in serving.cells}
    assert not found.duplicated(["cell_id", "prompt_id"]).any()
    pd.testing.assert_frame_equal(found, undisturbed)
    assert not list(folder.rglob(".tmp-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_keeps_its_cells_and_exits_with_130(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        scripted_bench.__file__,
        str(tmp_path),
        json.dumps({**FLAGS, "stop_s": 0.2}),
        json.dumps(PROTOCOL),
    ]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: process.poll() is not None or len(list(tmp_path.glob("*/cells/[!.]*"))) >= 2, 60)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")
    (folder,) = tmp_path.iterdir()
    assert out.splitlines()[-1] == f"stopped; complete cells are in {folder}, the same command resumes"
    assert read_tables(folder).requests.cell_id.nunique() >= 2


def test_a_second_signal_does_not_wait_for_an_engine_that_will_not_stop(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path, {**FLAGS, "stop_s": 30.0})
    wait_until(lambda: not process.is_alive() or len(list(tmp_path.glob("*/cells/[!.]*"))) >= 1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(5)
    assert process.exitcode == 130
