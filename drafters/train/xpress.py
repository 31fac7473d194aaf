"""What the refiner of xPress learns: to correct each slot by the tokens before it in the block.

Training starts from a trained DFlash (`initial`). After as many Jacobi passes as there are slots, drafting is left-to-right
decoding, and a draft counts only as far as it is the text; so every slot is taught with the true tokens before it. The tables
are learned as maps of the target's own, W1 = E P and W2 = E' Q with E the embedding and E' the head: the correction is then a
term Q z beside the state that the head reads, nought at first. The export writes the tables out.

The refiner reads the mean over the block, which a smaller draft budget changes; so half of the updates draw the block's width.

Shape legend: A anchors, B block rows, L labelled rows, N rank, H hidden.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drafters.contract import Target
from drafters.dflash_config import DFlashConfig, family_size
from drafters.train.block_batch import Blocks
from drafters.train.dflash import CODE_STD, DFlashObjective, Stage
from drafters.train.objective import Example
from drafters.xpress import PUBLISHED, XPressNetwork

_OWNER = "refiner."


class XPressObjective(DFlashObjective):
    """`config` has `xpress_rank` and `xpress_mlp_hidden`, and what serving needs: `xpress_num_passes` and `xpress_topc`."""

    over_embedding: ClassVar[str | None] = "refiner.w1"
    over_head: ClassVar[str | None] = "refiner.w2"
    network: XPressNetwork

    def build(self, published: Mapping[str, Any], target: Target) -> XPressNetwork:
        rank, inner = family_size(published, "xpress_rank"), family_size(published, "xpress_mlp_hidden")
        # The tables of training have a row per channel, not per token.
        return XPressNetwork(DFlashConfig.read(published, target.num_layers), target.hidden_size, rank, inner)

    def initialise(self, examples: Sequence[Example]) -> None:
        super().initialise(examples)
        refiner = self.network.refiner
        for linear in (refiner.in_proj, refiner.gate, refiner.up, refiner.down):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        nn.init.normal_(refiner.w1, std=CODE_STD)
        nn.init.zeros_(refiner.w2)

    def width(self, stage: Stage, draw: random.Random) -> int:
        return stage.block if draw.random() < 0.5 else draw.randint(2, stage.block)

    def spoken(self, blocks: Blocks, states_ABH: Tensor) -> Tensor:
        refiner = self.network.refiner
        before_AB = torch.full_like(blocks.tokens_AB, self.config.mask_token)
        before_AB.view(-1)[blocks.row_L] = blocks.before_L
        before_AB[:, 0] = blocks.before_anchor_A
        states_AB2N = refiner.states(states_ABH, torch.ones_like(before_AB, dtype=torch.bool))
        z_ABN = refiner(states_AB2N, self.teacher.embedding_VH[before_AB] @ refiner.w1)
        return super().spoken(blocks, states_ABH + z_ABN @ refiner.w2.T)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config, tensors = super().export()
        return config, {_published(name): tensor for name, tensor in tensors.items()}


def _published(name: str) -> str:
    return PUBLISHED[name.removeprefix(_OWNER)][0] if name.startswith(_OWNER) else name
