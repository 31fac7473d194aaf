"""Traps that users of other tools hit (tests/cases/cases.jsonl), fed to our functions: each must give the right answer."""

import json
import math
from pathlib import Path

import pytest
from synthetic import MS, request, request_of_steps, serving

from harness.control import Side, compare, sources_agree
from harness.metrics import (
    AcceptanceRate,
    Ledger,
    Missing,
    acceptance_length,
    acceptance_rate,
    accepted_prefix,
    common_prompts,
    coverage,
    drafted_per_step,
    effective_concurrency,
    error_rate,
    expected_tokens_per_step,
    identity_errors,
    is_coalesced,
    ledger_of,
    length_parity,
    mean,
    output_tps,
    overshoot,
    peak_tps,
    pool,
    request_tps,
    step_ms,
    tokens_per_step,
    tpot_ms,
    ttfa_ms,
    ttft_ms,
    wasted_per_step,
)
from harness.speedup import latency_speedup, output_speedup

FOLDER = Path(__file__).parents[1] / "cases"
CASES = {case["id"]: case for line in (FOLDER / "cases.jsonl").read_text("utf-8").splitlines() for case in [json.loads(line)]}
STREAMS = json.loads((FOLDER / "streams.json").read_text("utf-8"))["streams"]
BUILTINS = {f.__name__: f for f in (abs, all, any, len, max, min, next, range, set, sorted, sum, zip, enumerate)}


def case(name, index=0):
    return CASES[name]["inputs"][index]


def counters(budget, drafts, draft_tokens, accepted, draftless=0):
    """Engine counters as a ledger of one long request; delivered equals accepted."""
    output = 1 + drafts + draftless + accepted
    return Ledger(budget, 1, drafts, draftless, draft_tokens, accepted, accepted, output, 0)


@pytest.mark.parametrize("name", CASES)
def test_the_copied_file_is_consistent_with_itself(name):
    for given in CASES[name]["inputs"]:
        values = {key: value for key, value in given.items() if key not in ("check", "verdict")}
        for check in given["check"]:
            assert eval(check, {"__builtins__": BUILTINS, **values}), check  # our own file, builtins closed


def test_a01_the_bonus_token_is_in_the_length_and_not_in_the_rate():
    c = case("A01")
    ledger = counters(c["K"], c["drafts"], c["draft_tokens"], c["accepted"])
    assert acceptance_length(ledger) == pytest.approx(c["AL"], abs=1e-4)
    assert acceptance_rate(ledger) == AcceptanceRate(pytest.approx(c["rate"], abs=1e-4), 7)


def test_a02_the_rate_falls_with_the_budget_while_the_length_grows():
    seven, ten = (counters(k, *case("A02")[f"k{k}"]) for k in (7, 10))
    assert acceptance_rate(ten).share < acceptance_rate(seven).share
    assert acceptance_length(ten) > acceptance_length(seven)
    assert [str(acceptance_rate(x)) for x in (seven, ten)] == ["0.36 @K=7", "0.26 @K=10"]


def test_a03_a_long_budget_shows_its_waste():
    c = case("A03")
    ledger = counters(16, c["drafts"], c["draft_tokens"], c["accepted"])
    assert acceptance_length(ledger) == pytest.approx(3.7628, abs=1e-4)
    assert str(acceptance_rate(ledger)) == "0.17 @K=16"
    assert wasted_per_step(ledger) == pytest.approx(16 - 2.7628, abs=1e-4)


def test_a04_length_from_counters():
    c = case("A04")
    assert acceptance_length(counters(3, c["drafts"], c["draft_tokens"], c["accepted"])) == pytest.approx(3.5511, abs=1e-4)


def test_a05_what_was_accepted_past_the_stop_token_is_overshoot():
    c = case("A05")
    accepted = c["accepted_engine"] - c["overshoot"]
    row = Ledger(7, c["prompts"], c["drafts"], 0, 7 * c["drafts"], accepted, c["accepted_engine"], c["output"], 0, c["prompts"])
    assert overshoot(row) == 114
    assert identity_errors(row) == []
    naive = Ledger(7, c["prompts"], c["drafts"], 0, 7 * c["drafts"], 12208, 12208, c["output"], 0, c["prompts"])
    assert identity_errors(naive) == ["O = 16990 but P+S+Z+A-e = 17104"]


def test_a05_a_stop_inside_the_accepted_run_delivers_three_of_six():
    c = case("A05", 1)
    row = request_of_steps([5], [c["raw_accepted"]], cut=len(c["verified"]) - c["emitted"])
    ledger = ledger_of(row, 5)
    assert (row["output_tokens"], ledger.accepted, overshoot(ledger), ledger.ended_inside) == (1 + c["emitted"], 3, 2, 1)
    assert identity_errors(ledger) == []


def test_a06_steps_without_a_draft_count_in_what_drives_speed():
    c = case("A06")
    ledger = counters(4, c["S"], 40, c["accepted"], c["Z"])
    assert acceptance_length(ledger) == 4.0
    assert tokens_per_step(ledger) == 1.75
    assert coverage(ledger) == 0.25


