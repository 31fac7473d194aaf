"""Driving a serial drafter by hand, and what it must draft: naive recomputation, batch 1, no cache, by the published rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drafters.contract import Drafter
from drafters.dense import DenseTarget
from drafters.loop import Job, Loop
from drafters.sampling import SamplingParams

CPU = torch.device("cpu")
GREEDY = SamplingParams(0.0, 1.0, 0, 0)
VOCAB = 160

# rows(embedded [T, H], features [T, H]) gives outputs [T, H] of a full causal pass over positions 0 .. T - 1
Rows = Callable[[Tensor, Tensor], Tensor]


class Drafts(Protocol):
    """What a drafter is compared with."""

    def draft(self, text: Sequence[int], budget: int) -> tuple[list[int], Tensor]:
        """Drafted tokens behind a committed text, and the logits [budget, V] of each."""
        ...


@dataclass
class Oracle:
    """A drafter as plain functions. `fuse` maps the target's states to features, `read` outputs to (state, recycled)."""

    states: Callable[[Sequence[int]], Tensor]
    embedding: Tensor
    fuse: Callable[[Tensor], Tensor]
    rows: Rows
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    logits: Callable[[Tensor], Tensor]
    ids: Callable[[Tensor], Tensor] = lambda draft_id: draft_id
    zero_first: bool = False

    def first_pass(self, text: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Embeddings and features of the rows of a committed text, whose last token is the anchor."""
        embedded = self.embedding[torch.tensor(text[1:])].clone()
        if self.zero_first:
            embedded[0] = 0
        return embedded, self.fuse(self.states(text[:-1]))

    @torch.no_grad()
    def draft(self, text: Sequence[int], budget: int) -> tuple[list[int], Tensor]:
        embedded, features = self.first_pass(text)
        tokens, logits = [], []
        for _ in range(budget):
            state, recycled = self.read(self.rows(embedded, features)[-1:])
            logits.append(self.logits(state)[0])
            tokens.append(int(self.ids(logits[-1].argmax())))
            embedded = torch.cat((embedded, self.embedding[tokens[-1]][None]))
            features = torch.cat((features, recycled))
        return tokens, torch.stack(logits)


def states_of(model: nn.Module, ids: Sequence[int | str]) -> Callable[[Sequence[int]], Tensor]:
    """transformers' own states: of layer inputs by number, `final` behind the last norm, or `last` before it."""

    def states(text: Sequence[int]) -> Tensor:
        before: list[Tensor] = []
        hook = model.model.norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        with torch.no_grad():
            hidden = model(torch.tensor([text]), output_hidden_states=True).hidden_states
        hook.remove()
        named = {"final": hidden[-1], "last": before[0]}
        last = len(hidden) - 1
        return torch.cat([named[i] if i in named else before[0] if i == last else hidden[i] for i in ids], dim=-1)[0]

    return states


class Cycles:
    """Prefill in chunks, then draft and verify with invented accept lengths and bonus tokens."""

    def __init__(self, target: DenseTarget, drafter: Drafter, slots: Sequence[int], seed: int = 0) -> None:
        self.target, self.drafter, self.slots = target, drafter, list(slots)
        self.random = np.random.default_rng(seed)
        self.texts: list[list[int]] = [[] for _ in slots]

    def tokens(self, count: int) -> list[int]:
        return self.random.integers(0, VOCAB, count).tolist()

    def prefill(self, lengths: Sequence[int], chunk: int = 5) -> None:
        for slot, text, length in zip(self.slots, self.texts, lengths, strict=True):
            text += self.tokens(length + 1)
            for start in range(0, length, chunk):
                end = min(start + chunk, length)
                rows = torch.tensor([text[start:end]])
                out = self.target.forward([slot], rows, [end - start], True, self.drafter.taps)
                self.target.commit([slot], [end - start])
                self.drafter.observe([slot], out.hidden_RTM, torch.tensor([text[start + 1 : end + 1]]), [end - start])

    def cycle(self, budget: int) -> tuple[list[list[int]], list[int]]:
        """Drafts of every request before this cycle's acceptance, and how many were accepted."""
        draft = self.drafter.propose(self.slots, [budget] * len(self.slots))
        assert draft is not None
        drafted = draft.tokens_RK.tolist()
        rows = torch.tensor([[text[-1], *row] for text, row in zip(self.texts, drafted, strict=True)])
        out = self.target.forward(self.slots, rows, [budget + 1] * len(self.slots), False, self.drafter.taps)
        accepted = self.random.integers(0, budget + 1, len(self.slots)).tolist()
        gained = [[*row[:a], *self.tokens(1)] for row, a in zip(drafted, accepted, strict=True)]
        width = max(map(len, gained))
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in gained])
        self.target.commit(self.slots, [a + 1 for a in accepted])
        assert out.hidden_RTM is not None
        self.drafter.observe(self.slots, out.hidden_RTM[:, :width], padded, [a + 1 for a in accepted])
        for text, row in zip(self.texts, gained, strict=True):
            text += row
        return drafted, accepted


