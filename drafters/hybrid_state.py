"""Committed caches of one slot, how several are stacked into one batch, and what is kept of a pass.

A slot's state is a list of transformers cache layers of batch 1 that no pass ever writes to: `stack` copies what a pass changes
in place and shares what it replaces. So the state before a pass is its own snapshot, and a rejected pass costs nothing.

Shape legend: G slots in one pass, L committed rows, N key/value heads, D head size. Attention keys and values are [G, N, L, D],
right-aligned; recurrent states have no row axis, so they can only be kept whole (`states`) and never cropped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers import cache_utils as hf

Layers = list[Any]
States = list[dict[str, dict[int, Tensor]]]

_ROWS = ("keys", "values")
_STATES = ("conv_states", "recurrent_states")
_FLAGS = ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state", "conv_kernel_size")
# By name, as releases of transformers differ in which of them exist.
_KNOWN = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
    "DummyLayer",
}


@dataclass(frozen=True, slots=True)
class SlotState:
    """What a slot has committed: `length` rows, held by `layers` (batch 1)."""

    layers: Layers
    length: int


def blank(config: Any) -> SlotState:
    """An empty state for a text config. ValueError when a layer keeps a cache that cannot be rolled back."""
    layers: Layers = list(DynamicCache(config=config).layers)
    for index, layer in enumerate(layers):
        kind = type(layer).__name__
        if kind not in _KNOWN:
            raise ValueError(
                f"{config.model_type}: layer {index} caches as {kind}, which cannot be rolled back; pick another target"
            )
    return SlotState(layers, 0)


def is_recurrent(layers: Layers) -> bool:
    """Whether any layer has a state that rows cannot be cropped from."""
    return any(hasattr(layer, "recurrent_states") for layer in layers)


def has_rows(layers: Layers) -> bool:
    """Whether any layer attends to cached rows, so that unequal lengths need a mask."""
    return any(isinstance(layer, hf.DynamicLayer) for layer in layers)


def stack(states: Sequence[SlotState]) -> hf.Cache:
    """One cache of batch G over the slots, rows padded on the left; the slots' own layers stay untouched.

    Rows are appended by concatenation, which makes new tensors; recurrent states are written in place, hence copied here.
    """
    widest = max(state.length for state in states)
    return hf.Cache(layers=[_stack(list(parts), widest) for parts in zip(*(s.layers for s in states), strict=True)])


def _stack(parts: Layers, widest: int) -> Any:
    layer = copy.copy(parts[0])
    for name in _ROWS:
        if getattr(layer, name, None) is not None:
            setattr(layer, name, _align_right([getattr(part, name) for part in parts]))
    for name in _STATES:
        if hasattr(layer, name):
            setattr(layer, name, {i: _join([getattr(part, name)[i] for part in parts]) for i in getattr(layer, name)})
    for name in _FLAGS:
        if hasattr(layer, name):
            setattr(layer, name, dict(getattr(layer, name)))
    if isinstance(layer, hf.DynamicSlidingWindowLayer):
        # Without the record, the layer forgets rows that a rollback needs as soon as the window is full.
        layer.record_past = True
        layer.cumulative_length = widest
    return layer


def _align_right(rows: Sequence[Tensor]) -> Tensor:
    if len(rows) == 1:
        return rows[0]
    widest = max(row.shape[-2] for row in rows)
    return torch.cat([torch.nn.functional.pad(row, (0, 0, widest - row.shape[-2], 0)) for row in rows])


def _join(tensors: Sequence[Tensor | None]) -> Tensor | None:
    real = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(real) if real else None


def states(layers: Layers) -> States:
    """A copy of every recurrent state of a pass as it stands now, batch G."""
    return [
        {name: {i: t.clone() for i, t in getattr(layer, name, {}).items() if t is not None} for name in _STATES}
        for layer in layers
    ]


def take(layers: Layers, row: int, before: int, ran: int, count: int, snapshot: States | None) -> SlotState:
    """The state of batch row `row` after the first `count` of the `ran` rows of a pass over `before` committed ones.

    Recurrent states come from `snapshot`, or, when null, from the end of the pass: then `count` must be `ran`.
    """
    kept = [_take(layer, row, before, ran, count) for layer in layers]
    for index, layer in enumerate(kept):
        for name in _STATES:
            if hasattr(layer, name):
                source = getattr(layer, name) if snapshot is None else snapshot[index][name]
                setattr(layer, name, {i: None if t is None else t[row : row + 1] for i, t in source.items()})
    return SlotState(kept, before + count)


def _take(layer: Any, row: int, before: int, ran: int, count: int) -> Any:
    kept = copy.copy(layer)
    held = before + count
    if isinstance(layer, hf.DynamicSlidingWindowLayer):
        held = min(held, layer.sliding_window - 1)  # All that the next row's window reaches back to.
    for name in _ROWS:
        rows = getattr(layer, name, None)
        if rows is not None:
            end = rows.shape[-2] - ran + count
            setattr(kept, name, rows[row : row + 1, :, end - held : end])
    return kept


def tensors(layers: Layers) -> Iterator[Tensor]:
    """Every tensor that the layers hold; views of one storage come one by one."""
    for layer in layers:
        yield from (rows for name in _ROWS if (rows := getattr(layer, name, None)) is not None)
        yield from (state for name in _STATES for state in getattr(layer, name, {}).values() if state is not None)
