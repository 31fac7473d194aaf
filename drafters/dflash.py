"""DFlash: one pass over a block [anchor, MASK x K] proposes K tokens at once. (Chen et al. 2602.06036)

Per cycle, `observe` turns the tapped states of newly committed tokens into keys and values of every draft layer and keeps
them; `propose` runs the block behind them and takes the argmax of each slot. The block's own keys and values are scratch. So
the draft cache covers exactly the positions before the anchor, as the target's does.

Slots are marginals, each blind to what the others chose. Drawn independently they make incoherent blocks (1.16 accepted tokens
a step instead of 2.96: github.com/z-lab/dflash issue 169), so the proposal is the argmax at any temperature: a point mass.

Shape legend: R requests, T context rows per request, B block rows (the anchor first), K drafts, H hidden, M taps times H,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from drafters.block_cache import BlockCache
from drafters.contract import Draft, Tap, Target
from drafters.dflash_config import DFlashConfig, check_budget
from drafters.dflash_network import DFlashNetwork
from drafters.drafter_checkpoint import DrafterWeights, check_fits, load_into, read_drafter_config
from drafters.layers import Linear
from drafters.packing import pack

_LEFT_ALONE = ("t2d", r"verifier_(norm|lm_head)\.weight")  # copies of the target's that training kept beside the drafter


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How tokens come in and out. `ids_V` maps rows of a reduced head to token ids, or is null where they are the same."""

    embedding_VH: Tensor
    head: Callable[[Tensor], Tensor]
    ids_V: Tensor | None
    own_bytes: int

    def tokens(self, rows: Tensor) -> Tensor:
        return rows if self.ids_V is None else self.ids_V[rows]


