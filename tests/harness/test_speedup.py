"""Speedup from rows: pairing, blocks, and what is refused."""

import math

import pytest
from synthetic import request, simulate

from harness.metrics import Missing, request_tps
from harness.metrics.pairs import block_log_ratios, paired_log_ratios, shared_blocks
from harness.speedup import decode_speedup, latency_speedup, output_speedup

ROWS = simulate()["requests"]


def arms(concurrency, rows=ROWS, names=("plain", "ngram", "plain2")):
    return {name: [r for r in rows if r["arm"] == name and r["concurrency"] == concurrency] for name in names}


def test_at_concurrency_one_every_prompt_is_paired_with_itself_in_its_block():
    rows = arms(1)
    pairs = paired_log_ratios(rows, "ngram", "plain", request_tps)
    assert pairs.log_ratio_BP.shape == (3, 12)
    assert set(pairs.strata) == {"code", "chat"}
    key = {(r["block"], r["prompt_set"], r["prompt_id"]): r for r in rows["plain"]}
    ours = {(r["block"], r["prompt_set"], r["prompt_id"]): r for r in rows["ngram"]}
    at = (2, *pairs.prompts[5])
    assert pairs.log_ratio_BP[2, 5] == pytest.approx(math.log(request_tps(ours[at]) / request_tps(key[at])))


def test_a_prompt_that_failed_in_any_arm_or_block_is_in_no_pair():
    rows = arms(1)
    broken = [r | {"error": "x"} if (r["block"], r["prompt_id"]) == (1, "p3") else r for r in rows["plain2"]]
    pairs = paired_log_ratios(rows | {"plain2": broken}, "ngram", "plain", request_tps)
    assert "p3" not in {prompt for _, prompt in pairs.prompts}
    assert len(pairs.prompts) == 10


def test_a_block_that_was_cut_short_is_no_pair():
    cut = [r for r in ROWS if not (r["block"] == 2 and r["arm"] == "ngram" and r["prompt_set"] == "chat")]
    assert shared_blocks(arms(1, cut)) == (0, 1)
    assert output_speedup(arms(1, cut), "ngram", "plain", 1).blocks == 2
    assert output_speedup(arms(2, cut), "ngram", "plain", 2).blocks == 2


def test_identical_arms_are_not_told_apart_and_a_fast_one_is():
    for concurrency in (1, 2):
        same = output_speedup(arms(concurrency), "plain2", "plain", concurrency)
        fast = output_speedup(arms(concurrency), "ngram", "plain", concurrency)
        assert same.low < 1 < same.high
        assert 1.5 < fast.low < fast.ratio < fast.high
    assert output_speedup(arms(1), "plain", "plain", 1).ratio == 1.0


def test_above_concurrency_one_the_rate_of_the_batch_counts():
    rows = arms(2)
    logs = block_log_ratios(rows["ngram"], rows["plain"], 2)
    assert logs.shape == (3,)
    assert output_speedup(rows, "ngram", "plain", 2).ratio == pytest.approx(math.exp(logs.mean()))
    assert block_log_ratios(rows["ngram"], rows["plain"], 9) == Missing("concurrency_not_reached")


def test_the_decode_ratio_leaves_prefill_out():
    budgets = {"plain": None, "plain2": None, "ngram": 4}
    whole, decode = output_speedup(arms(1), "ngram", "plain", 1), decode_speedup(arms(1), "ngram", "plain", budgets)
    assert decode.ratio > whole.ratio
    assert decode.ratio == pytest.approx(20 / 24 * 3.05, rel=0.05)


def test_a_coalesced_stream_has_no_decode_ratio():
    budgets = {"plain": None, "plain2": None, "ngram": 1}
    assert decode_speedup(arms(1), "ngram", "plain", budgets) == Missing("coalesced")


def test_a_speedup_that_cannot_be_had_says_why_and_not_that_prompts_failed():
    """Answers of one chunk have no decode time though every request succeeded; a block that is not whole failed nowhere."""
    budgets = {"plain": None, "plain2": None, "ngram": 4}
    short = {
        name: [row | {"chunk_ns": row["chunk_ns"][:1], "chunk_tokens": row["chunk_tokens"][:1]} for row in rows]
        for name, rows in arms(1).items()
    }
    assert decode_speedup(short, "ngram", "plain", budgets) == Missing("one_chunk")
    assert decode_speedup({**arms(1), "plain2": short["plain2"]}, "ngram", "plain", budgets) == Missing("one_chunk")
    assert output_speedup(short, "ngram", "plain", 1).ratio > 1, "the whole request has its time"
    for level in (1, 2):
        begun = {name: rows if name == "plain" else [] for name, rows in arms(level).items()}
        assert output_speedup(begun, "ngram", "plain", level) == Missing("no_whole_block")
    failed = {name: [row | {"error": "died", "finish": None} for row in rows] for name, rows in arms(1).items()}
    assert output_speedup(failed, "ngram", "plain", 1) == Missing("no_pairs")


def test_latency_is_compared_only_between_outputs_of_one_length():
    assert latency_speedup(arms(1), "ngram", "plain") == Missing("lengths_differ")
    assert latency_speedup(arms(1), "plain2", "plain").low < 1
    assert latency_speedup({"plain": [request()], "ngram": [request(prompt_id="other")]}, "ngram", "plain") == Missing(
        "no_pairs"
    )
