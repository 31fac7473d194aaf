"""CUDA graphs: capture a pass once per shape and replay it. Without CUDA nothing is captured and passes run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
    """Captured passes by shape. Results are the graph's own tensors: use them before the next replay.

    Off CUDA the pool stays empty, whatever shapes it is given, and passes run eagerly.
    """

    def __init__(self, device: torch.device, capture: Capture | None = None) -> None:
        self._capture = capture or CudaCapture()
        self._active = device.type == "cuda" or capture is not None
        self.batch_sizes: tuple[int, ...] = ()
        self.widths: tuple[int, ...] = ()
        self._captured: dict[tuple[object, ...], Captured] = {}

    def use(self, batch_sizes: Sequence[int], widths: Sequence[int]) -> None:
        """From now on pad passes to these request counts and row widths."""
        if self._active:
            self.batch_sizes, self.widths = tuple(sorted(set(batch_sizes))), tuple(sorted(set(widths)))

    def padded(self, requests: int, width: int) -> tuple[int, int] | None:
        """The smallest captured shape that holds this pass; null when it must run eagerly."""
        size = next((s for s in self.batch_sizes if s >= requests), None)
        wide = next((w for w in self.widths if w >= width), None)
        return (size, wide) if size and wide else None

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


class CudaCapture:
    """Warm a pass up on a side stream (kernels load and workspaces allocate there), then capture it. Graphs share one pool."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, function: Callable[[], Result]) -> tuple[Graph, Result]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = function()
        self._pool = graph.pool()
        return graph, result
