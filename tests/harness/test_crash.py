"""A run that is killed at any moment resumes to the same cells and the same tokens; a run that is told to stop stops."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from scripted_bench import scripted_run

from harness.schedule import plan_servings
from harness.store import code_hash, read_tables

PROGRAM = Path(__file__).with_name("scripted_bench.py")
FLAGS = {"step_ms": 1.0, "prefill_ms": 1.0}
PROTOCOL = {"blocks": 2, "sample_period_s": 0.1}
KILLS = 20


def start(results: Path, flags: dict[str, float] = FLAGS, protocol: dict[str, float] = PROTOCOL) -> subprocess.Popen[str]:
    root = PROGRAM.parents[2]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(results), json.dumps(flags), json.dumps(protocol)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_a_run(process: subprocess.Popen[str], results: Path) -> None:
    """Until the program has its run folder: importing takes longer than measuring."""
    while process.poll() is None and not any(results.glob("*/run.json")):
        time.sleep(0.01)


def tokens(folder: Path) -> pd.DataFrame:
    rows = read_tables(folder).requests
    rows = rows[rows.phase == "measured"].assign(token_ids=rows.token_ids.map(tuple))
    columns = ["cell_id", "prompt_id", "output_tokens", "drafted", "accepted", "token_ids"]
    return rows[columns].sort_values(["cell_id", "prompt_id"], ignore_index=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    results = tmp_path_factory.mktemp("undisturbed")
    process = start(results)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return tokens(next(results.iterdir()))


def test_a_run_killed_at_twenty_random_moments_resumes_to_the_same_table(tmp_path: Path, undisturbed: pd.DataFrame) -> None:
    """SIGKILL, and now and then SIGINT, at random moments after the run folder exists; then one run to the end."""
    draw = random.Random(5)
    killed = 0
    for attempt in range(KILLS):
        process = start(tmp_path)
        wait_for_a_run(process, tmp_path)
        try:
            process.wait(timeout=1.0 + draw.uniform(0.0, 0.6) if attempt else draw.uniform(0.0, 0.5))
        except subprocess.TimeoutExpired:
            killed += 1
            process.send_signal(signal.SIGINT if attempt % 5 == 4 else signal.SIGKILL)
        process.communicate(timeout=60)
        (folder,) = tmp_path.iterdir()
        cells = [path for path in folder.glob("cells/*") if not path.name.startswith(".")]
        assert all((path / f"{table}.parquet").is_file() for path in cells for table in ("requests", "steps", "samples"))
        if process.returncode == 0:
            break
    if process.returncode != 0:
        last = start(tmp_path)
        out, err = last.communicate(timeout=120)
        assert last.returncode == 0, out + err
    (folder,) = tmp_path.iterdir()
    found = tokens(folder)
    run = scripted_run(FLAGS, PROTOCOL)
    assert set(found.cell_id) == {cell.cell_id for serving in plan_servings(run, code_hash()) for cell in serving.cells}
    assert not found.duplicated(["cell_id", "prompt_id"]).any()
    pd.testing.assert_frame_equal(found, undisturbed)
    assert not list(folder.rglob(".tmp-*"))
    assert killed > 0
