"""xPress: DFlash's block with a small causal refiner, which makes the slots one text by a few Jacobi passes.

    g = mean over the block of h_k                                     the anchor's row included
    z_k = W_in [D_h h_k; D_g g; W1[prev_k]]                            prev_k the token before slot k, as far as it is known
    z_k <- z_k + sum_{j <= k} L[c, k, j] z_{j, c}                      per channel, over the block
    z_k <- z_k + down(silu(gate z_k) up z_k)
    logits_k = U_k + W2 z_k                                            U the block's own logits

Pass 0 is the argmax of U. Each further pass rescores all slots at once with the tokens of the pass before, so after p passes
the first p drafts are those of left-to-right decoding. With `xpress_topc`, only so many of a slot's candidates are scored.
The anchor is slot 0: its row is mixed and then dropped. The token before it stands in `prev_0`, as in training.

Shape legend: R requests, B block rows, K = B - 1 drafts, H hidden, N rank, C candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.contract import Draft, Target
from drafters.dflash import DFlashDrafter
from drafters.dflash_config import DFlashConfig, family_size, value_of
from drafters.dflash_network import DFlashNetwork
from drafters.drafter_checkpoint import size_of

# The refiner's parameters in our module, and their published names in vLLM's and in the speculators format.
PUBLISHED = {
    "w1": ("xpress_head.w1", "refiner_head.token_embed"),
    "w2": ("xpress_head.w2", "refiner_head.readout"),
    "mix": ("xpress_head.mix.L", "refiner_head.mix_l"),
    "down_h.weight": ("xpress_head.down_h", "refiner_head.down_h"),
    "down_g.weight": ("xpress_head.down_g", "refiner_head.down_g"),
    "in_proj.weight": ("xpress_head.in_proj", "refiner_head.in_proj"),
    "gate.weight": ("xpress_head.mlp.gate_proj", "refiner_head.mlp_gate"),
    "up.weight": ("xpress_head.mlp.up_proj", "refiner_head.mlp_up"),
    "down.weight": ("xpress_head.mlp.down_proj", "refiner_head.mlp_down"),
}
_WHOLE = "the refiner of xPress spans the whole vocabulary; use a checkpoint without a reduced head"


class Refiner(nn.Module):
    """From the states of a block and the tokens before its slots to corrections of rank N."""

    def __init__(self, vocabulary: int, hidden: int, rank: int, inner: int, block: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(vocabulary, rank))
        self.w2 = nn.Parameter(torch.empty(vocabulary, rank))
        self.mix = nn.Parameter(torch.empty(rank, block, block))
        self.down_h, self.down_g = nn.Linear(hidden, rank, bias=False), nn.Linear(hidden, rank, bias=False)
        self.in_proj = nn.Linear(3 * rank, rank, bias=False)
        self.gate, self.up = nn.Linear(rank, inner, bias=False), nn.Linear(rank, inner, bias=False)
        self.down = nn.Linear(inner, rank, bias=False)

    def states(self, hidden_RBH: Tensor, real_RB: Tensor) -> Tensor:
        """What no pass changes, [R, B, 2 N]: each slot's state and the block's mean over its real rows."""
        weight_RB1 = (real_RB / real_RB.sum(1, keepdim=True)).unsqueeze(-1).to(hidden_RBH.dtype)
        mean_R1H = (hidden_RBH * weight_RB1).sum(1, keepdim=True)
        return torch.cat((self.down_h(hidden_RBH), self.down_g(mean_R1H).expand(-1, hidden_RBH.shape[1], -1)), dim=-1)

    def forward(self, states_RB2N: Tensor, before_RBN: Tensor) -> Tensor:
        """Corrections [R, B, N] of all slots, given the row of `w1` of the token before each."""
        z_RBN = self.in_proj(torch.cat((states_RB2N, before_RBN), dim=-1))
        rows = z_RBN.shape[1]
        z_RBN = z_RBN + torch.einsum("nkj,rjn->rkn", self.mix[:, :rows, :rows].tril(), z_RBN)
        out: Tensor = z_RBN + self.down(F.silu(self.gate(z_RBN)) * self.up(z_RBN))
        return out


class XPressNetwork(DFlashNetwork):
    """The DFlash network and its refiner."""

    def __init__(self, config: DFlashConfig, vocabulary: int, rank: int, inner: int) -> None:
        super().__init__(config)
        self.refiner = Refiner(vocabulary, config.hidden, rank, inner, config.block)


class XPressDrafter(DFlashDrafter):
    """No options. The number of passes and `xpress_topc` are the checkpoint's; a `xpress_topc` of 0 scores all tokens."""

    network: XPressNetwork

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        super().__init__(target, options, checkpoint)
        if self.vocabulary.ids_V is not None:
            raise ValueError(f"d2t: {_WHOLE}")
        self._before: dict[int, int] = {}

    def build(self, raw: Mapping[str, Any], target_layers: int) -> XPressNetwork:
        config = DFlashConfig.read(raw, target_layers, projector="xpress")
        if raw.get("draft_vocab_size") not in (None, raw.get("vocab_size")):
            raise ValueError(f"config.json: draft_vocab_size {raw['draft_vocab_size']}: {_WHOLE}")
        if config.sample_from_anchor:
            raise ValueError("config.json: sample_from_anchor is true, and xPress fills in masks; it must be false")
        # vLLM's keys come first; those of speculators stand in their place where it saved the checkpoint.
        self.passes = family_size(raw, "xpress_num_passes", family_size(raw, "num_jacobi_passes", 6))
        vocabulary = size_of(raw, "vocab_size")
        self.candidates = min(int(value_of(raw, "xpress_topc", 512)) or vocabulary, vocabulary)
        rank = family_size(raw, "xpress_rank", 256)
        inner = family_size(raw, "xpress_mlp_hidden", rank * family_size(raw, "xpress_mlp_ratio", 2))
        return XPressNetwork(config, vocabulary, rank, inner)

    def tensor_name(self, parameter: str, published: frozenset[str]) -> str:
        """A refiner's tensor has one of two names, with or without `.weight`."""
        owner, _, own = parameter.partition(".")
        if owner != "refiner":
            return parameter
        names = [name + ending for name in PUBLISHED[own] for ending in (".weight", "")]
        return next((name for name in names if name in published), names[0])

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        for slot, row, count in zip(slots, tokens_RT.tolist(), counts, strict=True):
            # Behind one token alone, what stood before it is the anchor of the step before, or was never told.
            self._before[slot] = row[count - 2] if count > 1 else self.anchors.get(slot, row[0])
        super().observe(slots, hidden_RTM, tokens_RT, counts)

    def choose(self, slots: Sequence[int], hidden_RBH: Tensor, anchors_R: Tensor, lengths: list[int]) -> Draft:
        refiner = self.network.refiner
        top = self.logits(self.predicting(hidden_RBH))[..., : len(refiner.w2)].topk(self.candidates, dim=-1)
        known_R2 = torch.stack(
            (torch.tensor([self._before[slot] for slot in slots], device=anchors_R.device), anchors_R), dim=1
        )
        ends_R1 = torch.tensor(lengths, device=anchors_R.device).unsqueeze(1)
        states_RB2N = refiner.states(hidden_RBH, torch.arange(hidden_RBH.shape[1], device=anchors_R.device) <= ends_R1)
        codes_RKCN = refiner.w2[top.indices]
        tokens_RK = top.indices[..., 0]
        for _ in range(min(self.passes, tokens_RK.shape[1])):
            z_RKN = refiner(states_RB2N, refiner.w1[torch.cat((known_R2, tokens_RK[:, :-1]), dim=1)])[:, 1:]
            best_RK1 = (top.values + (codes_RKCN @ z_RKN.unsqueeze(-1)).squeeze(-1)).argmax(-1, keepdim=True)
            tokens_RK = top.indices.gather(-1, best_RK1).squeeze(-1)
        return Draft(tokens_RK, lengths)

    def release(self, slot: int) -> None:
        super().release(slot)
        self._before.pop(slot, None)
