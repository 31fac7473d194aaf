"""What DFlash 2 learns: DFlash's loss through its convolutions, and then the walk. (https://inco.ai/blog/dflash2/)

Training starts from a trained DFlash (`initial`). The convolutions begin as identity, so the first update finds DFlash as it
was, and need no loss of their own. From the share `selector` of training on, the candidate selector learns too: at every slot,
which of the block's own likeliest candidates is the target's, given the true token before it. The gradient goes on into the
block. The authors' recipe is not published; these are the choices that two open trainers, NeMo and speculators, share.

Where the target's token is not among the candidates, those trainers put it in the place of the last (`inject: true`). That is
right for a block that nearly always has it. Ours has it in two of three slots (`recall` in the curve). A selector that was
shown a gold in the last place every third time accepted less at the first position in serving, where nothing is injected, than
the block without it: presumably it had learned to distrust the block's order. Off, such slots teach the selector nothing, for
no choice would be right there.

The selector's codebooks hold a row per token. They are learned as maps of the target's own tables, A = E P and B = E' Q with E
the embedding and E' the head, so that tokens that training seldom meets learn from the others; the export writes the tables
out. Candidates are taken from those of the softmax (`soft`): the frequent tokens, the batch's, and a sample; serving takes them
from the whole vocabulary.

Shape legend: A anchors, B block rows, L labelled rows, C candidate tokens of the softmax, K those of a slot, N rank, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from drafters.contract import Target
from drafters.dflash2 import DFlash2Network, DynamicConv
from drafters.dflash_config import DFlashConfig, family_size
from drafters.train.block_batch import Blocks
from drafters.train.dflash import CODE_STD, DFlashObjective, Said, weighted_mean
from drafters.train.objective import Example, Teacher


class DFlash2Objective(DFlashObjective):
    """Sizes of convolutions and selector stand in `config.dflash_config`. Besides DFlash's, `options` has `selector`, the share
    of training before the selector learns, `selector_weight`, of its loss, and `inject`."""

    architecture: ClassVar[str] = "DFlash2DraftModel"
    over_embedding: ClassVar[str | None] = "candidate_selector.predecessor_codebook"
    over_head: ClassVar[str | None] = "candidate_selector.successor_codebook"
    network: DFlash2Network

    def __init__(
        self,
        target: Target,
        teacher: Teacher,
        examples: Sequence[Example],
        config: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(target, teacher, examples, config, options)
        self.selector_from, self.selector_weight = float(options["selector"]), float(options["selector_weight"])
        self.inject = bool(options["inject"])

    def build(self, published: Mapping[str, Any], target: Target) -> DFlash2Network:
        conv = family_size(published, "conv_kernel_size"), family_size(published, "conv_group_size")
        selector = family_size(published, "selector_rank"), family_size(published, "selector_top_k")
        # The codebooks of training have a row per channel, not per token.
        return DFlash2Network(DFlashConfig.read(published, target.num_layers), target.hidden_size, conv, selector)

    def initialise(self, examples: Sequence[Example]) -> None:
        """Convolutions are identity and the successor codebook is nought: DFlash."""
        super().initialise(examples)
        for module in self.network.modules():
            if isinstance(module, DynamicConv):
                nn.init.zeros_(module.base_kernel)
                nn.init.ones_(module.base_kernel[:, 0])
                nn.init.zeros_(module.kernel_projection.weight)
        nn.init.normal_(self.network.candidate_selector.predecessor_codebook, std=CODE_STD)
        nn.init.zeros_(self.network.candidate_selector.successor_codebook)

    def further(self, blocks: Blocks, states_ABH: Tensor, said: Said, progress: float) -> tuple[Tensor, dict[str, float]]:
        if progress < self.selector_from:
            return super().further(blocks, states_ABH, said, progress)
        columns_LK, place_L, there_L = injected(said, self.network.candidate_selector.candidates)
        scores_LK = self.scores(blocks, states_ABH, said, columns_LK)
        loss_L = F.cross_entropy(scores_LK, place_L, reduction="none")
        if not self.inject:
            loss_L = loss_L * there_L
        right_L = there_L & (scores_LK.argmax(-1) == place_L)
        shown = {"recall": float(there_L.float().mean()), "selected": float(right_L.float().mean())}
        return self.selector_weight * weighted_mean(loss_L, blocks.slot_L, self.options.decay), shown

    def scores(self, blocks: Blocks, states_ABH: Tensor, said: Said, columns_LK: Tensor) -> Tensor:
        """Logit and bilinear term of candidates behind the true token before each row, [L, K]."""
        selector = self.network.candidate_selector
        before_LN = self.teacher.embedding_VH[blocks.before_L] @ selector.predecessor_codebook
        gated_LN = before_LN * selector.hidden_projection(self.spoken(blocks, states_ABH))
        codes_CN = said.candidates.head_CH @ selector.successor_codebook
        followed_LK = (codes_CN[columns_LK] @ gated_LN.unsqueeze(-1)).squeeze(-1)
        scores: Tensor = said.logits_LC.gather(1, columns_LK) + followed_LK
        return scores


def injected(said: Said, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's likeliest columns [L, K] with the target's among them, its place [L], and whether it was there unasked [L]."""
    columns_LK = said.logits_LC.detach().topk(count, dim=-1).indices
    gold_L1 = said.gold.unsqueeze(-1)
    there_L = (columns_LK == gold_L1).any(-1)
    columns_LK[~there_L, -1] = gold_L1[~there_L, 0]
    return columns_LK, (columns_LK == gold_L1).int().argmax(-1), there_L
