"""Crossover, break-even and cause on measurements whose truth is known and whose noise is that of boots."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from harness.decompose import Decomposition, crossover_of, decompose
from harness.decompose_causes import cause
from harness.metrics.breakeven import Crossover
from harness.stats import Speedup, block_speedup

LEVELS = (1, 2, 4, 8, 16, 32)
MS = 1_000_000


def speedups(truth: float, slope: float, noise: float, blocks: int, draw: np.random.Generator) -> dict[int, Speedup]:
    """An arm whose log speedup falls by `slope` per doubling and is zero at the concurrency `truth`, seen over a few boots."""
    found = {}
    for level in LEVELS:
        log = -slope * (math.log2(level) - math.log2(truth))
        speedup = block_speedup(log + draw.normal(0, noise, blocks), 6)
        assert isinstance(speedup, Speedup)
        found[level] = speedup
    return found


@pytest.mark.parametrize("truth", [3.0, 8.0, 11.0])
def test_the_crossover_is_found_without_bias_and_its_interval_holds_it(truth: float) -> None:
    draw, held, logs = np.random.default_rng(int(truth)), 0, []
    for _ in range(400):
        got = crossover_of(speedups(truth, 0.25, 0.02, 5, draw))
        assert isinstance(got, Crossover)
        logs.append(math.log2(got.concurrency / truth))
        held += (got.low is None or got.low <= truth) and (got.high is None or truth <= got.high)
    assert abs(np.mean(logs)) < 0.02, "octaves"
    assert 0.93 <= held / 400 <= 1.0


def test_a_wider_scatter_gives_a_wider_interval_of_the_crossover() -> None:
    draw, widths = np.random.default_rng(0), {}
    for noise in (0.01, 0.04):
        found = [crossover_of(speedups(6.0, 0.25, noise, 5, draw)) for _ in range(100)]
        spans = [math.log2(x.high / x.low) for x in found if isinstance(x, Crossover) and x.low and x.high]
        assert len(spans) > 90
        widths[noise] = float(np.median(spans))
    assert 3 < widths[0.04] / widths[0.01] < 5


def steps(block: int, draw: np.random.Generator, noise: float, **parts: float) -> list[dict[str, Any]]:
    """Steps of one boot, of `parts` in ms; every step of a boot is slower or faster by the same share."""
    boot = MS * math.exp(draw.normal(0, noise))
    row = {f"{name}_ns": int(parts.get(name, 0.0) * boot) for name in ("draft", "verify", "sample")}
    total = int(sum(parts.get(name, 0.0) for name in ("draft", "verify", "sample", "other")) * boot)
    width = int(parts.get("width", 1))
    made = {"phase": "measured", "kind": "decode", "block": block, "requests": 1, "rows": width, "total_ns": total}
    # Tokens per step by their mean: ten steps of whole tokens.
    emitted = [int(parts["tokens"]) + (i < round(10 * (parts["tokens"] % 1))) for i in range(10)]
    return [{**made, **row, "emitted": n} for n in emitted]


PLAIN = {"verify": 20.0, "sample": 1.0, "other": 1.0, "tokens": 1.0}


def looked(arm: dict[str, float], seed: int, blocks: int = 5) -> Decomposition:
    draw = np.random.default_rng(seed)
    ours = [row for b in range(blocks) for row in steps(b, draw, 0.01, **arm)]
    theirs = [row for b in range(blocks) for row in steps(b, draw, 0.01, **PLAIN)]
    got = decompose(ours, theirs, [], 1, 4, 1.0)
    assert isinstance(got, Decomposition)
    return got


def test_the_break_even_length_is_found_and_its_interval_holds_it() -> None:
    arm = {"draft": 6.0, "verify": 26.0, "sample": 1.5, "other": 1.5, "tokens": 1.8, "width": 5}
    truth, held, found = 35 / 22, 0, []
    for seed in range(200):
        got = looked(arm, seed)
        assert isinstance(got.break_even, float)
        assert got.break_even_interval is not None
        found.append(got.break_even)
        held += got.break_even_interval[0] <= truth <= got.break_even_interval[1]
    assert np.mean(found) == pytest.approx(truth, rel=0.002)
    assert 0.90 <= held / 200 <= 0.99
    assert looked(arm | {"tokens": 1.7}, 0).measured.ratio > 1 > looked(arm | {"tokens": 1.5}, 0).measured.ratio


@pytest.mark.parametrize(
    ("kind", "arm"),
    [
        ("draft cost", {"draft": 30.0, "verify": 22.0, "sample": 1.0, "other": 1.0, "tokens": 1.6, "width": 5}),
        ("verify cost", {"draft": 2.0, "verify": 50.0, "sample": 1.0, "other": 1.0, "tokens": 1.6, "width": 5}),
        ("machinery", {"draft": 1.0, "verify": 22.0, "sample": 10.0, "other": 30.0, "tokens": 1.6, "width": 5}),
        ("acceptance", {"draft": 3.0, "verify": 24.0, "sample": 1.0, "other": 1.0, "tokens": 1.0, "width": 5}),
        ("memory traffic", {"draft": 2.0, "verify": 21.0, "sample": 1.0, "other": 1.0, "tokens": 2.5, "width": 5}),
    ],
)
def test_the_cause_stays_the_same_over_noisy_boots(kind: str, arm: dict[str, float]) -> None:
    assert {cause("arm", looked(arm, seed)).kind for seed in range(40)} == {kind}
