"""Throughput of a cell, concurrency that was reached, and whether two arms did the same work."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import GIB, MS, request, request_of_steps, serving

from harness.metrics import (
    Missing,
    as_map,
    cap_hit_rate,
    common_prompts,
    drafter_memory,
    effective_concurrency,
    eos_share,
    error_rate,
    integer,
    is_null,
    length_parity,
    outcome,
    output_tps,
    output_tps_end_to_end,
    peak_memory,
    peak_tps,
    pool_throughput,
    repetition_score,
    rows_of,
    steady_window,
    stopped_early,
)
from harness.records import REQUESTS, SERVINGS


def spread(starts_ms, length=10, step=20.0, **given):
    """Requests sent at these times, each with one token after 20 ms and then every `step`."""
    return [
        request([(step * (i + 1), 1) for i in range(length)], sent_ns=int(at * MS), prompt_id=f"p{n}", **given)
        for n, at in enumerate(starts_ms)
    ]


def test_the_steady_window_runs_while_all_slots_are_busy():
    cell = spread([0, 50, 200.01, 250.01])  # two slots, 200 ms a request
    window = steady_window(cell, 2)
    assert (window.start_ns, window.end_ns) == (50 * MS, int(400.01 * MS))
    assert output_tps(cell, 2).tokens == 8 + 10 + 10 + 7
    assert output_tps_end_to_end(cell).tokens == 40
    assert output_tps_end_to_end(cell).seconds == pytest.approx(0.45001)


def test_a_dip_between_two_requests_does_not_end_the_window():
    cell = spread([0, 0, 201, 203])
    assert steady_window(cell, 2).end_ns == 401 * MS


def test_one_request_after_another_never_makes_two_in_flight():
    assert steady_window(spread([0, 200]), 2) == Missing("concurrency_not_reached")


def test_at_concurrency_one_the_window_is_the_whole_cell():
    cell = spread([0, 200, 400])
    assert output_tps(cell, 1).tps == pytest.approx(output_tps_end_to_end(cell).tps) == pytest.approx(50)


def test_the_shortest_answer_of_one_wave_does_not_decide_its_rate():
    """Two slots, two requests: with nobody to take a free slot, the steady window would end with whoever ends first."""
    for shortest in (1, 5, 10):
        cell = [*spread([0], length=40), *spread([0], length=shortest)]
        assert output_tps(cell, 2) == output_tps_end_to_end(cell)
        assert peak_tps(cell, 2) >= output_tps(cell, 2).tps
        assert steady_window(cell, 2).seconds == pytest.approx(shortest * 0.02)
    two_waves = [*spread([0, 0], length=40), *spread([801, 801], length=40)]
    assert output_tps(two_waves, 2).seconds == pytest.approx(steady_window(two_waves, 2).seconds)


def test_warm_up_is_in_no_rate():
    cell = [*spread([0], phase="warmup"), *spread([1000])]
    assert output_tps(cell, 1).seconds == pytest.approx(0.2)


def test_cells_pool_as_sum_over_sum():
    slow, fast = output_tps(spread([0], length=10, step=40.0), 1), output_tps(spread([0], length=10), 1)
    assert pool_throughput([slow, fast]).tps == pytest.approx(20 / 0.6)
    assert pool_throughput([slow, Missing("empty_window")]) == Missing("empty_window")


@given(
    chunks=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 9)), min_size=1, max_size=30),
    concurrency=st.integers(1, 3),
)
def test_the_peak_is_never_below_the_mean(chunks, concurrency):
    at, timed = 50, [(50, 1)]  # longer than the starts are apart: all of them overlap
    for gap, tokens in chunks:
        at += gap
        timed.append((at, tokens))
    cell = [request(timed, sent_ns=n * 7 * MS, prompt_id=f"p{n}") for n in range(concurrency)]
    found = output_tps(cell, concurrency)
    assert peak_tps(cell, concurrency) >= found.tps * (1 - 1e-12)


def step(at_ms, requests, total_ms, kind="decode"):
    times = {"started_ns": int(at_ms * MS), "total_ns": int(total_ms * MS)}
    return {"kind": kind, "phase": "measured", "requests": requests, **times}


def test_a_cap_below_the_asked_concurrency_shows_in_the_engines_batches():
    cell = spread([0] * 64)
    running = effective_concurrency(cell, [step(1 + i, 48, 1) for i in range(100)], 64)
    assert (running.mean, running.median, running.source) == (48, 48, "steps")
    assert not running.reached(64)
    assert effective_concurrency(cell, [step(1 + i, 64, 1) for i in range(100)], 64).reached(64)


def test_one_wave_reaches_its_concurrency_once_all_run_and_a_cap_below_it_still_shows():
    """Slots fill while the last are in prefill: with short answers all of them run for a moment only."""
    filling = [step(1 + i, min(64, 8 * (1 + i // 10)), 1) for i in range(100)]
    wave, waves = spread([0] * 64), spread([0] * 64 + [201] * 64)
    assert effective_concurrency(wave, filling, 64).median < 60
    assert effective_concurrency(wave, filling, 64).reached(64)
    assert not effective_concurrency(wave, [one for one in filling if one["requests"] <= 48], 64).reached(64)
    assert not effective_concurrency(waves, filling, 64).reached(64)


def test_running_requests_are_weighted_by_time():
    running = effective_concurrency(spread([0, 0]), [step(10, 2, 30), step(40, 1, 10), step(60, 5, 99, "prefill")], 2)
    assert running.mean == pytest.approx(1.75)
    assert running.median == 2


def test_without_steps_the_stream_can_show_the_concurrency_but_not_refute_it():
    waiting = [request([(500 + 20 * i, 1) for i in range(10)], prompt_id=f"w{n}") for n in range(2)]
    cell = [*spread([0, 0], length=20), *waiting]
    running = effective_concurrency(cell, [], 4)
    assert (running.peak, running.source) == (2, "stream")
    assert running.reached(4) is None
    assert effective_concurrency(spread([0], length=1), [], 1).reached(1)
    assert effective_concurrency(spread([0] * 4), [], 4).reached(4)


def test_a_failed_or_empty_request_is_in_the_error_rate():
    empty = request([(100, 0)], finish="stop")
    failed = request([], error="refused", finish=None)
    assert [outcome(r) for r in (request(), empty, failed)] == ["ok", "empty", "failed"]
    assert error_rate([request(), request(), empty, failed]) == 0.5
    assert error_rate([]) == Missing("no_requests")


def test_prompts_are_compared_only_where_no_arm_failed():
    plain = [request(prompt_id=p) for p in "1234"]
    spec = [request(prompt_id=p, arm="ngram", error=None if p in "12" else "died") for p in "1234"]
    assert {key[2] for key in common_prompts({"plain": plain, "ngram": spec})} == {"1", "2"}
    assert error_rate(spec) == 0.5


def test_lengths_within_one_percent_are_comparable():
    plain = [request([(100, 1), (120, n)], prompt_id=str(n)) for n in (99, 199, 299)]
    same = [r | {"arm": "ngram"} for r in plain]
    assert length_parity(plain, same).comparable
    assert length_parity(plain, same).mismatched == 0
    short = [r | {"output_tokens": r["output_tokens"] * 9 // 10} for r in plain]
    parity = length_parity(plain, short)
    assert parity.median == pytest.approx(0.1)
    assert not parity.comparable
    forced = [r | {"ignore_eos": True} for r in short]
    assert length_parity(plain, forced).comparable
    assert length_parity(plain, [request(prompt_id="other")]) == Missing("no_pairs")


def test_endings_and_repetition_are_shares():
    rows = [request(finish="stop"), request(finish="length"), request(finish="length"), request(error="x", finish=None)]
    assert eos_share(rows) == pytest.approx(1 / 3)
    assert cap_hit_rate(rows) == pytest.approx(2 / 3)
    assert repetition_score(request(token_ids=list(range(20)))) == 0
    assert repetition_score(request(token_ids=[1, 2, 3, 4] * 25)) == pytest.approx(1 - 4 / 97)
    assert repetition_score(request(token_ids=[1, 2])) == Missing("too_short")


def test_a_forced_length_with_an_early_stop_token_is_told():
    assert stopped_early(request(token_ids=[1, 7, 1], ignore_eos=True), {7})
    assert not stopped_early(request(token_ids=[1, 1, 7], ignore_eos=True), {7})
    assert not stopped_early(request(token_ids=[1, 7, 1]), {7})


def test_memory_comes_from_the_engine_then_from_samples_and_is_else_null():
    told = serving("ngram")
    assert (peak_memory(told, []), drafter_memory(told)) == (GIB, GIB // 4)
    silent = told | {"memory": {}}
    sample = {"serving_id": told["serving_id"], "memory_bytes": 5}
    assert peak_memory(silent, [sample, sample | {"memory_bytes": 9.0}, sample | {"serving_id": "x", "memory_bytes": 99}]) == 9
    assert peak_memory(silent, []) == drafter_memory(silent) == Missing("not_reported")
    assert peak_memory(told | {"memory": {"sampled_peak_bytes": 7}}, [sample]) == 7
    assert drafter_memory(serving("plain")) == Missing("plain_arm")


def test_rows_survive_parquet_and_pandas():
    rows = [request_of_steps([4], [2]), request()]
    back = rows_of(REQUESTS.to_arrow(rows).to_pandas())
    assert [integer(r["drafted"]) for r in back] == [4, None]
    assert is_null(back[1]["step_drafted"])
    assert outcome(back[0]) == "ok"
    table = pd.DataFrame(SERVINGS.to_arrow([serving("plain"), serving("ngram")]).to_pandas())
    assert [as_map(r["memory"]).get("peak_bytes") for r in rows_of(table)] == [GIB, GIB]
    assert [integer(r["draft_budget"]) for r in rows_of(table, arm="plain")] == [None]
