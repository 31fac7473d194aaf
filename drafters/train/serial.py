"""Training of the serial drafters, EAGLE-3 and MTP: the chain of drafting, unrolled ("training-time test", arXiv 2503.01840).

Row c of pass 1 reads the target's state of position c and token x_{c+1}, and its output predicts x_{c+2}. Row c of pass k reads
what row c of pass k - 1 put out, and token x_{c+k} at position c + k - 1. It sees what drafting would: rows up to c of pass 1,
which hold true features, and the rows c of passes 2 to k. So all chains of a text are trained in k passes of the layer.

Shape legend: S tokens, N rows, M taps times H, H hidden, Q query heads, J key/value heads, D head size, C candidate tokens.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.chain import ChainNetwork
from drafters.contract import Tap
from drafters.decoder_layer import LayerConfig, Rotation, every_row
from drafters.layers import Rotary, inverse_frequencies
from drafters.train.objective import Example, Teacher
from drafters.train.soft import Candidates

_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class Unrolling:
    """`passes` after the share `single` of training with one; the loss of pass k weighs `decay` to the k - 1. Prompt rows are
    not what the target wrote, but what it thought of them is: they weigh `prompt_weight` in pass 1."""

    passes: int
    single: float
    decay: float
    prompt_weight: float

    def passes_at(self, progress: float) -> int:
        return 1 if progress < self.single else self.passes


class Attention:
    """What the queries of one pass see; called by the layer once per pass, in order."""

    def __init__(self, heads: int, kv_heads: int) -> None:
        self.group = heads // kv_heads
        self.first = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, q_NQD: Tensor, k_NJD: Tensor, v_NJD: Tensor) -> Tensor:
        k_NQD, v_NQD = (x.repeat_interleave(self.group, dim=1) for x in (k_NJD, v_NJD))
        self._keys.append(k_NQD)
        self._values.append(v_NQD)
        if len(self._keys) == 1:
            q_QND, k_QND, v_QND = (x.transpose(0, 1) for x in (q_NQD, k_NQD, v_NQD))
            return F.scaled_dot_product_attention(q_QND, k_QND, v_QND, is_causal=True).transpose(0, 1)
        return self._unrolled(q_NQD)

    def _unrolled(self, q_NQD: Tensor) -> Tensor:
        """Rows `first` and on: causally over pass 1, and each row over itself in the later passes."""
        rows = len(q_NQD)
        q_NQD = q_NQD * q_NQD.shape[-1] ** -0.5
        true_k, true_v = self._keys[0], self._values[0]
        scores_QNS = torch.einsum("nqd,sqd->qns", q_NQD, true_k)
        last_N = self.first + torch.arange(rows)
        hidden_NS = torch.arange(len(true_k)) > last_N[:, None]
        own = [(q_NQD * k[:rows]).sum(-1).T.unsqueeze(-1) for k in self._keys[1:]]
        weights = torch.cat((scores_QNS.masked_fill(hidden_NS, float("-inf")), *own), dim=-1).softmax(-1)
        out_NQD = torch.einsum("qns,sqd->nqd", weights[..., : len(true_k)], true_v)
        for i, values in enumerate(self._values[1:]):
            out_NQD = out_NQD + weights[..., len(true_k) + i].T.unsqueeze(-1) * values[:rows]
        return out_NQD


class SerialObjective(ABC):
    """The loss that EAGLE-3 and MTP share. A subclass makes the network and names its taps."""

    network: nn.Module
    taps: tuple[Tap, ...]

    def __init__(self, teacher: Teacher, layer: LayerConfig, unrolling: Unrolling) -> None:
        self.teacher, self.layer, self.unrolling = teacher, layer, unrolling
        frequencies, scaling = inverse_frequencies(layer.rope, layer.rotated)
        self.rotary = Rotary(frequencies, scaling, _POSITIONS, torch.float32)

    @abstractmethod
    def chain(self) -> ChainNetwork:
        """The network by the names that drafting calls it."""

    @abstractmethod
    def features(self, taps_NM: Tensor) -> Tensor:
        """The feature of every row of pass 1, [N, H]."""

    @abstractmethod
    def candidates(self, tokens: Tensor, draw: random.Random) -> Candidates:
        """The rows of the head that a batch with these tokens is scored by."""

    def learnable(self, tokens: Tensor) -> Tensor:
        """Which of these tokens the drafter can say at all."""
        return torch.ones_like(tokens, dtype=torch.bool)

    def loss(self, batch: Sequence[Example], progress: float, draw: random.Random) -> tuple[Tensor, dict[str, float]]:
        passes = self.unrolling.passes_at(progress)
        candidates = self.candidates(torch.cat([example.tokens_S for example in batch]), draw)
        sums = [_Sum() for _ in range(passes)]
        for example in batch:
            self._unroll(example, candidates, sums)
        weights = [self.unrolling.decay**k for k in range(passes)]
        total = sum((w * s.mean for w, s in zip(weights, sums, strict=True)), torch.zeros(())) / sum(weights)
        shown = {f"accuracy_{k + 1}": s.accuracy for k, s in enumerate(sums)}
        return total, shown

    def _unroll(self, example: Example, candidates: Candidates, sums: Sequence[_Sum]) -> None:
        teacher_NC = candidates.teacher(example.final_NH)
        known_S = self.learnable(example.tokens_S)
        for sum_k, (read_N, state_NH) in zip(sums, self.passes(example, len(sums)), strict=False):
            answer_N = read_N + 1 >= example.prompt
            weight_N = torch.where(answer_N, 1.0, self.unrolling.prompt_weight) * known_S[read_N + 1]
            sum_k.add(*candidates.loss(state_NH, teacher_NC[read_N]), weight_N, answer_N)

    def passes(self, example: Example, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each pass, which token every chain reads last, [N], and the state that predicts the next, [N, H].

        A short answer ends them early.
        """
        network, tokens_S, rows = self.chain(), example.tokens_S, len(example.final_NH)
        attend, feature_NH, before = Attention(self.layer.heads, self.layer.kv_heads), self.features(example.taps_NM), 0
        for k in range(1, count + 1):
            # Chains of the later passes begin in the answer, where serving begins to draft.
            attend.first = 0 if k == 1 else example.prompt - 1
            read_N = torch.arange(attend.first, rows - k) + k
            if not len(read_N):
                return
            feature_NH = feature_NH[attend.first - before :][: len(read_N)]
            before = attend.first
            embedded_NH = self.teacher.embedding_VH[tokens_S[read_N]]
            out_NH = network.step(embedded_NH, feature_NH, self._rotation(read_N - 1), attend, every_row)
            state_NH, feature_NH = network.read(out_NH)
            yield read_N, state_NH

    def _rotation(self, positions_N: Tensor) -> Rotation:
        return self.rotary.cos_LD[positions_N].unsqueeze(1), self.rotary.sin_LD[positions_N].unsqueeze(1)


class _Sum:
    """Loss and accuracy of one pass over a batch."""

    def __init__(self) -> None:
        self.loss, self.weight = torch.zeros(()), 0.0
        self.right = self.answers = 0

    def add(self, loss_N: Tensor, right_N: Tensor, weight_N: Tensor, answer_N: Tensor) -> None:
        self.loss = self.loss + (loss_N * weight_N).sum()
        self.weight += float(weight_N.sum())
        self.right += int((right_N & answer_N & (weight_N > 0)).sum())
        self.answers += int(answer_N.sum())

    @property
    def mean(self) -> Tensor:
        return self.loss / max(self.weight, 1.0)

    @property
    def accuracy(self) -> float:
        """Share of the answer's tokens said as the target would; what the drafter cannot say counts as wrong."""
        return self.right / max(self.answers, 1)
