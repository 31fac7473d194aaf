"""Every acceptance rule against exact distributions.

Shape legend: R requests, T rows, K drafts, V vocabulary. The toy target is a second-order Markov chain: a token's distribution
depends on the two tokens before it, so a wrong row, a wrong residual or a wrong bonus changes the joint distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from drafters import verify as verify_module
from drafters.contract import Draft
from drafters.sampling import RequestRandom, SamplingParams, probabilities
from drafters.verify import Rule, verify

V, K, LENGTH = 5, 3, 3
START = (1, 3)
RULES: tuple[Rule, ...] = ("standard", "block")
GREEDY = SamplingParams(0.0, 1.0, 0, 0)
SAMPLERS = {"T1": SamplingParams(1.0, 1.0, 0, 0), "T0.7 top-k 4 top-p 0.9": SamplingParams(0.7, 0.9, 4, 0)}
TARGET_VVV = torch.randn(V, V, V, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 1.2
CLOSE_VVV = TARGET_VVV + 0.7 * torch.randn(V, V, V, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
FAR_VVV = torch.randn(V, V, V, dtype=torch.float64, generator=torch.Generator().manual_seed(7)) * 1.5

Drafting = Callable[[Tensor, torch.Generator], Draft]


def chain(logits_VVV: Tensor, greedy: bool) -> Drafting:
    """Drafts that condition on the drafts before them: argmax with point masses, or drawn with their q."""

    def propose(last_R2: Tensor, generator: torch.Generator) -> Draft:
        context_RT, q = last_R2, []
        for _ in range(K):
            q.append(logits_VVV[context_RT[:, -2], context_RT[:, -1]].softmax(-1))
            token_R1 = q[-1].argmax(-1, keepdim=True) if greedy else q[-1].multinomial(1, generator=generator)
            context_RT = torch.cat([context_RT, token_R1], dim=1)
        return Draft(context_RT[:, 2:], [K] * len(last_R2), None if greedy else torch.stack(q, dim=1))

    return propose


def marginals(last_R2: Tensor, generator: torch.Generator) -> Draft:
    """A block drafter's independent slots: q does not depend on the drafts before it."""
    q_RKV = torch.stack(
        [CLOSE_VVV[last_R2[:, 0], last_R2[:, 1]], *[CLOSE_VVV.mean((0, 1)).expand(len(last_R2), V)] * (K - 1)], 1
    )
    q_RKV = q_RKV.softmax(-1)
    return Draft(q_RKV.flatten(0, 1).multinomial(1, generator=generator).view(-1, K), [K] * len(last_R2), q_RKV)


def shortened(drafting: Drafting) -> Drafting:
    """The same drafts cut to random lengths, none included."""

    def propose(last_R2: Tensor, generator: torch.Generator) -> Draft:
        draft = drafting(last_R2, generator)
        lengths = torch.randint(0, K + 1, (len(last_R2),), generator=generator).tolist()
        return Draft(draft.tokens_RK, lengths, draft.probabilities_RKV)

    return propose


def none(last_R2: Tensor, generator: torch.Generator) -> Draft | None:
    return None


DRAFTINGS: dict[str, Drafting] = {
    "no draft": none,  # proposes nothing
    "good one-hot": chain(TARGET_VVV, greedy=True),
    "bad one-hot, ragged": shortened(chain(-TARGET_VVV, greedy=True)),
    "close q": chain(CLOSE_VVV, greedy=False),
    "far q": chain(FAR_VVV, greedy=False),
    "close q, ragged": shortened(chain(CLOSE_VVV, greedy=False)),
    "independent q": marginals,
}


class Row:
    """A cheap stand-in for `RequestRandom` where thousands are needed: a row of one block of uniforms."""

    def __init__(self, uniforms: list[float]) -> None:
        self.rest = uniforms

    def uniforms(self, count: int) -> list[float]:
        drawn, self.rest = self.rest[:count], self.rest[count:]
        return drawn


def streams(requests: int, seed: int) -> list[RequestRandom]:
    return [Row(row) for row in np.random.default_rng(seed).random((requests, LENGTH * (K + 1))).tolist()]  # stand-in


def target_logits(last_R2: Tensor, draft: Draft | None) -> Tensor:
    context_RT = last_R2 if draft is None else torch.cat([last_R2, draft.tokens_RK], dim=1)
    return TARGET_VVV[context_RT[:, :-1], context_RT[:, 1:]]


