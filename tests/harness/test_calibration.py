"""Fixed work before every launch: what tells a machine that was not equally fast for both arms."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import synthetic
from scripted_bench import PLAIN, run_bench, scripted_run

from harness import calibration, serving
from harness.calibration import calibrate
from harness.control.findings import Side
from harness.control.servings import pace
from harness.store import read_tables

LIMITED = {"load_limit_cores": "0.3"}


def paced(arm: str, ms: float | None, **host: str) -> Side:
    return Side([synthetic.serving(arm, host={**host, "calibration_time_ms": json.dumps(ms)})], [], [], [])


def read_by(took: Iterator[float]) -> Callable[[], float]:
    """A clock that moves on by the next of `took` at every second reading: at the end of a piece."""
    state = {"now": 0.0, "readings": 0}

    def read() -> float:
        state["readings"] += 1
        if state["readings"] > 1 and state["readings"] % 2 == 1:
            state["now"] += next(took)
        return state["now"]

    return read


def test_the_median_piece_is_told_and_a_blip_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", read_by(iter([0.001, 0.5, *[0.001] * 1000])))
    assert calibrate(0.6) == pytest.approx(1.0)


def test_no_time_for_it_means_no_value() -> None:
    assert calibrate(None) is None


def test_real_work_takes_time() -> None:
    found = calibrate(0.02)
    assert found is not None
    assert 0 < found < 1e3 * len(calibration.PIECE) / 1e7


@pytest.mark.parametrize(
    ("ms", "found"), [(1.05, []), (1.3, ["pace of the machine"]), (0.7, ["pace of the machine"]), (None, [])]
)
def test_a_machine_that_was_slower_for_one_arm_confounds(ms: float | None, found: list[str]) -> None:
    got = pace(paced("plain", 1.0, **LIMITED), paced("ngram", ms, **LIMITED))
    assert [f.factor for f in got if f.kind == "confounder"] == found


def test_the_pace_of_a_cpu_that_only_feeds_a_gpu_is_a_note() -> None:
    assert [f.kind for f in pace(paced("plain", 1.0), paced("ngram", 2.0))] == ["note"]


def test_every_serving_of_a_run_holds_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(serving, "calibrate", lambda seconds: asked.append(seconds) or 1.25)
    run = scripted_run(
        protocol={"blocks": 1, "warmup_prompts": 0, "calibration_s": 0.5}, arms={"plain": PLAIN}, concurrency=[1]
    )
    hosts = read_tables(run_bench(run, tmp_path)).servings.host
    assert asked == [0.5] * len(hosts)
    assert [dict(host)["calibration_time_ms"] for host in hosts] == ["1.25"] * len(asked)
