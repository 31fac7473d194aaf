"""Prompt lookup against a brute-force scan and against transformers' own."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from drafters.ngram import NgramDrafter

TOKENS = st.lists(st.integers(0, 3), min_size=0, max_size=40)


def drafter(min_n: int = 1, max_n: int = 3) -> NgramDrafter:
    return NgramDrafter(object(), {"min_n": min_n, "max_n": max_n}, None)  # of a target it reads the device only, if any


def observe(ngram: NgramDrafter, slot: int, tokens: list[int]) -> None:
    ngram.observe([slot], None, torch.tensor([[*tokens, 99]], dtype=torch.int64), [len(tokens)])


def proposal(ngram: NgramDrafter, slot: int, budget: int) -> list[int]:
    draft = ngram.propose([slot], [budget])
    return [] if draft is None else draft.tokens_RK[0, : draft.lengths[0]].tolist()


def occurrences(tokens: list[int], n: int) -> list[int]:
    """Positions just behind every earlier occurrence of the last n tokens, by scanning."""
    return [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]] if len(tokens) > n else []


def scan(tokens: list[int], min_n: int, max_n: int, budget: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        ends = occurrences(tokens, n)
        full = [end for end in ends if len(tokens) - end >= budget]
        if ends:
            start = max(full) if full else min(ends)
            return tokens[start : start + budget]
    return []


@settings(max_examples=300, deadline=None)
@given(tokens=TOKENS, min_n=st.integers(1, 3), extra=st.integers(0, 3), budget=st.integers(1, 6), cut=st.integers(0, 40))
def test_the_index_finds_what_a_scan_finds(tokens, min_n, extra, budget, cut):
    ngram = drafter(min_n, min_n + extra)
    observe(ngram, 0, tokens[:cut])
    observe(ngram, 0, tokens[cut:])
    assert proposal(ngram, 0, budget) == scan(tokens, min_n, min_n + extra, budget)


@settings(max_examples=300, deadline=None)
@given(tokens=TOKENS.filter(len), max_n=st.integers(1, 4), budget=st.integers(1, 6))
def test_it_agrees_with_transformers_up_to_which_occurrence_is_taken(tokens, max_n, budget):
    ngram = drafter(1, max_n)
    observe(ngram, 0, tokens)
    generator = PromptLookupCandidateGenerator(num_output_tokens=budget, max_matching_ngram_size=max_n, max_length=10_000)
    theirs = generator.get_candidates(torch.tensor([tokens]))[0][0, len(tokens) :].tolist()
    ours = proposal(ngram, 0, budget)
    ends = next((found for n in range(max_n, 0, -1) if (found := occurrences(tokens, n))), [])
    assert theirs == (tokens[ends[0] : ends[0] + budget] if ends else [])
    assert len(ours) == len(theirs)
    if len(ends) == 1:
        assert ours == theirs


def test_the_most_recent_full_continuation_wins():
    ngram = drafter(2, 2)
    observe(ngram, 0, [1, 2, 7, 8, 1, 2, 5, 6, 1, 2])
    assert proposal(ngram, 0, 2) == [5, 6]
    assert proposal(ngram, 0, 5) == [7, 8, 1, 2, 5]


def test_a_loop_is_continued_for_the_whole_budget():
    ngram = drafter(1, 3)
    observe(ngram, 0, [4] * 20)
    assert proposal(ngram, 0, 5) == [4] * 5


def test_the_longest_suffix_wins_over_a_more_recent_shorter_one():
    ngram = drafter(1, 2)
    observe(ngram, 0, [1, 2, 7, 7, 2, 9, 9, 1, 2])
    assert proposal(ngram, 0, 1) == [7]


def test_requests_never_see_each_other():
    ngram = drafter()
    observe(ngram, 0, [1, 2, 3, 1, 2])
    observe(ngram, 1, [1, 2])
    assert proposal(ngram, 1, 3) == []
    draft = ngram.propose([1, 0], [3, 3])
    assert draft is not None
    assert draft.lengths == [0, 3]
    assert draft.tokens_RK.tolist() == [[0, 0, 0], [3, 1, 2]]
    assert draft.tokens_RK.dtype == torch.int64
    assert draft.probabilities_RKV is None


def test_a_released_slot_starts_empty():
    ngram = drafter()
    observe(ngram, 0, [1, 2, 3, 1, 2])
    ngram.release(0)
    ngram.release(0)
    assert ngram.memory() == {"weights": 0, "state": 0}
    assert ngram.propose([0], [4]) is None
    observe(ngram, 0, [2])
    assert ngram.propose([0], [4]) is None


def test_budgets_are_per_request_and_zero_means_none():
    ngram = drafter()
    for slot in (0, 1, 2):
        observe(ngram, slot, [1, 2, 3, 4, 1, 2])
    draft = ngram.propose([0, 1, 2], [1, 0, 3])
    assert draft is not None
    assert draft.lengths == [1, 0, 3]
    assert ngram.propose([0, 1, 2], [0, 0, 0]) is None


def test_a_step_looks_at_no_more_than_the_new_tokens():
    """A scan of the context would read it: the tokens behind the index are replaced by an object that counts its reads."""

    class Counted(list[int]):
        reads = 0

        def __iter__(self):
            raise AssertionError("the context was scanned")

        def __getitem__(self, key):
            part = super().__getitem__(key)
            Counted.reads += len(part) if isinstance(part, list) else 1
            return part

    ngram = drafter(1, 3)
    rng = random.Random(0)
    observe(ngram, 0, [rng.randrange(50) for _ in range(5000)])
    ngram._contexts[0].tokens = Counted(ngram._contexts[0].tokens)
    observe(ngram, 0, [1, 2])
    proposal(ngram, 0, 5)
    assert Counted.reads < 40


def test_memory_grows_with_the_context():
    ngram = drafter()
    observe(ngram, 0, [1, 2, 3])
    small = ngram.memory()["state"]
    observe(ngram, 0, list(range(1000)))
    assert ngram.memory()["state"] > 1000 * 3 * 8 > small > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_n": 1}, "options.max_n: None must be a whole number"),
        ({"min_n": 0, "max_n": 2}, "options.min_n: 0 must be a whole number"),
        ({"min_n": True, "max_n": 2}, "options.min_n: True must be a whole number"),
        ({"min_n": 1, "max_n": 2.5}, "options.max_n: 2.5 must be a whole number"),
        ({"min_n": 3, "max_n": 2}, "options.min_n: 3 exceeds max_n 2"),
        ({"min_n": 1, "max_n": 2, "window": 5}, "options.window: the n-gram drafter has no such option"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message) as error:
        NgramDrafter(object(), options, None)  # refused before the target is looked at
    assert "\n" not in str(error.value)


def test_weights_are_refused():
    with pytest.raises(ValueError, match="checkpoint: the n-gram drafter has no weights"):
        NgramDrafter(object(), {"min_n": 1, "max_n": 2}, "somewhere")  # refused at once
