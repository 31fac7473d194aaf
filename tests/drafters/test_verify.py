"""Verification: greedy against a naive loop, mixed batches, uniforms, edges and refusals. Distributions have their own file.

Shape legend: R requests, T rows, K drafts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafters import verify as verify_module
from drafters.contract import Draft
from drafters.sampling import RequestRandom, SamplingParams, draw, probabilities
from drafters.verify import Rule, Verdict, verify

K = 3
RULES: tuple[Rule, ...] = ("standard", "block")
GREEDY = SamplingParams(0.0, 1.0, 0, 0)
SAMPLED = SamplingParams(1.0, 1.0, 0, 0)


def naive_greedy(logits_TV: Tensor, drafted: list[int]) -> tuple[int, int]:
    accepted = 0
    for i, token in enumerate(drafted):
        if token != int(logits_TV[i].argmax()):
            break
        accepted += 1
    return accepted, int(logits_TV[accepted].argmax())


@settings(max_examples=150, deadline=None)
@given(data=st.data(), requests=st.integers(1, 5), width=st.integers(0, 4), packed=st.booleans())
def test_greedy_equals_a_naive_loop_with_ties_and_ragged_drafts(data, requests, width, packed):
    lengths = data.draw(st.lists(st.integers(0, width), min_size=requests, max_size=requests))
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    logits_RTV = torch.randint(0, 3, (requests, width + 1, 4), generator=generator).float()
    draft = Draft(torch.randint(0, 3, (requests, width), generator=generator), lengths)
    for r, length in enumerate(lengths):
        logits_RTV[r, length + 1 :] = float("nan")
    with pytest.MonkeyPatch.context() as patch:
        if packed:
            patch.setattr(verify_module, "_read_in_place", verify_module._read_packed)  # the accelerator's path
        verdict = verify(logits_RTV, draft, [GREEDY] * requests, [RequestRandom(0)] * requests, "standard")
    naive = [naive_greedy(logits_RTV[r], draft.tokens_RK[r, :length].tolist()) for r, length in enumerate(lengths)]
    assert list(zip(verdict.accepted, verdict.next_tokens, strict=True)) == naive


def mixed_batch() -> tuple[Tensor, Draft, list[SamplingParams]]:
    """Greedy and sampled requests, lengths 0 to K, padding that is NaN and tokens there that do not exist."""
    generator = torch.Generator().manual_seed(3)
    requests, vocabulary = 12, 20
    logits_RTV = torch.randn(requests, K + 1, vocabulary, generator=generator) * 3
    q_RKV = (logits_RTV[:, :K] + torch.randn(requests, K, vocabulary, generator=generator)).softmax(-1)
    tokens_RK = q_RKV.flatten(0, 1).multinomial(1, generator=generator).view(requests, K)
    lengths = [r % (K + 1) for r in range(requests)]
    for r, length in enumerate(lengths):
        logits_RTV[r, length + 1 :] = float("nan")
        tokens_RK[r, length:] = -1
    params = [GREEDY if r % 3 == 0 else SamplingParams(1.0 - r / 20, 0.9, 5 * (r % 2), r) for r in range(requests)]
    return logits_RTV, Draft(tokens_RK, lengths, q_RKV), params


def verdict_of(
    logits_RTV: Tensor, draft: Draft, params: list[SamplingParams], rule: Rule, order: list[int]
) -> list[tuple[int, int]]:
    q_RKV = draft.probabilities_RKV
    part = Draft(draft.tokens_RK[order], [draft.lengths[r] for r in order], None if q_RKV is None else q_RKV[order])
    verdict = verify(logits_RTV[order], part, [params[r] for r in order], [RequestRandom(params[r].seed) for r in order], rule)
    return list(zip(verdict.accepted, verdict.next_tokens, strict=True))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_hot", [True, False])
def test_a_request_does_not_depend_on_its_neighbours(rule, one_hot):
    logits_RTV, draft, params = mixed_batch()
    if one_hot:
        draft = Draft(draft.tokens_RK, draft.lengths)
    everyone = list(range(len(params)))
    together = verdict_of(logits_RTV, draft, params, rule, everyone)
    assert [verdict_of(logits_RTV, draft, params, rule, [r])[0] for r in everyone] == together
    assert verdict_of(logits_RTV, draft, params, rule, everyone[::-1]) == together[::-1]
    assert any(accepted for accepted, _ in together)


def test_a_greedy_request_in_a_mixed_batch_ignores_q():
    logits_RTV, draft, params = mixed_batch()
    verdict = verify(logits_RTV, draft, params, [RequestRandom(p.seed) for p in params], "standard")
    for r in range(0, len(params), 3):
        assert (verdict.accepted[r], verdict.next_tokens[r]) == naive_greedy(
            logits_RTV[r], draft.tokens_RK[r, : draft.lengths[r]].tolist()
        )


@pytest.mark.parametrize("rule", RULES)
def test_a_request_takes_one_uniform_per_draft_and_one_for_the_draw(rule):
    logits_RTV, draft, params = mixed_batch()
    randoms = [RequestRandom(p.seed) for p in params]
    verify(logits_RTV, draft, params, randoms, rule)
    for random, param, length in zip(randoms, params, draft.lengths, strict=True):
        taken = 0 if param.greedy else length + 1
        assert random.uniforms(1) == RequestRandom(param.seed).uniforms(taken + 1)[-1:]


@pytest.mark.parametrize("rule", RULES)
def test_a_request_without_a_draft_draws_what_plain_decoding_draws(rule):
    logits_RTV, draft, params = mixed_batch()
    verdict = verify(logits_RTV, draft, params, [RequestRandom(p.seed) for p in params], rule)
    for r in [r for r, length in enumerate(draft.lengths) if length == 0]:
        plain = draw(probabilities(logits_RTV[r, :1], [params[r]]), RequestRandom(params[r].seed).uniforms(1))
        alone = verify(logits_RTV[r : r + 1, :1], None, [params[r]], [RequestRandom(params[r].seed)], rule)
        assert verdict.next_tokens[r] == int(plain) == alone.next_tokens[0]


def test_two_seeds_differ_at_temperature_one_and_not_when_greedy():
    logits_RTV = torch.zeros(1, 1, 1000)

    def tokens(param: SamplingParams) -> list[int]:
        random = RequestRandom(param.seed)
        return [verify(logits_RTV, None, [param], [random], "standard").next_tokens[0] for _ in range(8)]

    sampled = [tokens(replace(SAMPLED, seed=seed)) for seed in (1, 2, 1)]
    assert sampled[0] != sampled[1]
    assert sampled[0] == sampled[2]
    assert tokens(replace(GREEDY, seed=1)) == tokens(replace(GREEDY, seed=2))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_hot", [True, False])
def test_a_draft_the_target_cannot_produce_is_refused_and_never_drawn(rule, one_hot):
    requests = 200
    logits_RTV = torch.tensor([0.0, float("-inf"), 1.0, -1.0]).expand(requests, 2, 4)
    q_RKV = None if one_hot else torch.tensor([0.0, 0.9, 0.1, 0.0]).expand(requests, 1, 4)
    draft = Draft(torch.ones(requests, 1, dtype=torch.int64), [1] * requests, q_RKV)
    verdict = verify(logits_RTV, draft, [SAMPLED] * requests, [RequestRandom(r) for r in range(requests)], rule)
    assert verdict.accepted == [0] * requests
    assert set(verdict.next_tokens) == {0, 2, 3}


def test_a_residual_without_mass_falls_back_to_the_target():
    """Where q exceeds p everywhere by rounding, a refused draft leaves an empty residual, and the draw is from p."""
    target_SV = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    draft = Draft(torch.tensor([[0], [0]]), [1, 1], torch.tensor([[[0.6, 0.6]], [[0.5, 0.5]]]))
    residual_SV = verify_module._residual(target_SV.clone(), draft, [1, 1], [0, 1], [0, 0], [1.0, 1.0])
    assert residual_SV.tolist() == [[0.5, 0.5], [0.0, 0.25]]


def test_an_all_greedy_batch_computes_no_softmax(monkeypatch):
    monkeypatch.setattr(verify_module, "probabilities", lambda *_: pytest.fail("a softmax in the greedy path"))
    assert verify(torch.eye(3).unsqueeze(0), None, [GREEDY], [RequestRandom(0)], "block") == Verdict([0], [0])


def test_low_precision_logits_are_judged_alike():
    logits_RTV = torch.randint(0, 9, (3, 3, 20), generator=torch.Generator().manual_seed(8)).float()
    draft = Draft(logits_RTV[:, :2].argmax(-1), [2, 1, 0])
    for params in (GREEDY, SAMPLED):
        verdicts = [
            verify(z, draft, [params] * 3, [RequestRandom(r) for r in range(3)], "block")
            for z in (logits_RTV, logits_RTV.bfloat16())
        ]
        assert verdicts[0] == verdicts[1]


def call(rule: str = "standard", **changes: object) -> Verdict:
    """A valid call on two sampled requests with one draft each, with parts replaced."""
    parts: dict[str, object] = {
        "logits_RTV": torch.zeros(2, 2, 3),
        "draft": Draft(torch.zeros(2, 1, dtype=torch.int64), [1, 1], torch.full((2, 1, 3), 1 / 3)),
        "params": [SAMPLED] * 2,
        "randoms": [RequestRandom(0), RequestRandom(1)],
    }
    return verify(**{**parts, **changes}, rule=rule)  # wrong on purpose


TOKENS_21 = torch.zeros(2, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "fly"}, "rule: 'fly' is not a lossless acceptance rule"),
        ({"logits_RTV": torch.zeros(2, 1, 3)}, "logits: 1 rows per request cannot judge 1 drafts"),
        ({"logits_RTV": torch.zeros(3, 2, 3)}, "verify: one of each per request is needed, got 3 logits, 2 params"),
        ({"randoms": [RequestRandom(0)]}, "verify: one of each per request is needed"),
        ({"draft": Draft(TOKENS_21, [1])}, "verify: one of each per request is needed"),
        (
            {"draft": Draft(TOKENS_21, [1, 2]), "logits_RTV": torch.zeros(2, 3, 3)},
            r"draft.tokens_RK: shape \(2, 1\) must be at least \[2, 2\]",
        ),
        ({"draft": Draft(TOKENS_21, [1, -1])}, "draft.lengths: -1 is negative"),
        ({"draft": Draft(TOKENS_21, [1, 1], torch.ones(2, 1, 4))}, "draft.probabilities_RKV: shape"),
        ({"draft": Draft(TOKENS_21 + 3, [1, 1])}, "draft: a drafted token lies outside the target's vocabulary of 3"),
        (
            {"draft": Draft(TOKENS_21, [1, 1], torch.tensor([[[1.0, 0, 0]], [[0, 1.0, 0]]]))},
            "draft: token 1 of request 1 has proposal",
        ),
        ({"logits_RTV": torch.full((2, 2, 3), float("nan"))}, "the logits behind it are not finite"),
        ({"logits_RTV": torch.full((2, 2, 3), float("nan")), "params": [GREEDY] * 2}, "logits: request 0 of the batch has NaN"),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(changes, message):
    assert call().accepted
    with pytest.raises(ValueError, match=message) as error:
        call(**changes)
    assert "\n" not in str(error.value)