@pytest.mark.parametrize("steps", case("A07")["steps"])
def test_a07_the_prefill_token_is_no_product_of_a_step(steps):
    c = case("A07")
    ledger = ledger_of(request_of_steps([c["K"]] * steps, [3] * steps), c["K"])
    assert acceptance_length(ledger) == tokens_per_step(ledger) == c["true"]
    assert ledger.output / steps in c["reported"]
    assert acceptance_length(counters(3, steps, 3 * steps, 3 * steps + 1)) == Missing("exceeds_budget")


def test_a08_the_prefill_chunk_is_not_averaged_in():
    c = case("A08")
    row = request(
        [(100 + 20 * i, n) for i, n in enumerate(c["chunks"])], prefill_tokens=1, steps_with_draft=2, steps_without_draft=0
    )
    assert tokens_per_step(ledger_of(row, 3)) == c["true"]


def test_a09_coalesced_chunks_are_not_steps():
    c = case("A09")
    row = request([(100 + 20 * i, n) for i, n in enumerate(c["chunks"])])
    assert is_coalesced(row, c["K"])
    assert tpot_ms(row, c["K"]) == step_ms(row, c["K"]) == Missing("coalesced")


def test_a11_pooled_and_mean_length_are_both_there():
    c = case("A11")
    ledgers = [counters(3, s, 3 * s, s * (a - 1)) for s, a in zip(c["steps"], c["al"], strict=True)]
    assert acceptance_length(pool(ledgers)) == pytest.approx(104 / 51)
    assert mean([acceptance_length(x) for x in ledgers]) == 3


def test_a13_only_the_prefix_of_a_mask_is_accepted():
    assert accepted_prefix(case("A13")["mask"]) == case("A13")["accepted"]
    assert accepted_prefix([1, 1, 1]) == 3


def test_a14_the_rate_comes_from_drafted_tokens_not_from_the_length_alone():
    for length, budget in zip(case("A14")["L"], case("A14")["K"], strict=True):
        rate = acceptance_rate(counters(budget, 100, 100 * budget, int(100 * (length - 1))))
        assert rate == AcceptanceRate(pytest.approx((length - 1) / budget), budget)
        assert rate.share != pytest.approx(1 - 1 / length)


def test_a16_a_perfect_rate_over_few_drafts_is_seen_to_be_that():
    c = case("A16")
    ledger = counters(12, 1, c["drafted"], c["accepted"], c["decode_steps"] - 1)
    assert acceptance_rate(ledger).share == 1
    assert tokens_per_step(ledger) == pytest.approx(1.012)
    assert (coverage(ledger), drafted_per_step(ledger)) == (0.001, 0.012)


def test_a17_off_and_useless_do_not_look_alike():
    off = Ledger(None, 1, 0, 9, 0, 0, 0, 10, 0)
    useless = counters(4, 10, 40, 0)
    assert acceptance_length(off) == Missing("plain_arm")
    assert (acceptance_length(useless), acceptance_rate(useless).share) == (1.0, 0.0)


def test_a18_ranks_pool_as_counters_not_as_the_first_ones_gauge():
    lengths = [length for length in case("A18")["ranks"] if length is not None]
    idle = counters(7, 0, 0, 0)
    busy = [counters(7, 100, 700, round(100 * (length - 1))) for length in lengths]
    assert acceptance_length(pool([idle, *busy])) == pytest.approx(sum(lengths) / 3)
    assert acceptance_length(idle) == Missing("no_steps")


def test_a20_two_sources_that_differ_by_more_than_one_percent_do_not_agree():
    assert sources_agree(1000, 1009)
    assert not sources_agree(1000, 1011)
    assert sources_agree(0, 0)


def test_a26_expectation_over_the_prefix():
    c = case("A26")
    assert expected_tokens_per_step(c["a"], c["D"]) == 1.96875
    assert expected_tokens_per_step(0.415, 5) == pytest.approx(1.70, abs=0.01)
    assert expected_tokens_per_step(1.0, 3) == 4


def test_b01_the_peak_counts_tokens_and_is_not_below_the_mean():
    c = case("B01")
    cell = [request([(at, n) for at, n, _ in STREAMS["spec3"]])]
    assert (len(STREAMS["spec3"]), cell[0]["output_tokens"]) == (c["chunks"], c["tokens"])
    found = output_tps(cell, 1).tps
    assert found == pytest.approx(40 / 0.36)
    assert peak_tps(cell, 1) >= found


def test_b03_a_first_chunk_of_several_tokens_is_left_out_of_time_per_token():
    row = request([(at, n) for at, n, _ in STREAMS["bundle"]])
    assert row["chunk_tokens"][0] == case("B03")["first"]
    assert tpot_ms(row, 3) == pytest.approx(6.667, abs=1e-3)


def test_b06_reasoning_starts_the_clock_and_the_answer_has_its_own():
    c, chunks = case("B06"), STREAMS["think"]
    row = request([(at, n) for at, n, _ in chunks], chunk_reasoning=[field != "content" for _, _, field in chunks])
    assert (ttft_ms(row), ttfa_ms(row), tpot_ms(row, None)) == (c["ttft_any"], c["ttft_answer"], c["step_ms"])