def target_of(folder: Path, slots: int = 8) -> DenseTarget:
    return DenseTarget(folder, torch.float32, CPU, slots=slots, max_length=128)


def served(target: DenseTarget, drafter: Drafter | None, budget: int, at_once: int, prompts: Sequence[Sequence[int]]):
    """Greedy tokens of each prompt through the loop, and the loop."""
    loop = Loop(target, drafter, budget, "standard", 7)
    out: dict[str, list[int]] = {}
    waiting = [Job(str(i), tuple(p), 16, frozenset(), GREEDY) for i, p in enumerate(prompts)][::-1]
    running = 0
    while waiting or loop.busy:
        while waiting and running < at_once:
            loop.submit(waiting.pop())
            running += 1
        for emission in loop.step():
            out.setdefault(emission.job_id, []).extend(emission.tokens)
            running -= emission.finish is not None
    return [out[str(i)] for i in range(len(prompts))], loop


def prompts(count: int) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(2, VOCAB, random.integers(1, 30)).tolist() for _ in range(count)]


def assert_cycles_match(target: DenseTarget, drafter, oracle: Drafts, budget: int = 4, cycles: int = 5) -> None:
    """Several cycles of three ragged requests: the same tokens, and logits to 1e-4, as the oracle gives."""
    seen: list[Tensor] = []
    network = drafter.chain.network
    best = network.best
    network.best = lambda state: (seen.append(network.logits(state)), best(state))[1]
    run = Cycles(target, drafter, [0, 2, 1])
    run.prefill([11, 1, 6])
    for _ in range(cycles):
        texts = [list(text) for text in run.texts]
        seen.clear()
        drafted, _ = run.cycle(budget)
        for r, text in enumerate(texts):
            tokens, logits = oracle.draft(text, budget)
            torch.testing.assert_close(torch.stack(seen)[:, r], logits, atol=1e-4, rtol=1e-4)
            assert drafted[r] == tokens


def assert_invariant(target: DenseTarget, make: Callable[[], Drafter]) -> None:
    """After any accept pattern the draft cache is that of one pass over the committed text, and so are the next drafts."""
    worn, fresh = make(), make()
    run = Cycles(target, worn, [0, 1, 2], seed=3)
    run.prefill([9, 4, 13])
    for _ in range(6):
        run.cycle(5)
    for slot in (0, 1, 2):
        target.release(slot)
    again = Cycles(target, fresh, [0, 1, 2])
    for slot, text in zip(again.slots, run.texts, strict=True):
        count = len(text) - 1
        out = target.forward([slot], torch.tensor([text[:-1]]), [count], True, fresh.taps)
        fresh.observe([slot], out.hidden_RTM, torch.tensor([text[1:]]), [count])
        assert worn.chain.cache.lengths[slot] == count
        committed = (slice(None), slice(None), slot, slice(None), slice(count))
        torch.testing.assert_close(worn.chain.cache.data[committed], fresh.chain.cache.data[committed], atol=1e-5, rtol=1e-5)
    assert worn.propose([0, 1, 2], [3] * 3).tokens_RK.tolist() == fresh.propose([0, 1, 2], [3] * 3).tokens_RK.tolist()


def assert_batch_order_is_free(target: DenseTarget, make: Callable[[], Drafter]) -> None:
    """Drafts of a request depend neither on its neighbours, nor on its slot, nor on its place in the batch."""
    texts = [[*p, 3] for p in prompts(4)]

    def drafts(order: Sequence[int], slots: Sequence[int], together: bool) -> dict[int, list[int]]:
        drafter = make()
        for slot, i in zip(slots, order, strict=True):
            target.release(slot)
            out = target.forward([slot], torch.tensor([texts[i][:-1]]), [len(texts[i]) - 1], True, drafter.taps)
            drafter.observe([slot], out.hidden_RTM, torch.tensor([texts[i][1:]]), [len(texts[i]) - 1])
        groups = [list(range(len(order)))] if together else [[n] for n in range(len(order))]
        found = {}
        for group in groups:
            draft = drafter.propose([slots[n] for n in group], [5] * len(group))
            found.update({order[n]: row for n, row in zip(group, draft.tokens_RK.tolist(), strict=True)})
        return found

    first = drafts([0, 1, 2, 3], [0, 1, 2, 3], together=True)
    assert drafts([2, 0, 3, 1], [0, 1, 2, 3], together=True) == first
    assert drafts([0, 1, 2, 3], [5, 1, 7, 0], together=True) == first
    assert drafts([3, 2, 1, 0], [0, 1, 2, 3], together=False) == first
