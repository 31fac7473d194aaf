"""llama.cpp's `ngram-simple`, read off its source as a scan, against the indexed drafter."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.ngram_simple import NgramSimpleDrafter


def drafted(tokens: list[int], n: int, budget: int, parts: int = 1) -> list[int]:
    """The proposal for a request of these tokens, the anchor last; they are observed in so many parts."""
    drafter = NgramSimpleDrafter(cast(Any, SimpleNamespace(device="cpu")), {"min_n": n, "max_n": n}, None)
    seen = tokens[1:]
    size = max(1, -(-len(seen) // parts))
    for start in range(0, len(seen), size):
        part = seen[start : start + size]
        drafter.observe([0], None, torch.tensor([part]), [len(part)])
    draft = drafter.propose([0], [budget])
    return [] if draft is None else cast(list[int], draft.tokens_RK[0].tolist())


def scanned(tokens: list[int], n: int, budget: int) -> list[int]:
    """The same by looking at every position, latest first; position 0 means none."""
    context, pattern = tokens[:-1], tokens[-n:]
    if len(context) <= n + budget + 1:
        return []
    for at in range(len(context) - n - 1, 0, -1):
        if context[at : at + n] == pattern:
            found = context[at + n : at + n + budget]
            return found if len(found) >= n else []
    return []


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_the_index_finds_what_the_scan_finds(tokens: list[int], n: int, more: int, parts: int) -> None:
    assert drafted(tokens, n, n + more, parts) == scanned(tokens, n, n + more)


def test_the_latest_occurrence_counts_and_the_anchor_is_never_proposed() -> None:
    assert drafted([9, 1, 2, 3, 4, 1, 2, 5, 6, 7, 1, 2], 2, 4) == [5, 6, 7, 1]
    assert drafted([9, 8, 7, 6, 5, 1, 2, 5, 1, 2], 2, 4) == [5, 1]


def test_too_little_behind_the_latest_occurrence_is_no_draft_though_an_earlier_one_had_more() -> None:
    assert drafted([9, 1, 2, 3, 4, 5, 1, 2, 1, 2], 2, 4) == []


def test_two_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="one size"):
        NgramSimpleDrafter(cast(Any, SimpleNamespace()), {"min_n": 1, "max_n": 3}, None)