def decode(drafting: Drafting, rule: Rule, params: SamplingParams, randoms: list[RequestRandom], seed: int) -> np.ndarray:
    """LENGTH tokens of every request, [R, LENGTH], by as many verifications as it takes."""
    generator = torch.Generator().manual_seed(seed)
    texts = [list(START) for _ in randoms]
    while active := [r for r, text in enumerate(texts) if len(text) < 2 + LENGTH]:
        last_R2 = torch.tensor([texts[r][-2:] for r in active])
        draft = drafting(last_R2, generator)
        verdict = verify(target_logits(last_R2, draft), draft, [params] * len(active), [randoms[r] for r in active], rule)
        drafted = draft.tokens_RK.tolist() if draft is not None else [[]] * len(active)
        for r, tokens, accepted, token in zip(active, drafted, verdict.accepted, verdict.next_tokens, strict=True):
            texts[r] += [*tokens[:accepted], token]
    return np.array([text[2 : 2 + LENGTH] for text in texts])


def p_values(tokens_RL: np.ndarray, params: SamplingParams) -> tuple[float, float]:
    """Chi-square of the first token and of all LENGTH tokens jointly against the exact probabilities."""
    p_VVV = probabilities(TARGET_VVV.view(-1, V), [params] * V * V).view(V, V, V)
    joint = {}
    for tokens in itertools.product(range(V), repeat=LENGTH):
        context = (*START, *tokens)
        joint[tokens] = float(np.prod([p_VVV[context[i], context[i + 1], context[i + 2]] for i in range(LENGTH)]))
    expected = np.array(list(joint.values())).reshape([V] * LENGTH) * len(tokens_RL)
    observed = np.zeros_like(expected)
    np.add.at(observed, tuple(tokens_RL.T), 1)
    return pooled_p_value(observed.sum((1, 2)), expected.sum((1, 2))), pooled_p_value(observed.ravel(), expected.ravel())


def pooled_p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    """Cells that expect under 5 are pooled; a count in a cell that expects none is impossible."""
    if observed[expected == 0].any():
        return 0.0
    small = expected < 5
    cells = [np.append(values[~small], values[small].sum()) for values in (observed, expected)]
    return float(chisquare(*[values[cells[1] > 0] for values in cells]).pvalue)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("drafting", DRAFTINGS)
@pytest.mark.parametrize("rule", RULES)
def test_output_follows_the_target_exactly(rule, drafting, sampler):
    tokens_RL = decode(DRAFTINGS[drafting], rule, SAMPLERS[sampler], streams(8_000, 11), seed=11)
    first, joint = p_values(tokens_RL, SAMPLERS[sampler])
    assert first > 1e-4
    assert joint > 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_output_follows_the_target_exactly_with_one_seed_per_request(rule):
    randoms = [RequestRandom(r) for r in range(8_000)]
    assert min(p_values(decode(DRAFTINGS["close q"], rule, SAMPLERS["T1"], randoms, seed=10), SAMPLERS["T1"])) > 1e-4


def with_q_of(logits_VVV: Tensor, temperature: float) -> Drafting:
    """Drafts drawn at temperature 1 and declared at another: what a drafter does that reports the wrong q."""

    def propose(last_R2: Tensor, generator: torch.Generator) -> Draft:
        draft = chain(logits_VVV, greedy=False)(last_R2, generator)
        assert draft.probabilities_RKV is not None
        return Draft(draft.tokens_RK, draft.lengths, (draft.probabilities_RKV.log() / temperature).softmax(-1))

    return propose


def drawn_but_declared_one_hot(last_R2: Tensor, generator: torch.Generator) -> Draft:
    """Lossless all the same: a point mass may be chosen in any way that does not see the verifier's uniforms."""
    return Draft(chain(CLOSE_VVV, greedy=False)(last_R2, generator).tokens_RK, [K] * len(last_R2))


def greedy_but_declared_drawn(last_R2: Tensor, generator: torch.Generator) -> Draft:
    drawn = chain(CLOSE_VVV, greedy=True)(last_R2, generator)
    context_RT = torch.cat([last_R2, drawn.tokens_RK], dim=1)
    q_RKV = CLOSE_VVV[context_RT[:, :K], context_RT[:, 1 : K + 1]].softmax(-1)
    return Draft(drawn.tokens_RK, drawn.lengths, q_RKV)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wrong", [with_q_of(FAR_VVV, 0.5), with_q_of(CLOSE_VVV, 2.0), greedy_but_declared_drawn])