class DFlashDrafter:
    """No options. The checkpoint is a folder in the published format; embedding and head are the target's if it has none."""

    options: ClassVar[frozenset[str]] = frozenset()
    anchor_first: ClassVar[bool] = False  # the family's rule for `sample_from_anchor`, where a config states none
    network: DFlashNetwork

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        if checkpoint is None:
            raise ValueError(f"checkpoint: {type(self).__name__} needs trained weights; set checkpoint.location")
        self.check_options(options)
        raw, weights = read_drafter_config(checkpoint), DrafterWeights(checkpoint, target.dtype, target.device)
        check_fits(raw, target)
        with torch.device("meta"):  # parameters are replaced by the checkpoint's, so none is made
            self.network = self.build(raw, target.num_layers)
        self.config: DFlashConfig = self.network.config
        self.taps: tuple[Tap, ...] = self.config.taps
        self.max_budget = self.config.drafts
        load_into(self.network, weights, lambda parameter: self.tensor_name(parameter, weights.names))
        self.vocabulary = read_vocabulary(target, weights, self.config)
        weights.finish(_LEFT_ALONE)
        self._weight_bytes = pack(self.network) + self.vocabulary.own_bytes
        self.cache = BlockCache(self.config, target)
        self.anchors: dict[int, int] = {}
        self._mask_H = self.vocabulary.embedding_VH[self.config.mask_token]

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        for name in sorted(set(options) - cls.options):
            known = ", ".join(sorted(cls.options)) or "none"
            raise ValueError(f"options.{name}: {cls.__name__} has no such option; known: {known}")

    def build(self, raw: Mapping[str, Any], target_layers: int) -> DFlashNetwork:
        """The network of a flat config, to be filled."""
        return DFlashNetwork(DFlashConfig.read(raw, target_layers, self.anchor_first))

    def tensor_name(self, parameter: str, published: frozenset[str]) -> str:
        """Which of the published tensors fills a parameter of the network."""
        return parameter

    @torch.inference_mode()
    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        if hidden_RTM is None:
            raise ValueError(f"{type(self).__name__}: the target gave no tapped states; it must honour taps {self.taps}")
        positions_RT = self.cache.positions(slots, hidden_RTM.shape[1])
        layers = self.network.context(hidden_RTM, self.cache.rotation(positions_RT))
        self.cache.append(slots, positions_RT, layers, counts)
        for slot, row, count in zip(slots, tokens_RT.tolist(), counts, strict=True):
            self.anchors[slot] = row[count - 1]

    @torch.inference_mode()
    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        lengths = [max(budget, 0) for budget in budgets]
        drafts = max(lengths, default=0)
        if drafts == 0:
            return None
        check_budget(drafts, self.config.block, self.max_budget)
        anchors_R = torch.tensor([self.anchors[slot] for slot in slots], device=self.cache.device)
        return self.choose(slots, self.states(slots, anchors_R, lengths), anchors_R, lengths)

    def states(self, slots: Sequence[int], anchors_R: Tensor, lengths: Sequence[int]) -> Tensor:
        """One block pass: states after the final norm [R, B, H], for as many rows as the longest draft needs.

        A request's own block ends where its draft does, whatever its neighbours ask for.
        """
        anchor_rows = 0 if self.config.sample_from_anchor else 1
        widths = [max(length + anchor_rows, 1) for length in lengths]
        positions_RB = self.cache.positions(slots, max(widths))
        masks_RBH = self._mask_H.expand(len(slots), max(widths) - 1, -1)
        block_RBH = torch.cat((self.vocabulary.embedding_VH[anchors_R].unsqueeze(1), masks_RBH), dim=1)
        attend = self.cache.attend(slots, positions_RB, widths)
        hidden: Tensor = self.network(block_RBH * self.config.embedding_scale, self.cache.rotation(positions_RB), attend)
        return hidden

    def choose(self, slots: Sequence[int], hidden_RBH: Tensor, anchors_R: Tensor, lengths: list[int]) -> Draft | None:
        """The draft that the states of a block lead to."""
        rows = self.logits(self.predicting(hidden_RBH)).argmax(-1)
        return Draft(self.vocabulary.tokens(rows), lengths)

    def predicting(self, hidden_RBH: Tensor) -> Tensor:
        """The rows that predict drafts [R, K, H]. A mask's row predicts its own position; the anchor's row nothing, unless
        `sample_from_anchor`, where each row predicts the position behind it."""
        return hidden_RBH if self.config.sample_from_anchor else hidden_RBH[:, 1:]

    def logits(self, hidden_RKH: Tensor) -> Tensor:
        return self.network.transform(self.vocabulary.head(hidden_RKH))

    def release(self, slot: int) -> None:
        self.cache.release(slot)
        self.anchors.pop(slot, None)

    def memory(self) -> dict[str, int]:
        """Bytes: `weights` without what is the target's, `state` for keys and values of all slots."""
        return {"weights": self._weight_bytes, "state": self.cache.bytes}


def read_vocabulary(target: Target, weights: DrafterWeights, config: DFlashConfig) -> Vocabulary:
    """The checkpoint's own embedding and head where it has them, else the target's. `d2t` holds offsets to token ids."""
    embedding = weights.optional("embed_tokens.weight", (target.vocab_size, config.hidden))
    head = weights.optional("lm_head.weight", (None, config.hidden))
    rows = target.vocab_size if head is None else head.shape[0]
    offsets = weights.optional("d2t", (rows,))
    if offsets is None and rows != target.vocab_size:
        raise ValueError(f"{weights.folder}: lm_head.weight has {rows} rows for {target.vocab_size} tokens and there is no d2t")
    table = target.embedding if embedding is None else embedding
    if config.mask_token >= len(table):
        raise ValueError(f"config.json: mask_token_id {config.mask_token} is outside the vocabulary of {len(table)} tokens")
    ids = None if offsets is None else torch.arange(rows, device=offsets.device) + offsets
    own = sum(tensor.nbytes for tensor in (embedding, head, offsets) if tensor is not None)
    return Vocabulary(table, target.head if head is None else Linear(head), ids, own)
