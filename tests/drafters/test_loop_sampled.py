"""The loop above temperature nought: tokens follow the target's own distribution, and a request's draws are its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from drafters.contract import Draft, Drafter, Tap
from drafters.dense import DenseTarget
from drafters.loop import Job
from drafters.ngram import NgramDrafter
from drafters.sampling import SamplingParams
from tests.drafters.loop_cases import CPU, NGRAM, VOCAB, draws, exact_pairs, loop, prompts, run, tokens_of


class Uniform:
    """Proposes tokens drawn from a fixed distribution and says so."""

    taps: tuple[Tap, ...] = ()

    def __init__(self, q_V: Tensor) -> None:
        self.q_V = q_V
        self.random = torch.Generator().manual_seed(1)

    def observe(self, slots: Sequence[int], hidden: Tensor | None, tokens: Tensor, counts: Sequence[int]) -> None: ...

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        width = max(budgets)
        if width < 1:
            return None
        shape = (len(slots), width)
        tokens = torch.multinomial(self.q_V, len(slots) * width, replacement=True, generator=self.random).view(shape)
        return Draft(tokens, [max(b, 0) for b in budgets], self.q_V.expand(*shape, -1))

    def release(self, slot: int) -> None: ...

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "state": 0}


class OneHot(Uniform):
    """Always drafts the same tokens, as point masses."""

    def __init__(self) -> None: ...

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        width = max(budgets)
        return Draft(torch.full((len(slots), width), 3), [max(b, 0) for b in budgets]) if width > 0 else None


@pytest.fixture
def target(checkpoint) -> DenseTarget:
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=8, max_length=256)


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("arm", ["plain", "ngram", "sampled", "one_hot"])
def test_sampled_tokens_through_the_loop_follow_the_targets_own_distribution(checkpoint, rule, arm):
    """The second and third token of a request, drawn through drafting and acceptance, against exact probabilities."""
    folder, model = checkpoint("llama_tied", VOCAB)
    target = DenseTarget(folder, torch.float32, CPU, slots=64, max_length=32)
    text = [2, 3, 4, 2, 3, 5, 2, 3]
    count = 1200
    q = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05])
    drafter: Drafter | None = {
        "plain": None,
        "ngram": NgramDrafter(target, NGRAM, None),
        "sampled": Uniform(q),
        "one_hot": OneHot(),
    }[arm]
    params = SamplingParams(0.9, 1.0, 0, 0)
    first = exact_pairs(model, text, params).sum(1)
    exact = sum(first[t] * exact_pairs(model, [*text, t], params) for t in range(VOCAB))
    seen = draws(target, drafter, rule, text, count)
    keep = exact * count >= 5
    observed = np.append(seen[keep], seen[~keep].sum())
    expected = np.append(exact[keep], exact[~keep].sum()) * count
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_a_requests_draws_do_not_depend_on_its_neighbours(target):
    texts = prompts(6)
    params = [SamplingParams(1.0, 0.9, 20, seed) for seed in range(6)]
    asked = [Job(str(i), t, 20, frozenset(), p) for i, (t, p) in enumerate(zip(texts, params, strict=True))]
    alone = run(loop(target), asked, 1)
    together = run(loop(target), asked, 6)
    assert {i: tokens_of(e) for i, e in alone.items()} == {i: tokens_of(e) for i, e in together.items()}
    other = [Job(j.job_id, j.prompt, 20, j.stop_ids, SamplingParams(1.0, 0.9, 20, 99)) for j in asked]
    assert tokens_of(run(loop(target), other, 6)["0"]) != tokens_of(alone["0"])


def test_h05_at_temperature_one_two_seeds_differ_with_a_drafter_too(target):
    """A lane that ignores the sampler answers every request greedily, fast and alike."""

    def answer(seed: int, temperature: float = 1.0) -> list[int]:
        job = Job("0", (5, 6, 7) * 8, 24, frozenset(), SamplingParams(temperature, 1.0, 0, seed))
        return tokens_of(run(loop(target, NgramDrafter(target, NGRAM, None), 3), [job], 1)["0"])

    assert answer(1) == answer(1)
    assert len({tuple(answer(seed)) for seed in range(4)}) == 4
    assert answer(1, 0.0) == answer(2, 0.0) != answer(1)
