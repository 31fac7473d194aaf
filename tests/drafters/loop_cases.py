"""What tests of the loop and of every drafter share: a closed loop, prompts, what transformers generates, exact chances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drafters.contract import Draft, Drafter, Tap
from drafters.dense import DenseTarget
from drafters.loop import Emission, Job, Loop
from drafters.sampling import SamplingParams
from drafters.verify import Rule

CPU = torch.device("cpu")
GREEDY = SamplingParams(0.0, 1.0, 0, 0)
NGRAM = {"min_n": 1, "max_n": 3}


class Scripted:
    """Drafts from a list per slot: the right continuation (an oracle), or anything else."""

    taps: tuple[Tap, ...] = ()

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int, right: float = 1.0, seed: int = 0) -> None:
        self.texts, self.vocab, self.right = texts, vocab, right
        self.random = np.random.default_rng(seed)
        self.seen: dict[int, list[int]] = {}

    def observe(self, slots: Sequence[int], hidden: Tensor | None, tokens: Tensor, counts: Sequence[int]) -> None:
        for slot, row, count in zip(slots, tokens.tolist(), counts, strict=True):
            self.seen.setdefault(slot, []).extend(row[:count])

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        drafts = [self._next(slot, budget) for slot, budget in zip(slots, budgets, strict=True)]
        if not any(drafts):
            return None
        width = max(map(len, drafts))
        return Draft(torch.tensor([d + [0] * (width - len(d)) for d in drafts]), [len(d) for d in drafts])

    def _next(self, slot: int, budget: int) -> list[int]:
        seen = self.seen[slot]
        whole = next(text for text in self.texts if list(text[1 : 1 + len(seen)]) == seen)
        draft = list(whole[1 + len(seen) : 1 + len(seen) + budget])
        return [t if self.random.random() < self.right else int(self.random.integers(self.vocab)) for t in draft]

    def release(self, slot: int) -> None:
        self.seen.pop(slot, None)

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "state": 0}


def loop(
    target: DenseTarget, drafter: Drafter | None = None, budget: int = 0, rule: Rule = "standard", chunk: int = 16
) -> Loop:
    return Loop(target, drafter, budget, rule, chunk)


def run(engine: Loop, jobs: Sequence[Job], at_once: int) -> dict[str, list[Emission]]:
    """Closed loop: `at_once` requests in flight until all have ended."""
    waiting, out, running = list(reversed(jobs)), {}, 0
    while waiting or engine.busy:
        while waiting and running < at_once:
            engine.submit(waiting.pop())
            running += 1
        for emission in engine.step():
            out.setdefault(emission.job_id, []).append(emission)
            running -= emission.finish is not None
    return out


def tokens_of(emissions: Sequence[Emission]) -> list[int]:
    return [token for emission in emissions for token in emission.tokens]


def prompts(count: int, vocab: int = 160) -> list[tuple[int, ...]]:
    random = np.random.default_rng(5)
    return [tuple(random.integers(2, vocab, random.integers(3, 50)).tolist()) for _ in range(count)]


def jobs(texts: Sequence[Sequence[int]], limit: int, stops: Sequence[int] = (), params: SamplingParams = GREEDY) -> list[Job]:
    return [Job(str(i), tuple(text), limit, frozenset(stops), params) for i, text in enumerate(texts)]


def generated(model, texts: Sequence[Sequence[int]], limit: int, eos: int | None) -> list[list[int]]:
    with torch.inference_mode():
        return [
            model.generate(torch.tensor([text]), max_new_tokens=limit, do_sample=False, eos_token_id=eos, pad_token_id=0)[
                0, len(text) :
            ].tolist()
            for text in texts
        ]


VOCAB = 8


def exact_pairs(model, text: Sequence[int], params: SamplingParams) -> np.ndarray:
    """Probability of each first token and second token, [V, V], by one pass per first token."""
    with torch.inference_mode():
        first = (model(torch.tensor([text])).logits[0, -1].double() / params.temperature).softmax(-1)
        both = torch.tensor([[*text, t] for t in range(VOCAB)])
        second = (model(both).logits[:, -1].double() / params.temperature).softmax(-1)
    return (first[:, None] * second).numpy()


def draws(target: DenseTarget, drafter: Drafter | None, rule: Rule, text: Sequence[int], count: int) -> np.ndarray:
    engine = loop(target, drafter, 2, rule)
    asked = [Job(str(s), tuple(text), 4, frozenset(), SamplingParams(0.9, 1.0, 0, s)) for s in range(count)]
    out = run(engine, asked, 64)
    pairs = np.zeros((VOCAB, VOCAB))
    for emissions in out.values():
        a, b = tokens_of(emissions)[1:3]
        pairs[a, b] += 1
    return pairs
