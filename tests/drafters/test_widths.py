"""The width sweep: passes of the asked shapes, over committed text, that leave nothing behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from drafters.dense import DenseTarget
from drafters.widths import WidthTime, sweep_widths

CPU = torch.device("cpu")
TEXTS = [list(range(3, 33)), list(range(5, 30))]


@pytest.fixture
def target(checkpoint):
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=3, max_length=64)


class Watched:
    """A target that keeps the shapes of its passes."""

    def __init__(self, target: DenseTarget) -> None:
        self._target, self.passes = target, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, slots: Sequence[int], tokens: torch.Tensor, *rest: Any) -> Any:
        self.passes.append((len(slots), tokens.shape[1], [self._target.length(s) for s in slots]))
        return self._target.forward(slots, tokens, *rest)


def test_every_width_is_timed_in_every_round_over_the_same_context(target):
    watched = Watched(target)
    times = sweep_widths(watched, TEXTS, range(1, 8), 3, chunk=10)
    assert Counter((t.width, t.round) for t in times) == {(w, r): 1 for w in range(1, 8) for r in range(3)}
    assert {(t.requests, t.context_tokens) for t in times} == {(2, 23 + 18)}
    assert all(t.verify_ns > 0 for t in times)
    wide = [p for p in watched.passes if p[0] == 2]
    assert len(wide) == 7 + 21
    assert all(lengths == [23, 18] for _, _, lengths in wide)


def test_rounds_start_at_different_widths(target):
    times = sweep_widths(target, TEXTS, range(1, 7), 3, chunk=10)
    starts = [next(t.width for t in times if t.round == r) for r in range(3)]
    assert starts == [1, 3, 5]


def test_the_slots_are_free_afterwards_also_when_it_fails(target):
    sweep_widths(target, TEXTS, (1, 5), 1, chunk=64)
    assert [target.length(s) for s in range(3)] == [0, 0, 0]
    with pytest.raises(IndexError):
        sweep_widths(target, [[160] * 30], (1, 5), 1, chunk=64)  # no token of this vocabulary
    assert [target.length(s) for s in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("texts", "said"),
    [(TEXTS * 2, "4 requests asked of 3 slots"), ([[1, 2, 3]], "need more than 5"), ([[1] * 70], "at most 64")],
)
def test_texts_that_do_not_fit_are_refused(target, texts, said):
    with pytest.raises(ValueError, match=said):
        sweep_widths(target, texts, (1, 5), 1, chunk=64)


def test_a_slower_wide_pass_is_seen(target):
    """A target that sleeps per row: the sweep must order the widths as the sleep does."""

    class Slow(Watched):
        def forward(self, slots: Sequence[int], tokens: torch.Tensor, *rest: Any) -> Any:
            import time

            time.sleep(0.004 * tokens.shape[1])
            return super().forward(slots, tokens, *rest)

    times: list[WidthTime] = sweep_widths(Slow(target), TEXTS, (1, 5), 2, chunk=64)
    fastest = {w: min(t.verify_ns for t in times if t.width == w) for w in (1, 5)}
    assert fastest[5] > fastest[1] + 10_000_000
