"""DFlash 2: DFlash with a two-tap dynamic convolution around every sublayer and a walk through candidates instead of argmaxes.

The convolution lets a slot read its left neighbour inside the block, with weights made from the sublayer's own input u:

    D = W_kp u, for each row [2 sides, taps, H / group]        side 0 before the sublayer, side 1 behind it
    conv_s(z)[t, c] = sum_tau (base[s, tau, c] + D[t, s, tau, group of c]) z[t - tau, c]         z[t - tau] = 0 before the block
    x = x + conv_1(sublayer(conv_0(u)))

Both sides take D from u, before the first convolution. Injected context passes no convolution. With W_kp = 0 and base = [1, 0]
this is DFlash; with a zero successor table the walk is DFlash's argmax. (https://inco.ai/blog/dflash2/; names as published.)

Shape legend: B rows of a block, H hidden, N channel groups, R requests, K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.contract import Draft, Target
from drafters.dflash import DFlashDrafter
from drafters.dflash_config import DFlashConfig, family_size
from drafters.dflash_network import DFlashLayer, DFlashNetwork
from drafters.draft_sampling import OPTIONS, DraftSampling
from drafters.drafter_checkpoint import size_of
from drafters.lattice import CandidateSelector, scattered, walk


class DynamicConv(nn.Module):
    """The convolutions before and behind one sublayer. `kernel_projection` makes the corrections of both at once."""

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        if hidden % group:
            raise ValueError(f"config.json: conv_group_size {group} must divide hidden_size {hidden}")
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.empty(2, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * (hidden // group), bias=False)

    def forward(self, u_BH: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        before, behind = self.kernel_projection(u_BH).unflatten(-1, (2, self.taps, -1)).unbind(-3)
        return self._convolve(1, sublayer(self._convolve(0, u_BH, before)), behind)

    def _convolve(self, side: int, z_BH: Tensor, dynamic_BTN: Tensor) -> Tensor:
        kernel_BTH = self.base_kernel[side] + dynamic_BTN.repeat_interleave(self.group, dim=-1)
        out = kernel_BTH[..., 0, :] * z_BH
        for tau in range(1, min(self.taps, z_BH.shape[-2])):
            out = out + kernel_BTH[..., tau, :] * F.pad(z_BH[..., :-tau, :], (0, 0, tau, 0))
        return out


class DFlash2Network(DFlashNetwork):
    """The DFlash network with convolutions in its layers, and the selector's tables."""

    def __init__(self, config: DFlashConfig, vocabulary: int, conv: tuple[int, int], selector: tuple[int, int]) -> None:
        """`conv` is (taps, channels per group), `selector` is (rank, candidates)."""
        super().__init__(config)
        for layer in self.layers:
            assert isinstance(layer, DFlashLayer)
            layer.attention_conv = DynamicConv(config.hidden, *conv)
            layer.mlp_conv = DynamicConv(config.hidden, *conv)
        self.candidate_selector = CandidateSelector(vocabulary, config.hidden, *selector)


class DFlash2Drafter(DFlashDrafter):
    """Options of `DraftSampling`: whether the walk takes the best candidates or is drawn."""

    options: ClassVar[frozenset[str]] = OPTIONS
    network: DFlash2Network

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        super().__init__(target, options, checkpoint)
        if self.vocabulary.ids_V is not None:
            raise ValueError(
                "d2t: the selector of DFlash 2 spans the whole vocabulary; use a checkpoint without a reduced head"
            )
        self.sampling = DraftSampling(options)

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        super().check_options(options)
        DraftSampling(options)

    def build(self, raw: Mapping[str, Any], target_layers: int) -> DFlash2Network:
        conv = family_size(raw, "conv_kernel_size"), family_size(raw, "conv_group_size")
        selector = family_size(raw, "selector_rank"), family_size(raw, "selector_top_k")
        return DFlash2Network(DFlashConfig.read(raw, target_layers), size_of(raw, "vocab_size"), conv, selector)

    def choose(self, slots: Sequence[int], hidden_RBH: Tensor, anchors_R: Tensor, lengths: list[int]) -> Draft:
        hidden_RKH = self.predicting(hidden_RBH)
        logits_RKV = self.logits(hidden_RKH)
        selector = self.network.candidate_selector
        # A target's table may be padded beyond the tokens that there are; those have no codes.
        known_RKV = logits_RKV[..., : len(selector.successor_codebook)]
        lattice = selector.lattice(hidden_RKH, known_RKV, anchors_R)
        path = walk(lattice, self.sampling.temperature, self.sampling.uniforms(slots, lengths))
        return Draft(path.tokens_RK, lengths, scattered(path, lattice.tokens_RKC, logits_RKV.shape[-1]))

    def release(self, slot: int) -> None:
        super().release(slot)
        self.sampling.release(slot)
