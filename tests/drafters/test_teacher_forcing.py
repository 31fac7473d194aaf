"""Acceptance from the text alone equals what was served, for every way of drafting; and faults in service are seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from drafters.contract import Draft, Drafter
from drafters.dense import DenseTarget
from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.loop import Emission, Job, Loop
from drafters.ngram import NgramDrafter
from drafters.sampling import SamplingParams
from drafters.teacher_forcing import Acceptance, Replayed, Text, replay
from tests.drafters.dflash_cases import config_of, tensors_of, write

CPU = torch.device("cpu")
GREEDY = SamplingParams(0.0, 1.0, 0, 0)
PROMPTS = [[3, 4, 5, 6] * 4, [9, 8, 9, 8, 9, 8, 9], list(range(20, 45))]


@pytest.fixture
def target(checkpoint):
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=4, max_length=128)


def served(
    target: DenseTarget, drafter: Drafter | None, budget: int, params: SamplingParams = GREEDY, stop: Sequence[int] = ()
) -> list[tuple[Text, Acceptance]]:
    """The texts that the loop delivers, all prompts at once, and the ledger that its emissions add up to."""
    loop = Loop(target, drafter, budget, "standard", prefill_chunk=6)
    for i, prompt in enumerate(PROMPTS):
        loop.submit(Job(str(i), tuple(prompt), 30, frozenset(stop), params))
    told: dict[str, list[Emission]] = {str(i): [] for i in range(len(PROMPTS))}
    while loop.busy:
        for emission in loop.step():
            told[emission.job_id].append(emission)
    return [(Text(p, [t for e in told[str(i)] for t in e.tokens], 30), _ledger(told[str(i)])) for i, p in enumerate(PROMPTS)]


def _ledger(emissions: Sequence[Emission]) -> Acceptance:
    steps = [e for e in emissions if e.drafted is not None]
    with_draft = sum(bool(e.drafted) for e in steps)
    accepted = sum(min(e.accepted or 0, len(e.tokens)) for e in steps)
    return Acceptance(with_draft, len(steps) - with_draft, sum(e.drafted or 0 for e in steps), accepted)


class FromStates:
    """Drafts by the states that it saw: the token nearest to their sum so far. Wrong or missing states change the drafts."""

    taps = (0, "final")

    def __init__(self, target: DenseTarget) -> None:
        torch.manual_seed(3)
        self.project = torch.randn(2 * target.hidden_size, 160)
        self.sums: dict[int, torch.Tensor] = {}
        self.tokens: dict[int, list[int]] = {}

    def observe(self, slots: Sequence[int], hidden: torch.Tensor | None, tokens: torch.Tensor, counts: Sequence[int]) -> None:
        assert hidden is not None
        for slot, states, row, count in zip(slots, hidden, tokens.tolist(), counts, strict=True):
            self.sums[slot] = self.sums.get(slot, torch.zeros(())) + states[:count].double().sum(0)
            self.tokens.setdefault(slot, []).extend(row[:count])

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Any:
        # Half the time an echo of the text three tokens ago, which a tiny looping model does repeat; else by the states.
        rows = []
        for slot, budget in zip(slots, budgets, strict=True):
            best = int((self.sums[slot].float() @ self.project).argmax())
            seen = self.tokens[slot]
            rows.append([seen[-3 + i % 3] for i in range(budget)] if best % 2 else [best] * max(budget, 0))
        width = max(map(len, rows))
        return Draft(torch.tensor([r + [0] * (width - len(r)) for r in rows]), [len(r) for r in rows]) if width else None

    def release(self, slot: int) -> None:
        self.sums.pop(slot, None)
        self.tokens.pop(slot, None)

    def memory(self) -> Mapping[str, int]:
        return {"weights": 0, "state": 0}


class Random(FromStates):
    """Draws its drafts and says from what."""

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Any:
        shape = (len(slots), max(budgets))
        return Draft(torch.randint(160, shape), list(budgets), torch.full((*shape, 160), 1 / 160)) if shape[1] > 0 else None


def makers(target: DenseTarget) -> dict[str, Any]:
    return {"ngram": NgramDrafter(target, {"min_n": 1, "max_n": 3}, None), "states": FromStates(target)}


@pytest.mark.parametrize("name", ["ngram", "states"])
@pytest.mark.parametrize("budget", [1, 4])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(0.7, 1.0, 0, 5)])
def test_recomputed_acceptance_equals_the_served_one(target, name, budget, params):
    total = 0
    for text, ledger in served(target, makers(target)[name], budget, params):
        got = replay(target, makers(target)[name], budget, 7, text)
        assert got.acceptance == ledger
        total += ledger.accepted
    assert total > 0 or params is not GREEDY


def test_a_text_that_ended_inside_an_accepted_run_counts_what_was_delivered(target):
    whole = served(target, makers(target)["ngram"], 4)
    stop = whole[0][0].answer[9]
    cut = served(target, makers(target)["ngram"], 4, stop=[stop])
    assert any(len(text.answer) < 30 for text, _ in cut)
    for text, ledger in cut:
        assert replay(target, makers(target)["ngram"], 4, 64, text).acceptance == ledger


def test_drafts_from_other_states_are_noticed(target, monkeypatch):
    """States shifted by a row in service, as a wrong tap index would: the offline acceptance then disagrees."""
    true_observe = FromStates.observe

    def shifted(self: Any, slots: Any, hidden: torch.Tensor, tokens: Any, counts: Any) -> None:
        true_observe(self, slots, hidden.roll(1, dims=-1), tokens, counts)

    monkeypatch.setattr(FromStates, "observe", shifted)
    wrong = served(target, FromStates(target), 4)
    monkeypatch.setattr(FromStates, "observe", true_observe)
    got = [replay(target, FromStates(target), 4, 64, text).acceptance for text, _ in wrong]
    assert got != [ledger for _, ledger in wrong]


def test_every_greedy_token_is_the_targets_own_choice_and_a_foreign_one_is_not(target):
    text, _ = served(target, None, 0)[0]
    got: Replayed = replay(target, None, 0, 5, text)
    assert got.acceptance is None
    assert len(got.choices.deficits) == len(got.choices.gaps) == 30
    assert max(got.choices.deficits) < 1e-4
    assert min(got.choices.gaps) >= 0
    answer = list(text.answer)
    answer[12] = (answer[12] + 1) % 160
    foreign = replay(target, None, 0, 5, Text(text.prompt, answer, 30)).choices.deficits
    assert max(foreign[:12]) < 1e-4
    assert foreign[12] > 1e-3


def test_random_drafts_are_not_recomputed_because_they_would_not_come_back(target):
    text, _ = served(target, Random(target), 2, SamplingParams(1.0, 1.0, 0, 1))[0]
    assert replay(target, Random(target), 2, 64, text).acceptance is None


def test_the_slot_is_free_afterwards_and_an_empty_text_is_refused(target):
    drafter = makers(target)["ngram"]
    text, _ = served(target, drafter, 4)[0]
    replay(target, drafter, 4, 64, text)
    assert target.length(0) == 0
    assert drafter.memory()["state"] == 0
    with pytest.raises(ValueError, match="a prompt and an answer"):
        replay(target, drafter, 4, 64, Text(text.prompt, [], 30))


@pytest.mark.parametrize(("generation", "drafter_class"), [(1, DFlashDrafter), (2, DFlash2Drafter)])
def test_a_block_drafter_proposes_the_same_drafts_from_the_text_as_it_did_in_service(
    target, tmp_path, generation, drafter_class
):
    """Draft by draft, which is more than equal counts: a random drafter is hardly ever right."""
    config = config_of(generation)
    folder = write(tmp_path, config, tensors_of(config))
    options: dict[str, Any] = {"sample": False, "temperature": 0.0} if generation == 2 else {}

    def logged() -> tuple[Any, list[list[list[int]]]]:
        drafter, log = drafter_class(target, options, folder), []
        propose = drafter.propose

        def noted(slots: Sequence[int], budgets: Sequence[int]) -> Any:
            draft = propose(slots, budgets)
            log.append([] if draft is None else draft.tokens_RK.tolist())
            return draft

        drafter.propose = noted
        return drafter, log

    for prompt in PROMPTS:
        (serving, said), (again, says) = logged(), logged()
        loop = Loop(target, serving, 4, "standard", prefill_chunk=6)
        loop.submit(Job("r", tuple(prompt), 30, frozenset(), GREEDY))
        emissions: list[Emission] = []
        while loop.busy:
            emissions += loop.step()
        text = Text(prompt, [t for e in emissions for t in e.tokens], 30)
        assert replay(target, again, 4, 64, text).acceptance == _ledger(emissions)
        assert says == said
        assert len({str(draft) for draft in said}) > 3
