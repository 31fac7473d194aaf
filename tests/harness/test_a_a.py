"""Plain against plain: controlled, and no difference claimed, in at least 19 of 20 simulated runs."""

from __future__ import annotations

import pytest
from synthetic import CONFIG, simulate

from harness.config_hash import config_hash
from harness.report.run import FinishedRun
from harness.speedup import claims, output_speedup
from harness.stats import Speedup

SEEDS = range(20)


def run_of(seed: int) -> FinishedRun:
    rows = simulate(5, ("plain", "plain2"), seed)
    servings = [{**row, "config_hash": config_hash(CONFIG)} for row in rows["servings"]]
    return FinishedRun("a-a", CONFIG, {}, servings, rows["requests"], rows["steps"], rows["samples"])


@pytest.mark.parametrize("concurrency", [1, 2])
def test_two_plain_arms_are_controlled_and_not_told_apart(concurrency: int) -> None:
    verdicts, found = [], []
    for run in map(run_of, SEEDS):
        control = run.control("plain2", concurrency)
        assert control is not None
        verdicts.append(control.verdict)
        arms = run.within_sessions(run.measured(concurrency, ("code", "chat")))
        speedup = output_speedup(arms, "plain2", "plain", concurrency)
        assert isinstance(speedup, Speedup)
        assert speedup.grade == "claim"
        found.append(claims({"plain2": speedup}, "plain2", 0.0)["plain2"].kind)
    assert verdicts == ["CONTROLLED"] * len(SEEDS)
    assert found.count("no detected difference") >= 19
