"""Prompt lookup by the rule of llama.cpp's `ngram-simple`, so that one drafter runs in both engines.

The last n tokens of the request are looked up in what came before, and what followed their latest occurrence is proposed.
Where it differs from `drafters.ngram`: one size n, no shorter suffix; the latest occurrence even where little follows it, and
no draft at all where fewer than n tokens do; the anchor is matched but never proposed, nor does an occurrence count that ends
at the token before it; nothing is proposed before the request has n + budget + 2 tokens. The first token of a prompt is in no
match in either.
(ggml-org/llama.cpp, common/ngram-map.cpp, `common_ngram_simple_draft`, build 11434.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from drafters.contract import Target
from drafters.ngram import Context, NgramDrafter


class NgramSimpleDrafter(NgramDrafter):
    """Options `min_n` and `max_n`, which must be equal: n. The draft budget must be at least n."""

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        super().__init__(target, options, checkpoint)
        if self.min_n != self.max_n:
            raise ValueError(f"options: {dict(options)} must be min_n and max_n, both the one size that is looked up")

    def continuation(self, context: Context, budget: int) -> list[int]:
        tokens, length, n = context.tokens, len(context.tokens), self.max_n
        if length <= n + budget + 1:
            return []
        ends = context.ends[tuple(tokens[-n:])]
        latest = bisect_right(ends, length - 2)
        if latest == 0 or length - 1 - ends[latest - 1] < n:
            return []
        start = ends[latest - 1]
        return tokens[start : min(start + budget, length - 1)]
