"""Prompt lookup by the rule of llama.cpp's `ngram-simple`, so that one drafter runs in both engines.

The last n tokens of the request are looked up in what came before, and what followed their latest occurrence is proposed.
Where it differs from `drafters.ngram`: one size n, no shorter suffix; the latest occurrence even where little follows it, and
no draft at all where fewer than n tokens do; the anchor is matched but never proposed, nor does an occurrence count that ends
at the token before it; nothing is proposed before the request has n + budget + 2 tokens. The first token of a prompt is in no
match in either.
(ggml-org/llama.cpp, common/ngram-map.cpp, `common_ngram_simple_draft`, build 11434.)
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
class _Context:
    """One request: its tokens but the first, the anchor last; and where each n-gram ended (exclusive), ascending."""

    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict)


class NgramSimpleDrafter:
    """Options `min_n` and `max_n`, which must be equal: n. The draft budget must be at least n."""

    taps: tuple[Tap, ...] = ()

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        if checkpoint is not None:
            raise ValueError(f"checkpoint: the n-gram drafter has no weights; remove '{checkpoint}'")
        n = options.get("max_n")
        if set(options) != {"min_n", "max_n"} or options["min_n"] != n or not isinstance(n, int) or n < 1:
            raise ValueError(f"options: {dict(options)} must be min_n and max_n, both the one size that is looked up")
        self.n = n
        self._device = torch.device(getattr(target, "device", "cpu"))
        self._contexts: dict[int, _Context] = {}

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        for slot, row, count in zip(slots, tokens_RT.tolist(), counts, strict=True):
            context = self._contexts.setdefault(slot, _Context())
            first = len(context.tokens) + 1
            context.tokens.extend(row[:count])
            for end in range(max(first, self.n), len(context.tokens) + 1):
                context.ends.setdefault(tuple(context.tokens[end - self.n : end]), []).append(end)

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        drafts = [self._continuation(slot, budget) for slot, budget in zip(slots, budgets, strict=True)]
        lengths = [len(draft) for draft in drafts]
        width = max(lengths, default=0)
        if width == 0:
            return None
        padded = [draft + [0] * (width - len(draft)) for draft in drafts]
        return Draft(torch.tensor(padded, dtype=torch.int64, device=self._device), lengths)

    def release(self, slot: int) -> None:
        self._contexts.pop(slot, None)

    def memory(self) -> dict[str, int]:
        """Bytes: no `weights`; `state` counts the containers and a pointer per position."""
        contexts = self._contexts.values()
        sizes = (sys.getsizeof(c.tokens) + sys.getsizeof(c.ends) + 8 * len(c.tokens) for c in contexts)
        return {"weights": 0, "state": sum(sizes)}

    def _continuation(self, slot: int, budget: int) -> list[int]:
        context = self._contexts.get(slot)
        if context is None or budget < 1 or len(context.tokens) <= self.n + budget + 1:
            return []
        tokens, length = context.tokens, len(context.tokens)
        ends = context.ends[tuple(tokens[-self.n :])]
        latest = bisect_right(ends, length - 2)
        if latest == 0 or length - 1 - ends[latest - 1] < self.n:
            return []
        start = ends[latest - 1]
        return tokens[start : min(start + budget, length - 1)]
