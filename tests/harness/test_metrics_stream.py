"""Time from the stream, on scripted streams with known truth."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import request, request_of_steps

from harness.metrics import (
    Missing,
    chunk_gaps_ms,
    depth_bucket,
    is_coalesced,
    output_tps,
    per_user_tps,
    percentiles,
    prefill_tps,
    request_tps,
    step_ms,
    tokens_per_step,
    tpot_ms,
    ttfa_ms,
    ttft_ms,
)
from harness.metrics.ledger import ledger_of

STREAMS = json.loads((Path(__file__).parents[1] / "cases" / "streams.json").read_text("utf-8"))
BUDGET = {"plain": None, "spec3": 3, "bundle": 3, "coalesce": 3, "think": None, "eos10": None}


def row_of(name):
    chunks = STREAMS["streams"][name]
    reasoning = [field != "content" for _, _, field in chunks]
    return request([(at, n) for at, n, _ in chunks], chunk_reasoning=reasoning, max_tokens=40)


@pytest.mark.parametrize("name", STREAMS["streams"])
def test_a_scripted_stream_gives_its_true_times(name):
    row, truth, budget = row_of(name), STREAMS["truth"][name], BUDGET[name]
    assert ttft_ms(row) == truth["ttft_ms"]
    assert ttfa_ms(row) == truth.get("ttfa_ms", truth["ttft_ms"])
    assert row["output_tokens"] == truth["tokens"]
    if truth["tpot_ms"] is None:
        assert tpot_ms(row, budget) == chunk_gaps_ms(row, budget) == per_user_tps(row, budget) == Missing("coalesced")
    else:
        assert tpot_ms(row, budget) == pytest.approx(truth["tpot_ms"], abs=1e-3)
        assert per_user_tps(row, budget) == pytest.approx(1000 / truth["tpot_ms"], rel=1e-3)


def test_a_gap_between_chunks_is_not_the_time_per_token():
    row = row_of("spec3")
    assert set(chunk_gaps_ms(row, 3)) == {20.0}
    assert tpot_ms(row, 3) == pytest.approx(20 / 3)


def test_chunks_are_steps_only_where_the_engine_counts_as_many():
    row = row_of("spec3") | {"steps_with_draft": 13, "steps_without_draft": 0, "prefill_tokens": 1}
    assert step_ms(row, 3) == [20.0] * 13
    assert tokens_per_step(ledger_of(row, 3)) == STREAMS["truth"]["spec3"]["tokens_per_step"]
    assert step_ms(row | {"steps_with_draft": 12}, 3) == Missing("chunks_are_not_steps")
    assert step_ms(row_of("spec3"), 3) == Missing("not_reported")


def test_nothing_after_the_first_chunk_is_null_and_not_zero():
    assert tpot_ms(request([(100, 4)]), 3) == Missing("one_chunk")
    assert chunk_gaps_ms(request([(100, 1)]), 3) == Missing("one_chunk")


def test_a_failed_request_is_in_no_time_metric():
    row = request([(100, 1), (120, 1)], error="timeout", finish=None)
    for found in (ttft_ms(row), ttfa_ms(row), tpot_ms(row, None), request_tps(row), chunk_gaps_ms(row, None), prefill_tps(row)):
        assert found == Missing("failed")
    assert output_tps([row], 1).tokens == 0


def test_empty_and_usage_only_chunks_neither_start_nor_end_the_clock():
    row = request([(50, 0), (100, 1), (120, 1), (500, 0)])
    assert ttft_ms(row) == 100
    assert tpot_ms(row, None) == 20
    assert ttft_ms(request([(50, 0)])) == Missing("no_tokens")


def test_a_token_with_empty_text_counts_for_the_first_token():
    assert ttft_ms(request([(100, 1), (120, 1)], token_ids=[2, 5])) == 100


def test_reasoning_without_an_answer_has_no_time_to_the_answer():
    row = request([(100, 1), (120, 1)], chunk_reasoning=[True, True])
    assert ttft_ms(row) == 100
    assert ttfa_ms(row) == Missing("no_answer")


def test_a_plain_arm_that_sends_two_tokens_at_once_is_coalesced():
    assert is_coalesced(request([(100, 1), (120, 2)]), None)
    assert not is_coalesced(request([(100, 1), (120, 5)]), 4)
    assert is_coalesced(request([(100, 1), (120, 6)]), 4)


def test_time_runs_from_the_send_whatever_the_clock_shows():
    row = request([(100, 1), (120, 1)], sent_ns=10**15)
    assert ttft_ms(row) == 100
    assert request_tps(row) == pytest.approx(2 / 0.12)


def test_prefill_rate_leaves_out_cached_tokens_and_queues():
    assert prefill_tps(request([(100, 1)], prompt_tokens=300, cached_tokens=100)) == 2000
    assert prefill_tps(request([(100, 1)], prompt_tokens=300, cached_tokens=None)) == 3000
    assert prefill_tps(request([(100, 1)], concurrency=8)) == Missing("queued")


def test_depths_fall_into_powers_of_two():
    assert [depth_bucket(n) for n in (1, 128, 129, 512, 513, 4096)] == [128, 128, 256, 512, 1024, 4096]


@given(accepted=st.lists(st.integers(0, 4), min_size=1, max_size=20), step=st.floats(1, 100))
def test_time_per_token_is_decode_time_over_decode_tokens(accepted, step):
    row = request_of_steps([4] * len(accepted), accepted, step_ms=step)
    expected = step * len(accepted) / (len(accepted) + sum(accepted))
    assert tpot_ms(row, 4) == pytest.approx(expected, abs=1e-3)
    assert len(step_ms(row, 4)) == len(accepted)


def test_percentiles_carry_n_and_reasons():
    found = percentiles([1.0, 2.0, 3.0, Missing("one_chunk")])
    assert (found.p50, found.n) == (2.0, 3)
    assert found.p95 == pytest.approx(2.9)
    assert percentiles([Missing("one_chunk")]) == Missing("one_chunk")
    assert percentiles([]) == Missing("no_requests")
