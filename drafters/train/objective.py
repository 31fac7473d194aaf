"""The seam between what is learned and how: an `Objective` has the network and the loss, `drafters.train.fit` does the rest.

Shape legend: S tokens of a sequence, N = S - 1 rows that have a state, M taps times H, H hidden size, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from drafters.contract import Tap, Target

_STD = 0.02  # of initial weights


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence and what the target thought while it wrote it.

    Row i of the states belongs to token i; the last token has none. `final_NH` is the state after the target's last norm: row i
    through the head is the target's distribution over token i + 1. Answers begin at token `prompt`.
    """

    tokens_S: Tensor
    prompt: int
    taps_NM: Tensor
    final_NH: Tensor


@dataclass(frozen=True, slots=True)
class Teacher:
    """What a learner shares with its target, as plain float32 tensors that autograd may pass through but never changes."""

    embedding_VH: Tensor
    head_VH: Tensor
    frequent_V: Tensor  # token ids of the training answers and prompts, the most frequent first

    @classmethod
    def of(cls, target: Target, counts_V: Tensor) -> Teacher:
        """`counts_V`: how often each token occurs in the training sequences."""
        with torch.inference_mode():
            head_HV = target.head(torch.eye(target.hidden_size, dtype=target.dtype, device=target.device))
        seen = int((counts_V > 0).sum())
        frequent_V = counts_V.argsort(descending=True, stable=True)[:seen]
        return cls(_plain(target.embedding), _plain(head_HV.T), frequent_V)


def _plain(tensor: Tensor) -> Tensor:
    """A copy outside inference mode, which autograd may save."""
    return torch.empty(tensor.shape, dtype=torch.float32).copy_(tensor.float()).contiguous()


class Objective(Protocol):
    """Built by a recipe's dotted path as `objective(target, teacher, examples, config, options)`.

    `examples` are a few sequences to take statistics from, such as the scale of each tapped channel. An objective does no I/O.
    """

    network: nn.Module
    taps: tuple[Tap, ...]

    def loss(self, batch: Sequence[Example], progress: float, draw: random.Random) -> tuple[Tensor, dict[str, float]]:
        """Mean loss over a batch, and what the curve shows. `progress` in [0, 1) moves curricula and stages."""
        ...

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """`config.json` and tensors in the published format, as the drafter loads them."""
        ...


MakeObjective = Callable[[Target, Teacher, Sequence[Example], Mapping[str, Any], Mapping[str, Any]], Objective]


def channel_scales(examples: Sequence[Example]) -> Tensor:
    """Root mean square of every tapped channel, [M]. Without position 0, an attention sink 50 to 170 times as long."""
    rows = torch.cat([example.taps_NM[1:] for example in examples])
    return rows.pow(2).mean(0).sqrt().clamp_min(1e-6)


def initialise(network: nn.Module) -> None:
    """Normal weights, half as large where they write into the residual stream; biases at nought, norms as they are."""
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=_STD / 2 if name.endswith(("o_proj.weight", "down_proj.weight")) else _STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
