"""What DSpark learns: a block whose slots read the token before them, and how likely each draft is to be accepted.

Training starts from a trained DFlash (`initial`). The bigram bias W2 W1[x] is learned through maps of the target's own tables,
W1 = E P and W2 = E' Q with E the embedding and E' the head, so it is a term Q P' E[x] beside the state that the head reads;
the export writes both tables out. It begins as nought, and reads the true token before each slot. The slots stay where
DFlash has them (`sample_from_anchor` false), so that the block goes on as it was.

The confidence of a slot is taught whether its likeliest token is the target's, given that all before it were right. It reads
the block's states and changes none of them.

Shape legend: A anchors, B block rows, L labelled rows, N rank, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.contract import Target
from drafters.dflash_config import DFlashConfig, family_size
from drafters.dspark import DSparkNetwork
from drafters.train.block_batch import Blocks
from drafters.train.dflash import CODE_STD, DFlashObjective, Said, weighted_mean
from drafters.train.objective import Example, Teacher


class DSparkObjective(DFlashObjective):
    """`config` has `markov_rank`; `options` has `confidence_weight`, of its loss, besides those of DFlash."""

    architecture: ClassVar[str] = "Qwen3DSparkModel"
    over_embedding: ClassVar[str | None] = "markov_head.markov_w1.weight"
    over_head: ClassVar[str | None] = "markov_head.markov_w2.weight"
    network: DSparkNetwork

    def __init__(
        self,
        target: Target,
        teacher: Teacher,
        examples: Sequence[Example],
        config: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        fixed = {"sample_from_anchor": False, "enable_confidence_head": True, "confidence_head_with_markov": True}
        super().__init__(target, teacher, examples, {**config, **fixed, "markov_head_type": "vanilla"}, options)
        self.confidence_weight = float(options["confidence_weight"])

    def build(self, published: Mapping[str, Any], target: Target) -> DSparkNetwork:
        config = DFlashConfig.read(published, target.num_layers, anchor_first=True)
        # The tables of training have a row per channel, not per token.
        rows = target.hidden_size
        return DSparkNetwork(config, rows, rows, family_size(published, "markov_rank"), confidence=True)

    def initialise(self, examples: Sequence[Example]) -> None:
        super().initialise(examples)
        nn.init.normal_(self.network.markov_head.markov_w1.weight, std=CODE_STD)
        nn.init.zeros_(self.network.markov_head.markov_w2.weight)

    def spoken(self, blocks: Blocks, states_ABH: Tensor) -> Tensor:
        biased: Tensor = super().spoken(blocks, states_ABH) + self.network.markov_head.markov_w2(self._codes(blocks))
        return biased

    def _codes(self, blocks: Blocks) -> Tensor:
        """W1 of the true token before each row, [L, N]."""
        codes: Tensor = self.teacher.embedding_VH[blocks.before_L] @ self.network.markov_head.markov_w1.weight
        return codes

    def further(self, blocks: Blocks, states_ABH: Tensor, said: Said, progress: float) -> tuple[Tensor, dict[str, float]]:
        head = self.network.confidence_head
        assert head is not None
        read_L = torch.cat((super().spoken(blocks, states_ABH), self._codes(blocks)), dim=-1).detach()
        chance_L, right_L = head(read_L), said.right.float()
        loss_L = F.binary_cross_entropy(chance_L, right_L, reduction="none")
        shown = {"confidence": float(chance_L.detach().mean()), "brier": float((chance_L.detach() - right_L).pow(2).mean())}
        return self.confidence_weight * weighted_mean(loss_L, blocks.slot_L, self.options.decay), shown
