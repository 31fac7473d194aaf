"""Key/value slots: one fixed stretch of cache per running request, written in place, rewound by forgetting.

Shape legend: L layers, P slots, C capacity of a slot in tokens, J key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class SlotCache:
    """Keys and values of all layers, `[L, 2, P, C, J, D]`, and how many tokens of each slot are committed.

    Rows behind the committed length are scratch: a forward writes them, `commit` keeps some, the next forward overwrites the
    rest. So rejecting drafts costs nothing.
    """

    def __init__(
        self, layers: int, slots: int, capacity: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots, self.capacity = slots, capacity
        self.data = zeros((layers, 2, slots, capacity, kv_heads, head_dim), dtype, device)
        self.lengths = [0] * slots

    def write(self, layer: int, rows_N: Tensor, k_NJD: Tensor, v_NJD: Tensor) -> None:
        """Put keys and values at flat rows `slot * capacity + position`."""
        keys, values = self.data[layer].flatten(1, 2)
        keys.index_copy_(0, rows_N, k_NJD)
        values.index_copy_(0, rows_N, v_NJD)

    def read(self, layer: int, slots: slice | Tensor, span: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, S, J, D]` of the first `span` positions: a view for a run of slots, a copy otherwise."""
        keys, values = self.data[layer]
        return keys[slots, :span], values[slots, :span]

    def commit(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        for slot, count in zip(slots, counts, strict=True):
            self.lengths[slot] += count

    def release(self, slot: int) -> None:
        self.lengths[slot] = 0

    @property
    def bytes(self) -> int:
        return self.data.nbytes


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost no memory until they are written: on a CPU the pages come from calloc, so an unused slot is free.

    They must be zeros: a masked position still multiplies its value by 0, and 0 times garbage may be NaN.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
