"""The acceptance ledger: definitions, nulls, and identities on simulated requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import request, request_of_steps

from harness.metrics import (
    AcceptanceRate,
    Ledger,
    Missing,
    acceptance_length,
    acceptance_rate,
    before_stop,
    coverage,
    identity_errors,
    ledger_of,
    mean,
    overshoot,
    pool,
    position_rate,
    tokens_per_step,
    wasted_per_step,
)

NONE = Ledger(4, None, None, None, None, None, None, 10, None)
ZERO = Ledger(4, 1, 0, 0, 0, 0, 0, 1, 0)
PLAIN = Ledger(None, 1, 0, 9, 0, 0, 0, 10, 0)

STEPS = st.lists(st.integers(0, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), min_size=1, max_size=12)


def test_a_null_has_its_reason_and_is_never_one_or_zero():
    for metric in (acceptance_length, acceptance_rate, tokens_per_step, wasted_per_step, coverage):
        assert metric(NONE) == Missing("not_reported")
    assert acceptance_length(ZERO) == tokens_per_step(ZERO) == wasted_per_step(ZERO) == coverage(ZERO) == Missing("no_steps")
    assert acceptance_rate(ZERO) == Missing("nothing_drafted")
    for metric in (acceptance_length, acceptance_rate, wasted_per_step, coverage):
        assert metric(PLAIN) == Missing("plain_arm")
    assert tokens_per_step(PLAIN) == 1.0
    assert position_rate([request()], None) == Missing("plain_arm")
    assert position_rate([request()], 4) == Missing("not_reported")


def test_a_reason_that_nobody_explains_is_refused():
    with pytest.raises(ValueError, match="no known reason"):
        Missing("because")


def test_a_rate_is_never_shown_without_its_budget():
    assert str(AcceptanceRate(0.4167, 4)) == "0.42 @K=4"
    with pytest.raises(TypeError):
        float(AcceptanceRate(0.4167, 4))


def test_pooling_refuses_mixed_budgets_and_keeps_nulls():
    with pytest.raises(ValueError, match="one draft budget"):
        pool([ZERO, PLAIN])
    assert acceptance_length(pool([ZERO, NONE])) == Missing("not_reported")


@given(steps=STEPS, cut=st.integers(0, 4))
def test_identities_hold_on_every_request_and_on_the_pool(steps, cut):
    drafted, accepted = zip(*steps, strict=True)
    cut = min(cut, accepted[-1])
    row = request_of_steps(drafted, accepted, cut=cut)
    ledger = ledger_of(row, 4)
    assert identity_errors(ledger) == []
    assert overshoot(ledger) == max(0, cut - 1)
    length = acceptance_length(ledger)
    assert isinstance(length, Missing) or 1 <= length <= 5
    both = pool([ledger, ledger])
    assert identity_errors(both) == []
    assert acceptance_length(both) == length


def test_a_broken_ledger_is_told_in_words():
    good = ledger_of(request_of_steps([4, 4], [4, 2]), 4)
    assert identity_errors(good) == []
    broken = Ledger(4, 1, 2, 0, 8, 6, 6, 10, 0)
    assert identity_errors(broken) == ["O = 10 but P+S+Z+A-e = 9"]
    assert "exceeds D = 3" in identity_errors(Ledger(4, 1, 2, 0, 3, 6, 6, 9, 0))[0]
    assert acceptance_length(Ledger(2, 1, 2, 0, 4, 6, 6, 9, 0)) == Missing("exceeds_budget")


def test_position_rates_name_three_denominators():
    rows = [request_of_steps([2, 4, 0, 4], [2, 1, 0, 0])]
    rates = position_rate(rows, 4)
    assert rates.steps == 3
    assert rates.accepted == (2, 1, 0, 0)
    assert rates.drafted == (3, 3, 2, 2)
    assert rates.marginal == (2 / 3, 1 / 3, 0, 0)
    assert rates.conditional == (2 / 3, 1 / 3, 0, 0)
    assert rates.ratio == (2 / 3, 1 / 2, 0, Missing("no_steps"))


@given(steps=STEPS)
def test_position_counts_add_up_to_the_ledger(steps):
    drafted, accepted = zip(*steps, strict=True)
    row = request_of_steps(drafted, accepted)
    rates = position_rate([row], 4)
    if isinstance(rates, Missing):
        assert sum(drafted) == 0
    else:
        assert (sum(rates.accepted), sum(rates.drafted)) == (row["accepted"], row["drafted"])
        assert rates.steps == row["steps_with_draft"]


def test_positions_count_what_was_delivered_not_the_overshoot():
    rates = position_rate([request_of_steps([4], [4], cut=3)], 4)
    assert rates.accepted == (1, 1, 0, 0)


@given(steps=STEPS, stop_at=st.integers(0, 30), data=st.data())
def test_a_fixed_length_request_cut_at_its_stop_token_has_the_ledger_of_a_natural_stop(steps, stop_at, data):
    drafted, accepted = zip(*steps, strict=True)
    tokens = 1 + sum(a + 1 for a in accepted)
    stop_at = min(stop_at, tokens - 1)
    ids = [7 if i == stop_at else 1 for i in range(tokens)]
    fixed = before_stop(request_of_steps(drafted, accepted, token_ids=ids, ignore_eos=True), 4, {7})
    assert fixed == _natural(drafted, accepted, stop_at + 1)


def _natural(drafted, accepted, output):
    """The same steps, ended by the engine as soon as `output` tokens are out: token by token, without arithmetic."""
    kept, out = [], 1
    for d, a in zip(drafted, accepted, strict=True):
        if out == output:
            break
        made = min(a + 1, output - out)
        out += made
        kept.append((d, a, a + 1 - made))
    if not kept:
        return Ledger(4, 1, 0, 0, 0, 0, 0, 1, 0)
    ds, accs, cuts = zip(*kept, strict=True)
    return ledger_of(request_of_steps(ds, accs, cut=cuts[-1]), 4)


def test_text_before_the_stop_without_step_counts_has_an_unknown_ledger():
    row = request([(100, 1), (120, 3)], token_ids=[1, 1, 7, 1], ignore_eos=True)
    assert acceptance_length(before_stop(row, 4, {7})) == Missing("not_reported")
    assert before_stop(row, 4, {9}) == ledger_of(row, 4)


def test_the_mean_over_requests_skips_nulls_and_keeps_their_reason_when_nothing_is_left():
    assert mean([2.0, Missing("no_steps"), 4.0]) == 3.0
    assert mean([Missing("no_steps")]) == Missing("no_steps")
