"""Probabilities against transformers' logits processors, draws against exact distributions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from drafters.sampling import RequestRandom, SamplingParams, draw, probabilities

PLAIN = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=0)
GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=0)


def transformers_probabilities(logits_NV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    ids_N0 = torch.empty(logits_NV.shape[0], 0, dtype=torch.int64)
    scores_NV = TemperatureLogitsWarper(params.temperature)(ids_N0, logits_NV)
    if params.top_k:
        scores_NV = TopKLogitsWarper(params.top_k)(ids_N0, scores_NV)
    if params.top_p < 1:
        scores_NV = TopPLogitsWarper(params.top_p)(ids_N0, scores_NV)
    return scores_NV.softmax(-1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocabulary=st.sampled_from([1, 2, 7, 300, 3000]),
    temperature=st.floats(0.2, 3.0),
    top_p=st.sampled_from([0.01, 0.3, 0.8, 0.95, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 4000]),
)
def test_probabilities_equal_transformers_processors(seed, vocabulary, temperature, top_p, top_k):
    logits_NV = torch.randn(3, vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3
    params = SamplingParams(temperature, top_p, top_k, 0)
    expected_NV = transformers_probabilities(logits_NV, params)
    torch.testing.assert_close(probabilities(logits_NV, [params] * 3), expected_NV, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.integers(-3, 3), min_size=2, max_size=12),
    top_p=st.sampled_from([0.05, 0.33, 0.6, 0.9, 1.0]),
    top_k=st.integers(0, 12),
)
def test_ties_at_a_cut_are_all_kept_where_transformers_keeps_an_arbitrary_part(logits, top_p, top_k):
    logits_1V = torch.tensor([logits], dtype=torch.float64)
    params = SamplingParams(1.0, top_p, top_k, 0)
    ours_V = probabilities(logits_1V, [params])[0] > 0
    theirs_V = transformers_probabilities(logits_1V, params)[0] > 0
    assert bool((ours_V | ~theirs_V).all())
    edge = logits_1V[0][theirs_V].min()
    assert bool((logits_1V[0][ours_V & ~theirs_V] == edge).all())
    assert torch.equal(ours_V, logits_1V[0] >= logits_1V[0][ours_V].min())


def test_ties_at_the_top_k_cut_equal_transformers():
    logits_1V = torch.tensor([[2.0, 1.0, 1.0, 0.0, 1.0]])
    params = SamplingParams(1.0, 1.0, 2, 0)
    torch.testing.assert_close(probabilities(logits_1V, [params]), transformers_probabilities(logits_1V, params))
    assert int((probabilities(logits_1V, [params]) > 0).sum()) == 4


def test_a_nucleus_wider_than_the_first_candidates_is_exact():
    logits_NV = torch.randn(2, 40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 0.1
    params = SamplingParams(1.0, 0.9, 0, 0)
    expected_NV = transformers_probabilities(logits_NV, params)
    assert int((expected_NV[0] > 0).sum()) > 30_000
    torch.testing.assert_close(probabilities(logits_NV, [params] * 2), expected_NV, rtol=1e-9, atol=1e-15)


def test_every_row_has_its_own_parameters():
    """Among them cuts that a first partial sort settles and cuts that need more candidates."""
    logits_NV = torch.randn(7, 2000, generator=torch.Generator().manual_seed(2)) * 3
    rows = [(1.0, 1.0, 0), (0.0, 0.9, 4), (0.7, 0.9, 0), (1.3, 1.0, 5), (0.5, 0.5, 3), (1.5, 0.999, 0), (1.0, 0.95, 700)]
    params = [SamplingParams(temperature, top_p, top_k, 0) for temperature, top_p, top_k in rows]
    together_NV = probabilities(logits_NV, params)
    for n, param in enumerate(params):
        assert torch.equal(together_NV[n], probabilities(logits_NV[n : n + 1], [param])[0])
        if not param.greedy:
            torch.testing.assert_close(together_NV[n : n + 1], transformers_probabilities(logits_NV[n : n + 1], param))
    assert (together_NV > 0).sum(-1).tolist()[1] == 1
    torch.testing.assert_close(together_NV.sum(-1), torch.ones(7))


def test_a_greedy_row_is_one_hot_at_the_first_of_tied_maxima():
    p_NV = probabilities(torch.tensor([[0.0, 5.0, 5.0, 1.0]]), [GREEDY])
    assert p_NV.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_a_tiny_temperature_does_not_overflow():
    p_NV = probabilities(torch.tensor([[30.0, 31.0, -50.0]]), [SamplingParams(1e-30, 1.0, 0, 0)])
    assert p_NV.tolist() == [[0.0, 1.0, 0.0]]


def test_low_precision_logits_give_float32_and_double_stays_double():
    logits_NV = torch.randn(1, 10)
    assert probabilities(logits_NV.bfloat16(), [PLAIN]).dtype == torch.float32
    assert probabilities(logits_NV.double(), [PLAIN]).dtype == torch.float64


def test_logits_are_left_as_they_were():
    logits_NV = torch.randn(3, 20)
    before_NV = logits_NV.clone()
    probabilities(logits_NV, [SamplingParams(0.7, 0.8, 5, 0), GREEDY, PLAIN])
    assert torch.equal(logits_NV, before_NV)


def test_draws_follow_the_distribution():
    p_V = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.0, 0.25])
    uniforms = RequestRandom(3).uniforms(40_000)
    counts_V = torch.bincount(draw(p_V.expand(len(uniforms), -1), uniforms), minlength=6)
    assert counts_V[[1, 4]].tolist() == [0, 0]
    kept_V = p_V > 0
    expected = p_V[kept_V].double() / p_V.double().sum() * len(uniforms)
    assert chisquare(counts_V[kept_V].numpy(), expected.numpy()).pvalue > 1e-4


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-8, 0.1, 1.0, 3e20]), min_size=1, max_size=8).filter(any),
    uniform=st.sampled_from([0.0, 5e-324, 1e-12, 0.5, 1 - 1e-12, 1 - 2**-53, 1.0]),
)
def test_a_token_of_probability_zero_is_never_drawn(weights, uniform):
    token = int(draw(torch.tensor([weights], dtype=torch.float64), [uniform]))
    assert weights[token] > 0


def test_the_inverse_cdf_is_exact_at_its_edges():
    p_NV = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).expand(4, -1)
    assert draw(p_NV, [0.0, 0.25 - 2**-54, 0.25, 1 - 2**-53]).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_a_row_without_a_finite_mass_is_refused(row):
    with pytest.raises(ValueError, match="no finite positive mass"):
        draw(torch.tensor([[0.5, 0.5], row]), [0.1, 0.1])


def test_a_stream_depends_on_its_seed_and_its_count_only():
    whole = RequestRandom(7).uniforms(10)
    parts = RequestRandom(7)
    first = parts.uniforms(3)
    RequestRandom(8).uniforms(5)
    assert first + parts.uniforms(7) == whole
    assert RequestRandom(8).uniforms(10) != whole
    assert all(0 <= u < 1 for u in whole)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
    ],
)
def test_wrong_parameters_are_refused_by_name(field, value):
    fields = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0} | {field: value}
    with pytest.raises(ValueError, match=f"^{field}: ") as error:
        SamplingParams(**fields)
    assert "\n" not in str(error.value)


def test_one_parameter_and_one_uniform_per_row_are_needed():
    with pytest.raises(ValueError, match="rows of params"):
        probabilities(torch.zeros(2, 3), [PLAIN])
    with pytest.raises(ValueError, match="one per row"):
        draw(torch.ones(2, 3), [0.5])