def test_b07_what_was_asked_is_not_what_came():
    row = request([(at, n) for at, n, _ in STREAMS["eos10"]], max_tokens=40, finish="stop")
    assert request_tps(row) == pytest.approx(10 / 0.28)
    assert output_tps([row], 1).tps == pytest.approx(35.7, abs=0.1)


def test_b09_tokens_are_not_lines():
    c = case("B09")
    plain, spec = (request([(at, n) for at, n, _ in STREAMS[name]]) for name in ("plain", "spec3"))
    assert (len(plain["chunk_ns"]), len(spec["chunk_ns"])) == (c["lines_plain"], c["lines_spec"])
    assert plain["output_tokens"] == spec["output_tokens"] == c["tokens"]
    arms = {"plain": [plain], "ngram": [spec | {"arm": "ngram"}]}
    assert output_speedup(arms, "ngram", "plain", 1).ratio == pytest.approx(880 / 360)


def test_b11_both_arms_are_counted_with_one_ruler():
    c = case("B11")
    plain = request([(100, 1), (1000, c["new_tokens"] - 1)])
    arms = {"plain": [plain], "ngram": [plain | {"arm": "ngram"}]}
    assert output_speedup(arms, "ngram", "plain", 1).ratio == 1.0


def test_b14_prefill_is_not_in_the_decode_rate():
    row = request([(at, n) for at, n, _ in STREAMS["spec3"]])
    assert tpot_ms(row, 3) == pytest.approx(6.667, abs=1e-3)
    assert 1000 / request_tps(row) == pytest.approx(9.0)


def test_b15_time_per_token_is_null_without_a_second_chunk():
    assert tpot_ms(request([(100, 1)]), None) == tpot_ms(request([(100, 4)]), 3) == Missing("one_chunk")


def test_b18_a_stream_in_lumps_is_refused():
    assert tpot_ms(request([(100, 1), (1100, 50), (2100, 50)]), 4) == Missing("coalesced")


def test_c02_latency_is_not_compared_when_lengths_differ():
    c = case("C02")
    plain, spec = (
        request([(100, 1), (1000 * seconds, tokens - 1)], arm=arm)
        for arm, (tokens, seconds) in (("plain", c["plain"]), ("ngram", c["spec"]))
    )
    arms = {"plain": [plain], "ngram": [spec]}
    assert latency_speedup(arms, "ngram", "plain") == Missing("lengths_differ")
    assert output_speedup(arms, "ngram", "plain", 1).ratio < 1
    forced = {name: [rows[0] | {"ignore_eos": True}] for name, rows in arms.items()}
    assert latency_speedup(forced, "ngram", "plain").ratio == pytest.approx(1.2 / 1.15)
    assert length_parity([plain], [spec]).median == pytest.approx(9 / 120)


def test_c06_a_stream_without_a_token_is_a_failure():
    empty = request([(100, 0)], finish="stop")
    assert error_rate([empty]) == 1
    assert output_tps([empty], 1).tokens == 0
    assert ttft_ms(empty) == Missing("no_tokens")


def side(arm, rows, **given):
    return Side([serving(arm, **given)], rows, [], [])


def test_d05_prefix_hits_in_one_arm_confound():
    hits = [request(cached_tokens=case("D05")[run]["hits"]) for run in ("run1", "run2")]
    found = compare(side("plain", [hits[0]]), side("ngram", [hits[1] | {"arm": "ngram"}]), 1)
    assert found.verdict == "CONFOUNDED"
    assert [f.factor for f in found.of("confounder")] == ["cached_tokens"]


def test_i01_a_cap_below_the_asked_concurrency_is_found():
    c = case("I01")
    cell = [request([(1000, 1)], prompt_id=f"p{n}", concurrency=64) for n in range(c["asked"])]
    steps = [
        {
            "kind": "decode",
            "phase": "measured",
            "started_ns": i * MS,
            "total_ns": MS,
            "requests": c["running_p50"],
            "cell_id": "cell",
        }
        for i in range(1, 500)
    ]
    assert not effective_concurrency(cell, steps, c["asked"]).reached(c["asked"])
    plain, arm = (Side([serving(name)], cell, steps, []) for name in ("plain", "ngram"))
    assert [f.factor for f in compare(plain, arm, 64).of("confounder")] == ["concurrency_reached"]


def test_m03_prompts_that_failed_in_one_arm_are_compared_in_none():
    c = case("M03")
    plain = [request(prompt_id=str(p)) for p in c["plain_ok"]]
    spec = [request(prompt_id=str(p), arm="ngram", error=None if p in c["spec_ok"] else "failed") for p in c["plain_ok"]]
    assert {int(key[2]) for key in common_prompts({"plain": plain, "ngram": spec})} == {1, 2}
    found = compare(side("plain", plain), side("ngram", spec), 1)
    assert "error_rate" in [f.factor for f in found.of("confounder")]
    assert math.isclose(output_speedup({"plain": plain, "ngram": spec}, "ngram", "plain", 1).ratio, 1.0)
