"""Key/value slots: one fixed stretch of cache per running request, written in place, rewound by forgetting.

Shape legend: L layers, P slots, C capacity of a slot in tokens, J key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class SlotCache:
    """Keys and values of all layers, `[L, 2, P, J, C, D]`, and how many tokens of each slot are committed.

    Rows behind the committed length are scratch: a forward writes them, `commit` keeps some, the next forward overwrites the
    rest. So rejecting drafts costs nothing. Heads come before positions because attention then reads each head in one stretch.
    """

    def __init__(
        self, layers: int, slots: int, capacity: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots, self.capacity, self.kv_heads = slots, capacity, kv_heads
        self.data = zeros((layers, 2, slots, kv_heads, capacity, head_dim), dtype, device)
        self.lengths = [0] * slots
        # Views are made once and not again in every layer of every step.
        self._rows = [layer.flatten(0, 3) for layer in self.data]
        self._keys = [layer[0] for layer in self.data]
        self._values = [layer[1] for layer in self.data]

    def rows(self, slots_R: Tensor, positions_RT: Tensor) -> Tensor:
        """Where `write` puts the heads of these positions: for each row its J keys, then its J values, [N * 2 * J]."""
        heads = torch.arange(2 * self.kv_heads, device=slots_R.device)
        which, head = heads // self.kv_heads, heads % self.kv_heads
        stretch_R2J = (which * self.slots + slots_R[:, None]) * self.kv_heads + head
        return (stretch_R2J[:, None, :] * self.capacity + positions_RT[:, :, None]).flatten()

    def write(self, layer: int, rows: Tensor, kv_N2JD: Tensor) -> None:
        """Put keys and values of one layer, `[N, 2 * J, D]`, at the rows that `rows` gave."""
        self._rows[layer].index_copy_(0, rows, kv_N2JD.flatten(0, 1))

    def read(self, layer: int, slots: slice | Tensor, span: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, J, S, D]` of the first `span` positions: a view for a run of slots, a copy otherwise."""
        return self._keys[layer][slots, :, :span], self._values[layer][slots, :, :span]

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


def slot_index(slots: Sequence[int], device: torch.device) -> slice | Tensor:
    """A slice where the slots are a run (a view of the cache, no copy), else their indices."""
    first, count = slots[0], len(slots)
    if list(slots) == list(range(first, first + count)):
        return slice(first, first + count)
    return torch.tensor(slots, device=device)
