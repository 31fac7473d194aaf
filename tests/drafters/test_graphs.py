"""Captured passes: padding, buffers and shapes, with a stand-in for CUDA that runs the pass again on the held inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from drafters.dense import DenseTarget
from drafters.graphs import GraphPool, Result

CPU = torch.device("cpu")


class Rerun:
    """Replays by calling the captured function, whose inputs are the held tensors, and writing into the held results."""

    def __init__(self, function: Callable[[], Result], result: Result) -> None:
        self.function, self.result, self.replays = function, result, 0

    def replay(self) -> None:
        self.replays += 1
        for held, fresh in zip(self.result, self.function(), strict=True):
            if held is not None and fresh is not None:
                held.copy_(fresh)


def rerun(function: Callable[[], Result]) -> tuple[Rerun, Result]:
    result = function()
    return Rerun(function, result), result


@pytest.fixture
def target(checkpoint) -> DenseTarget:
    return DenseTarget(checkpoint("qwen3")[0], torch.float32, CPU, slots=6, max_length=400)


def test_off_cuda_nothing_is_captured_and_passes_run_eagerly(target):
    assert target.capture((1, 2, 4), (1, 4), ()) == 0
    assert target.graphs.padded(1, 1) is None


def test_every_shape_is_captured_before_anything_is_timed(target):
    target.graphs = GraphPool(CPU, rerun)
    assert target.capture((2, 4), (1, 4), ("final",)) == 2 * 2 * len(target._spans())
    before = len(target.graphs)
    target.forward([0, 3, 1], torch.tensor([[5], [6], [7]]), [1] * 3, last_only=False, taps=("final",))
    assert len(target.graphs) == before


@pytest.mark.parametrize(("slots", "width"), [([0], 1), ([1, 0, 4], 1), ([2, 5], 3), ([0, 1, 2, 3], 4)])
def test_a_captured_pass_equals_the_eager_one(checkpoint, target, slots, width):
    eager = DenseTarget(checkpoint("qwen3")[0], torch.float32, CPU, slots=6, max_length=400)
    target.graphs = GraphPool(CPU, rerun)
    target.capture((2, 4), (1, 4), (1,))
    prompt = torch.arange(2, 2 + 300).remainder(150).view(1, -1) + 2
    for model in (eager, target):
        for slot in slots:
            model.forward([slot], prompt + slot, [300], last_only=True)
            model.commit([slot], [280 - slot])
    for _ in range(3):
        tokens = torch.randint(2, 160, (len(slots), width))
        a = eager.forward(slots, tokens, [width] * len(slots), last_only=False, taps=(1,))
        b = target.forward(slots, tokens, [width] * len(slots), last_only=False, taps=(1,))
        assert torch.allclose(a.logits_RTV, b.logits_RTV, atol=1e-4)
        assert torch.allclose(a.hidden_RTM, b.hidden_RTM, atol=1e-4)
        for model in (eager, target):
            model.commit(slots, [width] * len(slots))


def test_a_pass_beyond_the_captured_shapes_runs_eagerly(target):
    target.graphs = GraphPool(CPU, rerun)
    target.graphs.use((1, 2), (1, 4))
    assert target.graphs.padded(3, 1) is None
    assert target.graphs.padded(2, 5) is None
    assert target.graphs.padded(2, 3) == (2, 4)
