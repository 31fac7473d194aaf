"""What DFlash, DFlash 2, DSpark and xPress have in common: chunks, neighbours and acceptance leave the context as it is, and no
text changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from drafters.dense import DenseTarget
from drafters.loop import Emission
from tests.drafters import test_dflash, test_dspark, test_xpress
from tests.drafters.dflash_cases import CPU, TAPS, H, V, config_of
from tests.drafters.loop_cases import generated, jobs, loop, prompts, run, tokens_of
from tests.drafters.test_dflash import proposal, rows

# folder, rule of its layers, target or none -> drafter with random weights
FAMILY: dict[str, Callable[..., Any]] = {
    "dflash": lambda folder, rule, target=None: test_dflash.made(folder, 1, config_of(1, rule), target),
    "dflash2": lambda folder, rule, target=None: test_dflash.made(folder, 2, config_of(2, rule), target),
    "dspark": lambda folder, rule, target=None: test_dspark.made(folder, target, rule),
    "xpress": lambda folder, rule, target=None: test_xpress.made(folder, 3, 8, target, rule=rule),
}
MEMBERS = pytest.mark.parametrize("name", FAMILY)


@pytest.mark.parametrize("rule", ["full", "legacy"])
@MEMBERS
@torch.inference_mode()
def test_context_in_any_chunks_and_with_any_neighbours_leaves_the_same_state(tmp_path, name, rule):
    hidden, tokens = rows(1, 23)
    whole = FAMILY[name](tmp_path, rule)
    whole.observe([1], hidden, tokens, [23])
    pieces = FAMILY[name](tmp_path, rule)
    other, noise = rows(1, 9, seed=4)
    for first, last in [(0, 1), (1, 4), (4, 13), (13, 23)]:
        width = max(last - first, 9)
        padded = torch.cat((other, torch.zeros(1, width - 9, H * len(TAPS))), dim=1)
        mine = torch.nn.functional.pad(hidden[:, first:last], (0, 0, 0, width - (last - first)), value=7.0)
        ids = torch.nn.functional.pad(tokens[:, first:last], (0, width - (last - first)), value=3)
        both = torch.cat((torch.nn.functional.pad(noise, (0, width - 9)), ids))
        pieces.observe([3, 1], torch.cat((padded, mine)), both, [9, last - first])
    anchor = tokens[0, -1:]
    torch.testing.assert_close(pieces.states([1], anchor, [7]), whole.states([1], anchor, [7]), rtol=1e-5, atol=1e-5)
    assert proposal(pieces, [3, 1], [2, 7])[1] == proposal(whole, [1], [7])[0]


@pytest.mark.parametrize("rule", ["full", "windowed"])
@MEMBERS
@torch.inference_mode()
def test_a_request_drafts_the_same_in_any_order_of_the_batch_and_whatever_its_neighbours_hold(tmp_path, name, rule):
    drafter = FAMILY[name](tmp_path, rule)
    hidden, tokens = rows(4, 12)
    counts, budgets = [12, 5, 9, 1], [7, 3, 5, 1]
    drafter.observe([0, 1, 2, 3], hidden, tokens, counts)
    together = proposal(drafter, [0, 1, 2, 3], budgets)
    assert proposal(drafter, [2, 0, 3, 1], [5, 7, 1, 3]) == [together[i] for i in (2, 0, 3, 1)]
    assert [proposal(drafter, [i], [budgets[i]])[0] for i in range(4)] == together
    drafter.release(0)
    drafter.observe([0], hidden[:1] * -3, tokens[:1] * 0 + 9, [12])
    assert proposal(drafter, [0, 1, 2, 3], budgets)[1:] == together[1:]


@pytest.fixture
def target(checkpoint: Callable[..., Any]) -> DenseTarget:
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=8, max_length=128)


@pytest.fixture(scope="module")
def truth(checkpoint: Callable[..., Any]) -> list[list[int]]:
    return generated(checkpoint("llama")[1], prompts(9), 12, eos=None)


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("budget", [1, 3, 7])
@MEMBERS
def test_greedy_output_is_that_of_plain_decoding(target, truth, tmp_path, name, budget, at_once):
    texts = prompts(9)[: 9 if at_once > 1 else 2]
    drafter = FAMILY[name](tmp_path, "legacy", target)
    engine = loop(target, drafter, budget)
    out = run(engine, jobs(texts, 12), at_once)
    assert [tokens_of(out[str(i)]) for i in range(len(texts))] == truth[: len(texts)]
    assert engine.totals.drafted > 0
    assert drafter.memory()["weights"] == sum(t.nbytes for t in load_file(tmp_path / "model.safetensors").values())


def context_of(drafter: Any, slot: int) -> Tensor:
    """All keys and values of a slot's committed rows."""
    context: Tensor = drafter.cache.cache.data[:, :, slot, :, : drafter.cache.length(slot)].clone()
    return context


@MEMBERS
@torch.inference_mode()
def test_after_any_acceptance_context_and_drafts_are_those_of_one_pass_over_the_text(checkpoint, target, tmp_path, name):
    text = prompts(1)[0]
    drafter = FAMILY[name](tmp_path, "full", target)
    engine = loop(target, Mostly(drafter, generated(checkpoint("llama")[1], [text], 40, eos=None)[0]), 5)
    engine.submit(jobs([text], 40)[0])
    emissions: list[Emission] = []
    for _ in range(20):
        emissions += engine.step()
        if len(emissions) > 5 and emissions[-1].accepted == 0:
            break  # what xPress reads before the anchor is then of the step before
    assert emissions[-1].accepted == 0
    assert 0 < engine.totals.accepted < engine.totals.drafted
    committed = [*text, *tokens_of(emissions)]
    fresh = FAMILY[name](tmp_path, "full", target)
    taps = target.forward([7], torch.tensor([committed[:-1]]), [len(committed) - 1], False, drafter.taps)
    fresh.observe([7], taps.hidden_RTM, torch.tensor([committed[1:]]), [len(committed) - 1])
    torch.testing.assert_close(context_of(drafter, 0), context_of(fresh, 7), rtol=1e-4, atol=1e-4)
    assert proposal(drafter, [0], [5]) == proposal(fresh, [7], [5])


class Mostly:
    """Runs a drafter's own pass and then drafts the right text with random mistakes, so that acceptance takes every length."""

    def __init__(self, inner: Any, truth: list[int]) -> None:
        self.inner, self.truth, self.random = inner, truth, np.random.default_rng(2)
        self.taps, self.observe, self.release, self.memory = inner.taps, inner.observe, inner.release, inner.memory
        self.start: int | None = None

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Any:
        draft = self.inner.propose(slots, budgets)
        length = self.inner.cache.length(slots[0])
        self.start = length if self.start is None else self.start
        done = length - self.start + 1
        right = self.truth[done : done + budgets[0]]
        tokens = [t if self.random.random() < 0.75 else (t + 1) % V for t in right]
        return replace(draft, tokens_RK=torch.tensor([tokens]), lengths=[len(tokens)])
