"""The context of a block drafter: keys and values of committed tokens per slot, and what a block behind them may see.

Shape legend: R requests, T context rows per request, B block rows, S cached positions, Q query heads, J key/value heads,
G = Q / J, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafters.contract import Target
from drafters.dflash_config import DFlashConfig
from drafters.dflash_network import Attend, Rotation
from drafters.layers import Rotary, grouped_attention, inverse_frequencies
from drafters.slots import SlotCache, slot_index

# Rows behind the context limit of each slot, for blocks and for the padding of ragged context rows.
SCRATCH_ROWS = 64


class BlockCache:
    """`append` keeps context rows for good; a block is written behind them as scratch, which the next write overwrites."""

    def __init__(self, config: DFlashConfig, target: Target) -> None:
        self.config, self.device, self.dtype = config, target.device, target.dtype
        rows = target.max_length + max(SCRATCH_ROWS, config.block)
        frequencies, scaling = inverse_frequencies(config.rope, config.head_dim)
        self.rotary = Rotary(frequencies.to(self.device), scaling, rows, self.dtype)
        self.cache = SlotCache(config.layers, target.slots, rows, config.kv_heads, config.head_dim, self.dtype, self.device)

    def length(self, slot: int) -> int:
        return self.cache.lengths[slot]

    def positions(self, slots: Sequence[int], width: int) -> Tensor:
        """The positions [R, T] of the next `width` rows of each slot. Raises ValueError when a slot has no room for them."""
        lengths = [self.cache.lengths[slot] for slot in slots]
        if max(lengths) + width > self.cache.capacity:
            raise ValueError(f"draft slot overflow: {max(lengths)} + {width} rows in slots of {self.cache.capacity} tokens")
        return torch.tensor(lengths, device=self.device)[:, None] + torch.arange(width, device=self.device)

    def rotation(self, positions_RT: Tensor) -> Rotation:
        """Rotary tables [R, T, 1, D]."""
        return self.rotary.cos_LD[positions_RT].unsqueeze(-2), self.rotary.sin_LD[positions_RT].unsqueeze(-2)

    def append(
        self, slots: Sequence[int], positions_RT: Tensor, layers: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int]
    ) -> None:
        """Keys and values [R, T, J, D] of each layer; the first `counts[r]` rows of a request stay, the rest is padding."""
        rows = self._rows(slots, positions_RT)
        for layer, (k, v) in enumerate(layers):
            self.cache.write(layer, rows, torch.cat((k, v), dim=-2).flatten(0, 1))
        self.cache.commit(slots, counts)

    def attend(self, slots: Sequence[int], positions_RB: Tensor, widths: Sequence[int]) -> Attend:
        """How a block of `widths[r]` real rows per request attends: to its slot's context and, by each layer's rule, itself."""
        rows, where = self._rows(slots, positions_RB), slot_index(slots, self.device)
        span = max(self.cache.lengths[slot] for slot in slots) + positions_RB.shape[1]
        rules = list(zip(self.config.causal, self.config.windows, strict=True))
        masks = {rule: self._mask(positions_RB, widths, span, *rule) for rule in set(rules)}

        def attend(layer: int, q_RBQD: Tensor, k_RBJD: Tensor, v_RBJD: Tensor) -> Tensor:
            self.cache.write(layer, rows, torch.cat((k_RBJD, v_RBJD), dim=-2).flatten(0, 1))
            return grouped_attention(q_RBQD, *self.cache.read(layer, where, span), masks[rules[layer]])

        return attend

    def release(self, slot: int) -> None:
        self.cache.release(slot)

    @property
    def bytes(self) -> int:
        return self.cache.bytes

    def _rows(self, slots: Sequence[int], positions_RT: Tensor) -> Tensor:
        return self.cache.rows(torch.tensor(slots, device=self.device), positions_RT)

    def _mask(self, positions_RB: Tensor, widths: Sequence[int], span: int, causal: bool, window: int | None) -> Tensor:
        """Additive mask [R, 1, G * B, S] of `visible` for a block that ends after its real rows."""
        ends_R = positions_RB[:, 0] + torch.tensor(widths, device=self.device)
        visible_RBS = visible(positions_RB, torch.arange(span, device=self.device), ends_R, causal, window)
        zeros = torch.zeros(visible_RBS.shape, dtype=self.dtype, device=self.device)
        group = self.config.heads // self.config.kv_heads
        return zeros.masked_fill_(~visible_RBS, float("-inf")).repeat(1, group, 1).unsqueeze(1)


def visible(queries_RB: Tensor, keys_S: Tensor, ends_R: Tensor, causal: bool, window: int | None) -> Tensor:
    """Which key positions a block row sees, bool [R, B, S]: those before the block's end, within the rules.

    Causal: none behind itself. Window W: fewer than W positions away, in both directions. A row always sees itself, so that
    a padding row, which nobody reads, has a softmax that is no NaN.
    """
    away_RBS = queries_RB[:, :, None] - keys_S
    seen_RBS = (keys_S < ends_R[:, None, None]) & ((away_RBS >= 0) if causal else True)
    if window is not None:
        seen_RBS = seen_RBS & (away_RBS.abs() < window)
    return seen_RBS | (away_RBS == 0)
