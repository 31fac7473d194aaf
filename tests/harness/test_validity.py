"""What makes a serving incomparable, and what is only told."""

from __future__ import annotations

from typing import Any

import pytest

from harness.validity import cell_problems, is_stationary, log_problems, serving_flags


def row(sent: int = 0, ended: int = 1000, **values: Any) -> dict[str, Any]:
    base = {"phase": "measured", "error": None, "output_tokens": 10, "sent_ns": sent, "ended_ns": ended}
    chunks = {"chunk_ns": [sent + 10, ended], "chunk_tokens": [1, 9], "drafted": 12, "accepted_by_engine": 6}
    return {**base, **chunks, "prefill_tokens": 1, "steps_with_draft": 4, "steps_without_draft": 0, **values}


def batch(tpot_ms: float) -> list[dict[str, Any]]:
    chunks = {"chunk_ns": [i * round(tpot_ms * 1e6) for i in range(10)], "chunk_tokens": [1] * 10}
    return [row(**chunks, steps_with_draft=None) for _ in range(3)]


def test_enough_requests_at_once_is_no_problem() -> None:
    assert cell_problems([row(0, 1000) for _ in range(4)], [], {}, 4) == []


def test_fewer_requests_than_asked_is_a_problem() -> None:
    rows = [row(i * 1000, i * 1000 + 900) for i in range(4)]
    assert cell_problems(rows, [], {}, 2) == ["concurrency: 2 requests were never in flight at once"]


def test_a_cap_in_the_engine_is_seen_in_its_batches() -> None:
    rows = [row(0, 1000) for _ in range(64)]
    steps = [
        {"kind": "decode", "phase": "measured", "started_ns": at, "requests": 48, "total_ns": 10} for at in range(1, 900, 10)
    ]
    assert cell_problems(rows, steps, {}, 64) == ["concurrency: 64 asked, 48 ran at once (at most, by steps)"]


def test_failures_above_half_a_percent_make_a_cell_invalid_and_name_the_first() -> None:
    rows = [row() for _ in range(199)] + [row(error="timeout: no end")]
    assert cell_problems(rows, [], {}, None) == []
    (problem,) = cell_problems([*rows, row(error="EngineError: x")], [], {}, None)
    assert problem == "errors: 1.0 % of measured requests failed, first: timeout: no end"


def test_preemptions_make_a_cell_invalid() -> None:
    assert cell_problems([row()], [], {"preemptions": 2}, None)[0].startswith("preemptions: the engine preempted 2")
    assert cell_problems([row()], [], {"preemptions": 0}, None) == []


def test_counters_that_differ_from_the_requests_by_more_than_one_percent_are_a_problem() -> None:
    rows = [row() for _ in range(100)]
    assert cell_problems(rows, [], {"output_tokens": 1009, "accepted": 600}, None) == []
    (problem,) = cell_problems(rows, [], {"output_tokens": 1020, "accepted": 600}, None)
    assert problem == "counters: the engine counted output_tokens 1020, its requests carried 1000"


def test_what_the_requests_do_not_tell_is_not_compared() -> None:
    assert cell_problems([row(accepted_by_engine=None)], [], {"accepted": 999}, None) == []


def test_an_open_load_has_no_concurrency_to_reach() -> None:
    rows = [row(i * 1000, i * 1000 + 900) for i in range(4)]
    assert cell_problems(rows, [], {}, None) == []


@pytest.mark.parametrize(
    "line",
    [
        "Capturing CUDA graphs (decode, FULL): 100%|####| 7/7",
        "Capture cuda graph begin. This can take up to several minutes.",
        "torch.compile took 12.3 s in total",
        "Triton kernel JIT compilation during inference: _fwd_kernel",
        "[AutoTuner]: Autotuning process starts",
        "Compiling a graph for dynamic shape takes 4.1 s",
    ],
)
def test_what_is_compiled_or_captured_inside_the_window_is_a_problem(line: str) -> None:
    (problem,) = log_problems(f"INFO fine\n{line}\nINFO fine\n")
    assert problem == f"log: compiled or captured inside the window (1 lines): {line}"


@pytest.mark.parametrize(
    "line",
    [
        "SpecDecoding metrics: Mean acceptance length: 1.00, Accepted throughput: 0.00 tokens/s",
        "Decode batch, #running-req: 1, #token: 56, token usage: 0.01, cpu graph: False, gen throughput (token/s): 4.85",
        "slot print_timing: id  1 | task 0 |    graphs reused =         56",
        "Successfully reset prefix cache",
        "",
    ],
)
def test_what_engines_log_at_every_turn_is_none(line: str) -> None:
    assert log_problems(line) == []


def test_a_late_client_a_busy_machine_and_stolen_time_are_flags() -> None:
    assert serving_flags(0.9, {"load_busy_cores": 0.5, "load_stolen_cores": 0.9}, 1.0) == []
    late, busy = serving_flags(1.7, {"load_busy_cores": 2.5}, 1.0)
    assert "lag p99 is 1.70 ms" in late
    assert "2.50 cores were busy with other work" in busy
    (stolen,) = serving_flags(None, {"load_busy_cores": 0.0, "load_stolen_cores": 1.2}, 1.0)
    assert "neighbours of this virtual machine took 1.20 cores" in stolen
    assert serving_flags(None, {"load_busy_cores": 9.0, "load_stolen_cores": 9.0}, None) == []


def test_a_warm_up_has_settled_when_two_batches_agree_within_five_percent() -> None:
    assert not is_stationary([], None, 0.05)
    assert not is_stationary([batch(10)], None, 0.05)
    assert not is_stationary([batch(1537), batch(58)], None, 0.05)
    assert is_stationary([batch(1537), batch(58), batch(60)], None, 0.05)


def test_a_warm_up_is_judged_by_time_per_step_where_steps_are_told() -> None:
    """One text is drafted well and the next badly: 9 tokens in 3 steps, then in 9. The step takes 10 ms in both."""

    def batch_of(steps: int) -> list[dict[str, Any]]:
        return [row(chunk_ns=[0, steps * 10_000_000], chunk_tokens=[1, 9], steps_with_draft=steps) for _ in range(3)]

    assert is_stationary([batch_of(3), batch_of(9)], 4, 0.05)
    slower = [{**r, "chunk_ns": [0, 100_000_000]} for r in batch_of(9)]
    assert not is_stationary([batch_of(3), slower], 4, 0.05)


def test_a_warm_up_without_a_time_per_token_has_not_settled() -> None:
    failed = [row(error="EngineError: x")]
    assert not is_stationary([failed, failed], None, 0.05)
