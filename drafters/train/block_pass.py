"""The packed pass: blocks at many anchors of many texts at once, each seeing its own text before its anchor, and itself.

The rows of all blocks go through the linear maps together. Attention goes text by text, in two parts under one softmax: rows
over the text's context, masked at each block's anchor, and rows over their own block. So no key or value is copied for an
anchor, and no score between two blocks is ever computed.

Shape legend: A anchors, B block rows, S context rows of a text, N those of all texts, Q query heads, J key/value heads,
G = Q / J, D head size, M taps times H, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.dflash_config import DFlashConfig
from drafters.dflash_network import DFlashNetwork, Rotation
from drafters.layers import Rotary, inverse_frequencies
from drafters.train.block_batch import Blocks

# Longest text and block together: rotary tables are made once for so many positions.
_POSITIONS = 8192

Rule = tuple[bool, int | None]


class PackedPass:
    """What the network says to the rows of packed blocks. `scale_M` is what tapped channels are divided by."""

    def __init__(self, config: DFlashConfig, embedding_VH: Tensor) -> None:
        self.config, self.embedding_VH = config, embedding_VH
        self.rotary = Rotary(*inverse_frequencies(config.rope, config.head_dim), _POSITIONS, torch.float32)

    def states(self, network: DFlashNetwork, blocks: Blocks, scale_M: Tensor) -> Tensor:
        """States after the final norm, [A, B, H]."""
        context = network.context(blocks.context_NM / scale_M, self._tables(blocks.context_positions_N))
        attention = PackedAttention(self.config, blocks, context)
        x_ABH = self.embedding_VH[blocks.tokens_AB] * self.config.embedding_scale
        states: Tensor = network(x_ABH, self._tables(blocks.positions_AB), attention)
        return states

    def _tables(self, positions: Tensor) -> Rotation:
        return self.rotary.cos_LD[positions].unsqueeze(-2), self.rotary.sin_LD[positions].unsqueeze(-2)


@dataclass(frozen=True, slots=True)
class _Text:
    """Where one text's blocks and context are; for each rule additive masks over context [A, B, S] and in a block [B, B]."""

    blocks: slice
    context: slice
    masks: dict[Rule, tuple[Tensor, Tensor]]


class PackedAttention:
    """The `Attend` of `dflash_network` over packed blocks, by the causality and the window of each layer."""

    def __init__(self, config: DFlashConfig, blocks: Blocks, context: list[tuple[Tensor, Tensor]]) -> None:
        self.rules: list[Rule] = list(zip(config.causal, config.windows, strict=True))
        self.context = context
        self.texts: list[_Text] = []
        block, row = 0, 0
        for anchors, span in blocks.sizes:
            here = slice(block, block + anchors)
            masks = {rule: _masks(blocks.positions_AB[here], span, *rule) for rule in set(self.rules)}
            self.texts.append(_Text(here, slice(row, row + span), masks))
            block, row = block + anchors, row + span

    def __call__(self, layer: int, q_ABQD: Tensor, k_ABJD: Tensor, v_ABJD: Tensor) -> Tensor:
        return torch.cat([self._attend(layer, text, q_ABQD, k_ABJD, v_ABJD) for text in self.texts])

    def _attend(self, layer: int, text: _Text, q_ABQD: Tensor, k_ABJD: Tensor, v_ABJD: Tensor) -> Tensor:
        q_ABQD, k_ABJD, v_ABJD = (x[text.blocks] for x in (q_ABQD, k_ABJD, v_ABJD))
        past_k_JSD, past_v_JSD = (x[text.context].transpose(0, 1) for x in self.context[layer])
        past_mask_ABS, own_mask_BB = text.masks[self.rules[layer]]
        shared, span = k_ABJD.shape[2], past_k_JSD.shape[1]
        q_JGABD = (q_ABQD * q_ABQD.shape[-1] ** -0.5).unflatten(2, (shared, -1)).permute(2, 3, 0, 1, 4)
        rows = q_JGABD.shape[1:4]
        past = (q_JGABD.flatten(1, 3) @ past_k_JSD.mT).unflatten(1, rows) + past_mask_ABS
        own = q_JGABD @ k_ABJD.permute(2, 0, 3, 1).unsqueeze(1) + own_mask_BB
        weights = torch.cat((past, own), dim=-1).softmax(-1)
        out: Tensor = (weights[..., :span].flatten(1, 3) @ past_v_JSD).unflatten(1, rows)
        out = out + weights[..., span:] @ v_ABJD.permute(2, 0, 1, 3).unsqueeze(1)
        return out.permute(2, 3, 0, 1, 4).flatten(2, 3)


def _masks(positions_AB: Tensor, span: int, causal: bool, window: int | None) -> tuple[Tensor, Tensor]:
    """The rule of `block_cache.visible` for context before the anchor, and for the rows of a block among themselves."""
    before_A11 = positions_AB[:, :1, None]
    away_ABS = positions_AB[:, :, None] - torch.arange(span)
    past_ABS = (torch.arange(span) < before_A11).expand(away_ABS.shape)
    rows_B = torch.arange(positions_AB.shape[1])
    away_BB = rows_B[:, None] - rows_B
    own_BB = (away_BB >= 0) if causal else torch.ones_like(away_BB, dtype=torch.bool)
    if window is not None:
        past_ABS, own_BB = past_ABS & (away_ABS < window), own_BB & (away_BB.abs() < window)
    return _additive(past_ABS), _additive(own_BB)


def _additive(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