def test_the_chi_square_sees_a_wrong_q(rule, wrong):
    assert min(p_values(decode(wrong, rule, SAMPLERS["T1"], streams(4_000, 12), seed=12), SAMPLERS["T1"])) < 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_a_drawn_token_may_be_declared_a_point_mass(rule):
    tokens_RL = decode(drawn_but_declared_one_hot, rule, SAMPLERS["T1"], streams(8_000, 13), seed=13)
    assert min(p_values(tokens_RL, SAMPLERS["T1"])) > 1e-4


@pytest.mark.parametrize(
    ("rule", "drafting", "name", "mutant"),
    [
        ("standard", "far q", "_residual", lambda target_SV, *_: target_SV),
        ("standard", "bad one-hot, ragged", "_residual", lambda target_SV, *_: target_SV),
        ("block", "close q", "_residual", lambda target_SV, *_: target_SV),
        ("block", "independent q", "_excess", lambda p, d, rows, s, judged, w: [[1.0] * len(j.p) for j in judged]),
        ("block", "far q", "_block", lambda w, m, u: max(i for i, w_i in enumerate(w) if i == 0 or u[i - 1] < w_i)),
        (
            "standard",
            "far q",
            "_standard",
            lambda judged, u: verify_module._block(verify_module._path_weights(judged), [0] * 9, u),
        ),
    ],
)
def test_the_chi_square_sees_a_wrong_rule(monkeypatch, rule, drafting, name, mutant):
    monkeypatch.setattr(verify_module, name, mutant)
    tokens_RL = decode(DRAFTINGS[drafting], rule, SAMPLERS["T1"], streams(4_000, 14), seed=14)
    assert min(p_values(tokens_RL, SAMPLERS["T1"])) < 1e-6


def test_block_accepts_what_the_paper_computes_by_hand():
    """Target (1/3, 2/3), draft (2/3, 1/3), two drafts: 10/9 accepted by the standard rule, 11/9 by block verification."""
    requests = 20_000
    q_RKV = torch.tensor([2 / 3, 1 / 3]).expand(requests, 2, 2)
    tokens_RK = q_RKV.flatten(0, 1).multinomial(1, generator=torch.Generator().manual_seed(1)).view(requests, 2)
    logits_RTV = torch.tensor([1 / 3, 2 / 3]).log().expand(requests, 3, 2)
    draft = Draft(tokens_RK, [2] * requests, q_RKV)
    for rule, expected in (("standard", 10 / 9), ("block", 11 / 9)):
        verdict = verify(logits_RTV, draft, [SAMPLERS["T1"]] * requests, streams(requests, seed=3), rule)
        error = np.std(verdict.accepted) / requests**0.5
        assert abs(np.mean(verdict.accepted) - expected) < 4 * error


@pytest.mark.parametrize("drafting", ["good one-hot", "close q", "far q", "independent q"])
def test_block_accepts_no_fewer_than_standard_in_expectation(drafting):
    requests = 10_000
    last_R2 = torch.tensor(START).expand(requests, 2)
    draft = DRAFTINGS[drafting](last_R2, torch.Generator().manual_seed(2))
    mean = {}
    for rule in RULES:
        randoms = streams(requests, seed=4)
        mean[rule] = np.mean(verify(target_logits(last_R2, draft), draft, [SAMPLERS["T1"]] * requests, randoms, rule).accepted)
    noise = 4 * K / requests**0.5
    assert mean["block"] > mean["standard"] - (
        noise if DRAFTINGS[drafting](last_R2[:1], torch.Generator()).probabilities_RKV is None else 0
    )


@pytest.mark.parametrize("rule", RULES)
def test_an_oracle_draft_is_accepted_whole(rule):
    requests = 500
    last_R2 = torch.tensor(START).expand(requests, 2)
    greedy = chain(TARGET_VVV, greedy=True)(last_R2, torch.Generator())
    sampled = chain(TARGET_VVV, greedy=False)(last_R2, torch.Generator().manual_seed(4))
    for draft, params in ((greedy, GREEDY), (sampled, SAMPLERS["T1"])):
        randoms = [RequestRandom(r) for r in range(requests)]
        verdict = verify(target_logits(last_R2, draft), draft, [params] * requests, randoms, rule)
        assert verdict.accepted == [K] * requests
