"""The loop: every arm decodes what transformers decodes, whatever is drafted, however requests come and go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from drafters.contract import Draft, Drafter, Tap
from drafters.dense import DenseTarget
from drafters.loop import Emission, Job, Loop
from drafters.ngram import NgramDrafter
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


@pytest.fixture
def target(checkpoint) -> DenseTarget:
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=8, max_length=256)


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("budget", [0, 1, 3, 7])
def test_greedy_output_is_that_of_transformers_for_every_budget_and_concurrency(checkpoint, target, budget, at_once):
    texts = prompts(11)
    truth = generated(checkpoint("llama")[1], texts, 40, eos=None)
    drafter = NgramDrafter(target, NGRAM, None) if budget else None
    out = run(loop(target, drafter, budget), jobs(texts, 40), at_once)
    assert [tokens_of(out[str(i)]) for i in range(len(texts))] == truth


def test_the_embedded_model_decodes_twenty_prompts_as_transformers_does_in_both_arms(embedded_folder):
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(embedded_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    texts = [_chat(tokenizer, f"Count from {n} to {n + 5}, then say it again, then name a colour.") for n in range(20)]
    truth = generated(model, texts, 20, eos=tokenizer.eos_token_id)
    del model
    target = DenseTarget(embedded_folder, torch.float32, CPU, slots=8, max_length=128)
    for budget, at_once in [(0, 1), (0, 8), (1, 1), (1, 8), (3, 1), (3, 8), (7, 1), (7, 8)]:
        drafter = NgramDrafter(target, NGRAM, None) if budget else None
        engine = loop(target, drafter, budget, chunk=64)
        out = run(engine, jobs(texts, 20, [tokenizer.eos_token_id]), at_once)
        assert [tokens_of(out[str(i)]) for i in range(20)] == truth, (budget, at_once)
        assert budget == 0 or engine.totals.accepted > 0


def _chat(tokenizer, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def test_an_oracle_is_always_right_and_every_step_gives_one_more_than_the_budget(checkpoint, target):
    texts = prompts(4)
    truth = generated(checkpoint("llama")[1], texts, 41, eos=None)
    oracle = Scripted([[*text, *more] for text, more in zip(texts, truth, strict=True)], 160)
    engine = loop(target, oracle, 4)
    out = run(engine, jobs(texts, 41), 4)
    assert [tokens_of(out[str(i)]) for i in range(4)] == truth
    assert engine.totals.accepted == engine.totals.drafted
    assert [len(e.tokens) for e in out["0"]] == [1, *[5] * 8]


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9])
def test_bad_drafts_cost_steps_and_never_tokens(checkpoint, target, right):
    texts = prompts(6)
    truth = generated(checkpoint("llama")[1], texts, 30, eos=None)
    drafter = Scripted([[*text, *more] for text, more in zip(texts, truth, strict=True)], 160, right)
    out = run(loop(target, drafter, 5), jobs(texts, 30), 3)
    assert [tokens_of(out[str(i)]) for i in range(6)] == truth


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_the_prefill_chunk_changes_nothing(checkpoint, target, chunk):
    texts = prompts(3)
    truth = generated(checkpoint("llama")[1], texts, 10, eos=None)
    out = run(loop(target, NgramDrafter(target, NGRAM, None), 3, chunk=chunk), jobs(texts, 10), 3)
    assert [tokens_of(out[str(i)]) for i in range(3)] == truth


def test_a_stop_token_inside_an_accepted_run_ends_the_request_there(checkpoint, target):
    text = prompts(1)[0]
    truth = generated(checkpoint("llama")[1], [text], 30, eos=None)[0]
    stop = next(t for i, t in enumerate(truth) if i >= 6 and t not in truth[:i])
    cut = truth.index(stop) + 1
    oracle = Scripted([[*text, *truth]], 160)
    engine = loop(target, oracle, 7)
    out = run(engine, jobs([text], 30, [stop]), 1)["0"]
    assert tokens_of(out) == truth[:cut]
    assert out[-1].finish == "stop"
    assert out[-1].accepted is not None
    assert out[-1].accepted >= len(out[-1].tokens) or (cut - 1) % 8 == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_max_tokens_is_met_exactly_and_no_draft_could_pass_it(checkpoint, target, limit):
    text = prompts(1)[0]
    truth = generated(checkpoint("llama")[1], [text], 20, eos=None)[0]
    out = run(loop(target, Scripted([[*text, *truth]], 160), 7), jobs([text], limit), 1)["0"]
    assert tokens_of(out) == truth[:limit]
    assert out[-1].finish == "length"
    assert all(e.drafted is None or e.drafted < limit for e in out)


def test_totals_satisfy_the_ledger(target):
    texts = prompts(9)
    engine = loop(target, NgramDrafter(target, NGRAM, None), 4)
    out = run(engine, jobs(texts, 25), 4)
    totals = engine.totals
    assert totals.output_tokens == sum(len(tokens_of(e)) for e in out.values()) == 9 * 25
    assert totals.output_tokens == 9 + totals.verify_steps + totals.draftless_steps + totals.accepted
    decode = [r for r in engine.records if r.kind == "decode"]
    assert sum(r.drafted for r in decode) == totals.drafted
    assert sum(r.emitted for r in engine.records) == totals.output_tokens
    assert all(r.draft_ns + r.verify_ns + r.sample_ns <= r.total_ns for r in engine.records)


def test_a_cancelled_request_frees_its_slot_and_leaves_the_others_alone(checkpoint, target):
    texts = prompts(3)
    truth = generated(checkpoint("llama")[1], texts, 20, eos=None)
    engine = loop(target)
    for job in jobs(texts, 20):
        engine.submit(job)
    got: dict[str, list[int]] = {}
    for step in range(60):
        if step == 6:
            engine.cancel("1")
        for e in engine.step():
            got.setdefault(e.job_id, []).extend(e.tokens)
    assert got["0"] == truth[0]
    assert got["2"] == truth[2]
    assert len(got["1"]) < 20
    assert not engine.busy


def test_a_request_that_cannot_fit_is_refused_with_the_keys_to_change(target):
    with pytest.raises(ValueError, match=r"target\.context"):
        loop(target).submit(Job("big", tuple(range(2, 150)), 200, frozenset(), GREEDY))
    with pytest.raises(ValueError, match="empty prompt"):
        loop(target).submit(Job("none", (), 2, frozenset(), GREEDY))


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


class OneHot(Uniform):
    """Always drafts the same tokens, as point masses."""

    def __init__(self) -> None: ...

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        width = max(budgets)
        return Draft(torch.full((len(slots), width), 3), [max(b, 0) for b in budgets]) if width > 0 else None


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
