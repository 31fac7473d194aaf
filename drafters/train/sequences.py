"""Sequences and states from disk, as examples for training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.contract import Tap, Target
from drafters.train.objective import Example
from drafters.train.states import StateFiles, teacher_forced
from drafters.train.store import Answer


@dataclass(frozen=True, slots=True)
class Sequences:
    """Answers in the order of training. Missing states are computed by the target once, and kept."""

    answers: Sequence[Answer]
    files: StateFiles
    target: Target
    taps: tuple[Tap, ...]

    def batch(self, step: int, size: int, seed: int) -> list[Example]:
        """The examples of an update. The order is shuffled anew for every pass over the data, and depends on nothing else."""
        wanted = range(step * size, (step + 1) * size)
        return [self.example(self.answers[_place(i, len(self.answers), seed)]) for i in wanted]

    def example(self, answer: Answer) -> Example:
        states = self.files.read(answer, (*self.taps, "final"))
        if states is None:
            self.files.write(answer, teacher_forced(self.target, answer, self.files.taps))
            states = self.files.read(answer, (*self.taps, "final"))
            assert states is not None
        states = states.float()
        tokens_S = torch.tensor([*answer.prompt_ids, *answer.output_ids])
        return Example(tokens_S, len(answer.prompt_ids), states[:, :-1].flatten(1), states[:, -1].contiguous())

    def token_counts(self, vocabulary: int) -> Tensor:
        """How often each token occurs in answers and prompts; answers count four times, because they are what is drafted."""
        counts = torch.zeros(vocabulary, dtype=torch.long)
        for answer in self.answers:
            counts += torch.bincount(torch.tensor(answer.prompt_ids), minlength=vocabulary)
            counts += 4 * torch.bincount(torch.tensor(answer.output_ids), minlength=vocabulary)
        return counts


_ORDERS: dict[tuple[int, int, int], list[int]] = {}


def _place(i: int, count: int, seed: int) -> int:
    """Which sequence comes i-th, over all passes."""
    key = (i // count, count, seed)
    if key not in _ORDERS:
        _ORDERS.clear()
        order = list(range(count))
        random.Random(f"{seed} {key[0]}").shuffle(order)
        _ORDERS[key] = order
    return _ORDERS[key][i % count]
