"""The loop: every arm decodes what transformers decodes, whatever is drafted, however requests come and go."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drafters.dense import DenseTarget
from drafters.loop import Job
from drafters.ngram import NgramDrafter
from tests.drafters.loop_cases import CPU, GREEDY, NGRAM, Scripted, generated, jobs, loop, prompts, run, tokens_of


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


@pytest.mark.parametrize(("right", "least", "most"), [(0.0, 1.0, 1.05), (0.5, 1.4, 2.4), (0.9, 3.5, 5.0)])
def test_bad_drafts_cost_steps_and_never_tokens(checkpoint, target, right, least, most):
    """Tokens a step: near one where every draft is drawn blindly from 160 tokens, and more as more of them are right."""
    texts = prompts(6)
    truth = generated(checkpoint("llama")[1], texts, 30, eos=None)
    drafter = Scripted([[*text, *more] for text, more in zip(texts, truth, strict=True)], 160, right)
    engine = loop(target, drafter, 5)
    out = run(engine, jobs(texts, 30), 3)
    assert [tokens_of(out[str(i)]) for i in range(6)] == truth
    length = 1 + engine.totals.accepted / engine.totals.verify_steps
    assert least <= length <= most


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


def test_a_first_token_is_delivered_before_its_request_decodes(target):
    engine = loop(target, chunk=512)
    for job in jobs(prompts(3), 6):
        engine.submit(job)
    first = engine.step()
    assert [(e.job_id, len(e.tokens), e.drafted) for e in first] == [("0", 1, None), ("1", 1, None), ("2", 1, None)]
    assert {r.kind for r in engine.records} == {"prefill"}
    assert [len(e.tokens) for e in engine.step()] == [1, 1, 1]
    assert [r.kind for r in engine.records] == ["prefill"] * 3 + ["decode"]


def test_prompts_that_wait_do_not_keep_the_others_from_decoding(target):
    engine = loop(target, chunk=8)
    for job in jobs([tuple(range(2, 26))] * 4, 12):
        engine.submit(job)
    while engine.busy:
        engine.step()
    kinds = [r.kind for r in engine.records]
    begun = kinds.index("decode")
    last = len(kinds) - 1 - kinds[::-1].index("prefill")
    assert all("decode" in pair for pair in zip(kinds[begun:last], kinds[begun + 1 :], strict=False))


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
