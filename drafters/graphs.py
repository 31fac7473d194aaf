"""CUDA graphs: capture a pass once per shape and replay it. Where there is no CUDA, or none was asked for, nothing is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Result = tuple[Tensor, Tensor | None]
Pass = Callable[..., Result]


class Graph(Protocol):
    """What can replay: `torch.cuda.CUDAGraph`, or a stand-in in a test."""

    def replay(self) -> None: ...


Capture = Callable[[Callable[[], Result]], tuple[Graph, Result]]


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph with the tensors that it reads and writes."""

    graph: Graph
    inputs: tuple[Tensor, ...]
    result: Result


class GraphPool:
    """Captured passes by shape. Results are the graph's own tensors: use them before the next replay of the same shape.

    `batch_sizes` are the request counts to pad to; an empty list, or a device that is not CUDA, means eager execution.
    """

    def __init__(self, device: torch.device, batch_sizes: Sequence[int], capture: Capture | None = None) -> None:
        self._capture = capture or capture_cuda
        active = device.type == "cuda" or capture is not None
        self.batch_sizes = tuple(sorted(batch_sizes)) if active else ()
        self._captured: dict[tuple[object, ...], Captured] = {}

    def padded_batch(self, requests: int) -> int | None:
        """The smallest captured batch that holds this many requests; null when the pass must run eagerly."""
        return next((size for size in self.batch_sizes if size >= requests), None)

    def run(self, key: tuple[object, ...], function: Pass, inputs: tuple[Tensor, ...]) -> Result:
        """Replay the graph of this shape on these inputs, capturing it the first time."""
        if key not in self._captured:
            self._captured[key] = self._new(function, inputs)
        captured = self._captured[key]
        for held, given in zip(captured.inputs, inputs, strict=True):
            held.copy_(given)
        captured.graph.replay()
        return captured.result

    def _new(self, function: Pass, inputs: tuple[Tensor, ...]) -> Captured:
        held = tuple(x.clone() for x in inputs)
        graph, result = self._capture(lambda: function(*held))
        return Captured(graph, held, result)

    def __len__(self) -> int:
        return len(self._captured)


def capture_cuda(function: Callable[[], Result]) -> tuple[Graph, Result]:
    """Warm the pass up on a side stream (kernels load and workspaces allocate there), then capture it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result
