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

from drafters.ngram import Context, NgramDrafter


class NgramSimpleDrafter(NgramDrafter):
    """Options `min_n` and `max_n`, which must be equal: n. The draft budget must be at least n."""

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        super().check_options(options)
        if options["min_n"] != options["max_n"]:
            sizes = f"{options['min_n']} is not max_n {options['max_n']}"
            raise ValueError(f"options.min_n: {sizes}; one size is looked up, so make them equal")

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
