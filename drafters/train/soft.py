"""Cross-entropy against the target's own distribution, over a part of the vocabulary.

The head is most of the work of training a small drafter: 49,152 rows against a layer of five million weights. So the softmax
runs over the frequent tokens, the tokens of this batch, and a fresh uniform sample of the others whose logits are raised by
log(others / sampled), so that they stand for all of them. Teacher and student are read through the same rows.

Shape legend: N rows, H hidden, C candidate tokens, V vocabulary.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.train.objective import Teacher


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of the head for one step of training. `raise_C` is what stands for the tokens that are not there."""

    head_CH: Tensor
    raise_C: Tensor

    def teacher(self, final_NH: Tensor) -> Tensor:
        """The target's probabilities [N, C]."""
        with torch.no_grad():
            return (final_NH @ self.head_CH.T + self.raise_C).softmax(-1)

    def loss(self, state_NH: Tensor, teacher_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each row [N], and whether its likeliest token is the teacher's [N]."""
        logits_NC = state_NH @ self.head_CH.T + self.raise_C
        loss_N = torch.logsumexp(logits_NC, -1) - (teacher_NC * logits_NC).sum(-1)
        return loss_N, logits_NC.detach().argmax(-1) == teacher_NC.argmax(-1)


class CandidateHead:
    """Draws the candidates of each step."""

    def __init__(self, teacher: Teacher, frequent: int, sampled: int) -> None:
        self.head_VH = teacher.head_VH
        self.kept_F = teacher.frequent_V[:frequent]
        self.sampled = sampled

    def draw(self, tokens: Tensor, random_: random.Random) -> Candidates:
        """Candidates of a batch; `tokens` are the ones that it predicts."""
        vocabulary = len(self.head_VH)
        known = torch.zeros(vocabulary, dtype=torch.bool)
        known[self.kept_F] = True
        known[tokens] = True
        ids, others = known.nonzero().flatten(), (~known).nonzero().flatten()
        count = min(self.sampled, len(others))
        generator = torch.Generator().manual_seed(random_.getrandbits(60))
        extra = others[torch.randperm(len(others), generator=generator)[:count]]
        lift = math.log(len(others) / count) if count else 0.0
        raise_C = torch.cat((torch.zeros(len(ids)), torch.full((count,), lift)))
        return Candidates(self.head_VH[torch.cat((ids, extra))], raise_C)
