"""What makes a serving incomparable, and what is only told."""

from __future__ import annotations

from typing import Any

from harness.validity import cell_problems, is_stationary, serving_flags, serving_problems


def row(sent: int = 0, ended: int = 1000, **values: Any) -> dict[str, Any]:
    base = {"phase": "measured", "error": None, "output_tokens": 10, "sent_ns": sent, "ended_ns": ended}
    chunks = {"chunk_ns": [sent + 10, ended], "chunk_tokens": [1, 9], "drafted": 12, "accepted_by_engine": 6}
    return {**base, **chunks, "prefill_tokens": 1, "steps_with_draft": 4, "steps_without_draft": 0, **values}


def batch(tpot_ms: float) -> list[dict[str, Any]]:
    return [row(chunk_ns=[i * round(tpot_ms * 1e6) for i in range(10)], chunk_tokens=[1] * 10) for _ in range(3)]


def test_enough_requests_at_once_is_no_problem() -> None:
    assert cell_problems([row(0, 1000) for _ in range(4)], [], 4) == []


def test_fewer_requests_than_asked_is_a_problem() -> None:
    rows = [row(i * 1000, i * 1000 + 900) for i in range(4)]
    assert cell_problems(rows, [], 2) == ["concurrency: 2 requests were never in flight at once"]


def test_a_cap_in_the_engine_is_seen_in_its_batches() -> None:
    rows = [row(0, 1000) for _ in range(64)]
    steps = [
        {"kind": "decode", "phase": "measured", "started_ns": at, "requests": 48, "total_ns": 10} for at in range(1, 900, 10)
    ]
    assert cell_problems(rows, steps, 64) == ["concurrency: 64 asked, 48 ran at once (median over time, by steps)"]


def test_failures_above_half_a_percent_make_a_serving_invalid_and_name_the_first() -> None:
    rows = [row() for _ in range(199)] + [row(error="timeout: no end")]
    assert serving_problems(rows, {}) == []
    (problem,) = serving_problems([*rows, row(error="EngineError: x")], {})
    assert problem == "errors: 1.0 % of measured requests failed, first: timeout: no end"


def test_preemptions_make_a_serving_invalid() -> None:
    assert serving_problems([row()], {"preemptions": 2})[0].startswith("preemptions: the engine preempted 2")
    assert serving_problems([row()], {"preemptions": 0}) == []


def test_counters_that_differ_from_the_requests_by_more_than_one_percent_are_a_problem() -> None:
    rows = [row() for _ in range(100)]
    assert serving_problems(rows, {"output_tokens": 1009, "accepted": 600}) == []
    (problem,) = serving_problems(rows, {"output_tokens": 1020, "accepted": 600})
    assert problem == "counters: the engine counted output_tokens 1020, its requests carried 1000"


def test_what_the_requests_do_not_tell_is_not_compared() -> None:
    assert serving_problems([row(accepted_by_engine=None)], {"accepted": 999}) == []


def test_a_late_client_and_a_busy_machine_are_flags() -> None:
    assert serving_flags(0.9, 0.5, 1.0) == []
    late, busy = serving_flags(1.7, 2.5, 1.0)
    assert "lag p99 is 1.70 ms" in late
    assert "2.50 cores were busy with other work" in busy
    assert serving_flags(None, 9.0, None) == []


def test_a_warm_up_has_settled_when_two_batches_agree_within_five_percent() -> None:
    assert not is_stationary([], None)
    assert not is_stationary([batch(10)], None)
    assert not is_stationary([batch(1537), batch(58)], None)
    assert is_stationary([batch(1537), batch(58), batch(60)], None)


def test_a_warm_up_without_a_time_per_token_has_not_settled() -> None:
    failed = [row(error="EngineError: x")]
    assert not is_stationary([failed, failed], None)
