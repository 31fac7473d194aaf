"""Prompt lookup: the drafter without weights. It proposes what followed the last time the request's end was seen.

The longest suffix of `max_n` down to `min_n` tokens that occurs earlier in the request's own tokens (prompt and output, never
another request's) is continued for up to the budget. Of its occurrences the most recent one with a full budget of tokens behind
it is taken, and where none has that many, the oldest, which has the most. transformers' PromptLookupCandidateGenerator takes
the oldest always; the two agree where the suffix occurs once before.

Observed pairs are (h_i, x_{i+1}), so the first token of a prompt never arrives and is never part of a match: one token in a
prompt, and usually the begin-of-text token. Every draft is a point mass.

A step costs O(new tokens) dictionary writes and at most `max_n - min_n + 1` lookups: no scan of the context.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafters.contract import Draft, Tap, Target


@dataclass(slots=True)
class Context:
    """One request: its tokens, and for every n-gram the positions just behind its occurrences, ascending."""

    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict)


class NgramDrafter:
    """Options `min_n` and `max_n`, both required: the shortest and the longest suffix looked up."""

    taps: tuple[Tap, ...] = ()

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        if checkpoint is not None:
            raise ValueError(f"checkpoint: the n-gram drafter has no weights; remove '{checkpoint}'")
        self.check_options(options)
        self.min_n, self.max_n = _sizes(options)
        self._device = torch.device(getattr(target, "device", "cpu"))
        self._contexts: dict[int, Context] = {}

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        _sizes(options)

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        for slot, row, count in zip(slots, tokens_RT.tolist(), counts, strict=True):
            self._append(self._contexts.setdefault(slot, Context()), row[:count])

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        contexts = [self._contexts.get(slot) for slot in slots]
        drafts = [
            self.continuation(c, budget) if c is not None and budget > 0 else []
            for c, budget in zip(contexts, budgets, strict=True)
        ]
        lengths = [len(draft) for draft in drafts]
        width = max(lengths, default=0)
        if width == 0:
            return None
        padded = [draft + [0] * (width - len(draft)) for draft in drafts]
        return Draft(torch.tensor(padded, dtype=torch.int64, device=self._device), lengths)

    def release(self, slot: int) -> None:
        self._contexts.pop(slot, None)

    def memory(self) -> dict[str, int]:
        """Bytes: no `weights`; `state` is estimated from the sizes of the Python objects held."""
        return {"weights": 0, "state": sum(self._context_bytes(context) for context in self._contexts.values())}

    def _append(self, context: Context, new: list[int]) -> None:
        tokens, ends = context.tokens, context.ends
        first = len(tokens) + 1
        tokens.extend(new)
        for n in range(self.min_n, self.max_n + 1):
            for end in range(max(first, n), len(tokens) + 1):
                ends.setdefault(tuple(tokens[end - n : end]), []).append(end)

    def continuation(self, context: Context, budget: int) -> list[int]:
        """What is proposed behind a request's tokens, the anchor last."""
        tokens = context.tokens
        for n in range(min(self.max_n, len(tokens)), self.min_n - 1, -1):
            ends = context.ends[tuple(tokens[-n:])]  # holds at least the suffix itself, which ends last
            if ends[0] < len(tokens):
                start = ends[max(bisect_right(ends, len(tokens) - budget) - 1, 0)]
                return tokens[start : start + budget]
        return []

    def _context_bytes(self, context: Context) -> int:
        """Containers as Python sizes them, and one pointer per position of the index (every n size indexes every token)."""
        grams = len(context.ends)
        per_gram = sys.getsizeof(tuple(range(self.max_n))) + sys.getsizeof([0])
        positions = len(context.tokens) * (self.max_n - self.min_n + 1)
        return sys.getsizeof(context.tokens) + sys.getsizeof(context.ends) + grams * per_gram + positions * 8


def _sizes(options: Mapping[str, object]) -> tuple[int, int]:
    """`min_n` and `max_n`, or a `ValueError` that names the option."""
    unknown = sorted(set(options) - {"min_n", "max_n"})
    if unknown:
        raise ValueError(f"options.{unknown[0]}: the n-gram drafter has no such option; it takes min_n and max_n")
    sizes = []
    for name in ("min_n", "max_n"):
        value = options.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"options.{name}: {value!r} must be a whole number of at least 1 for the n-gram drafter")
        sizes.append(value)
    if sizes[0] > sizes[1]:
        raise ValueError(f"options.min_n: {sizes[0]} exceeds max_n {sizes[1]}; lower min_n or raise max_n")
    return sizes[0], sizes[1]
