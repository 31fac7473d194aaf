"""The load client on the scripted engine: exact counts, honest clocks, failures as rows, dead engines told fast."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_bench import scripted_run

from harness.engines.base import Chunk, DeadEngineError, EngineError, Request
from harness.engines.scripted import ScriptedEngine, answer_length, answer_tokens
from harness.lag import HAS_KERNEL_TIMER, PERIOD_NS, LagProbe
from harness.load import Window, arrivals_ns, run_window

STREAMS = Path(__file__).parents[1] / "recorded" / "streams.json"


def engine(tmp_path: Path, arm: str = "plain", **flags: Any) -> ScriptedEngine:
    run = scripted_run(flags)
    return ScriptedEngine(run, run.arms[arm], tmp_path / "log")


def requests(count: int, max_tokens: int = 16) -> list[Request]:
    sampler = scripted_run().sampler
    return [Request(f"r{i}", (i, i + 1), max_tokens, (), False, sampler) for i in range(count)]


def window(serving: ScriptedEngine, asked: Sequence[Request], timeout_s: float = 5, **load: Any) -> Window:
    return asyncio.run(run_window(serving, asked, timeout_s=timeout_s, **load))


def p99_ms(samples_ns: Sequence[int]) -> float:
    return sorted(samples_ns)[int(0.99 * len(samples_ns))] / 1e6


def idle_lag_p99_ms() -> float:
    """The lag of an event loop that has nothing to do: what this machine, as loaded as it is now, needs to wake a thread."""

    async def idle() -> list[int]:
        probe = LagProbe()
        with probe.measuring():
            await asyncio.sleep(1)
        return probe.samples_ns

    return p99_ms(asyncio.run(idle()))


def test_a_thousand_requests_at_concurrency_64_have_exact_counts_and_the_client_keeps_up(tmp_path: Path) -> None:
    """The client adds less than 1 ms to the lag (p99) of an idle loop, in the best of three windows; counts exact in each.

    An idle loop measured around each window is what this machine, as loaded as it is now, needs to wake a thread. This is
    weaker than a lag under 1 ms in all: `python -m perf.client` prints that one, for a quiet machine to be judged by.
    """
    asked = requests(1000)
    added = []
    idle_before = idle_lag_p99_ms()
    for _ in range(3):
        serving = engine(tmp_path, "ngram", step_ms=20, prefill_ms=40, jitter=0.5)
        serving.prepare(asked)
        found = window(serving, asked, concurrency=64)
        idle_after = idle_lag_p99_ms()
        assert [r.request.request_id for r in found.results] == [r.request_id for r in asked]
        assert all(r.error is None for r in found.results)
        for one in found.results:
            delivered = [token for chunk in one.chunks for token in chunk.token_ids]
            tokens = answer_tokens(one.request)
            assert delivered == [next(tokens) for _ in range(answer_length(one.request))]
        added.append(p99_ms(found.lag_samples) - (idle_before + idle_after) / 2)
        if added[-1] < 1:
            return
        idle_before = idle_after
    pytest.fail(f"the client adds {added} ms to the lag of an idle loop")


def test_closed_load_keeps_the_asked_number_in_flight_and_never_more(tmp_path: Path) -> None:
    found = window(engine(tmp_path, step_ms=1), requests(40), concurrency=8)
    events = sorted([(r.sent_ns, 1) for r in found.results] + [(r.ended_ns, -1) for r in found.results])
    in_flight = peak = 0
    for _, change in events:
        in_flight += change
        peak = max(peak, in_flight)
    assert peak == 8


def test_open_load_sends_at_its_schedule_whatever_comes_back(tmp_path: Path) -> None:
    found = window(engine(tmp_path, step_ms=30), requests(40), rate_rps=200.0, seed=3)
    first = found.results[0].scheduled_ns
    assert [r.scheduled_ns - first for r in found.results] == arrivals_ns(40, 200.0, 3)
    assert all(r.sent_ns >= r.scheduled_ns for r in found.results)
    late_ms = sorted((r.sent_ns - r.scheduled_ns) / 1e6 for r in found.results)
    assert late_ms[len(late_ms) // 2] < 20
    assert found.results[-1].sent_ns < max(r.ended_ns for r in found.results[:10])


def test_arrivals_are_the_same_for_every_arm_and_have_the_asked_rate() -> None:
    times = arrivals_ns(4000, 50.0, 1)
    assert times == arrivals_ns(4000, 50.0, 1)
    assert times != arrivals_ns(4000, 50.0, 2)
    assert times == sorted(times)
    assert 4000 / (times[-1] / 1e9) == pytest.approx(50, rel=0.05)


def test_a_failed_request_is_a_result_with_its_error_and_the_others_go_on(tmp_path: Path) -> None:
    found = window(engine(tmp_path, fail_every=5), requests(20), concurrency=4)
    failed = [r for r in found.results if r.error]
    assert len(failed) == 4
    assert all(r.error is not None and r.error.startswith("EngineError: scripted failure") for r in failed)
    assert all(r.chunks[-1].finish for r in found.results if not r.error)


def test_an_empty_output_is_a_failure(tmp_path: Path) -> None:
    found = window(engine(tmp_path, empty_every=4), requests(8), concurrency=2)
    assert [r.error for r in found.results if r.error] == ["empty: the stream ended without a token"] * 2


def test_a_request_that_hangs_times_out_alone(tmp_path: Path) -> None:
    found = window(engine(tmp_path, hang_every=6), requests(12), concurrency=4, timeout_s=0.2)
    failed = [r for r in found.results if r.error]
    assert len(failed) == 2
    assert all(r.error is not None and r.error.startswith("timeout: no end after 0.2 s") for r in failed)


def test_an_engine_that_hangs_for_good_costs_one_wave_of_timeouts(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(DeadEngineError, match="4 requests in a row timed out"):
        window(engine(tmp_path, hang_after=10), requests(100), concurrency=4, timeout_s=0.2)
    assert time.monotonic() - start < 2


def test_a_dead_engine_ends_the_window_at_once(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(DeadEngineError, match="died after 20"):
        window(engine(tmp_path, die_after=20, step_ms=1), requests(100), concurrency=8, timeout_s=30)
    assert time.monotonic() - start < 5


def test_a_stream_that_is_cut_keeps_its_chunks_and_is_a_failure(tmp_path: Path) -> None:
    class Cut(ScriptedEngine):
        async def generate(self, request: Request) -> AsyncIterator[Chunk]:
            yield Chunk(time.monotonic_ns(), (1, 2))
            if request.request_id == "r1":
                raise EngineError("connection reset")

    run = scripted_run()
    found = window(Cut(run, run.arms["plain"], tmp_path / "log"), requests(2), concurrency=1)
    assert [len(r.chunks) for r in found.results] == [1, 1]
    assert found.results[0].error == "truncated: the stream ended without a finish reason"
    assert found.results[1].error == "EngineError: connection reset"


def test_a_bug_in_the_adapter_is_a_row_but_a_stop_is_not_swallowed(tmp_path: Path) -> None:
    class Odd(ScriptedEngine):
        async def generate(self, request: Request) -> AsyncIterator[Chunk]:
            if request.request_id == "r0":
                raise KeyError("choices")
            await asyncio.sleep(60)
            yield Chunk(0, ())

    async def stopped_after_the_first() -> None:
        run = scripted_run()
        task = asyncio.create_task(
            run_window(Odd(run, run.arms["plain"], tmp_path / "log"), requests(2), timeout_s=90, concurrency=1)
        )
        await asyncio.sleep(0.2)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped_after_the_first())


def test_two_requests_with_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="same request_id"):
        window(engine(tmp_path), [*requests(2), *requests(1)], concurrency=1)


@pytest.mark.parametrize("load", [{}, {"concurrency": 1, "rate_rps": 1.0}])
def test_a_window_is_closed_or_open_and_not_both(tmp_path: Path, load: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either concurrency"):
        window(engine(tmp_path), requests(1), **load)


@pytest.mark.parametrize("name", json.loads(STREAMS.read_text("utf-8"))["streams"])
def test_the_scripted_engine_plays_the_recorded_streams_chunk_by_chunk(tmp_path: Path, name: str) -> None:
    recorded = json.loads(STREAMS.read_text("utf-8"))
    serving = engine(tmp_path, streams=str(STREAMS), stream=name, tells_steps=False)
    (one,) = window(serving, requests(1, max_tokens=40), concurrency=1).results
    assert [(len(c.token_ids), "reasoning_content" if c.reasoning else "content") for c in one.chunks] == [
        (tokens, field) for _, tokens, field in recorded["streams"][name]
    ]
    assert sum(len(c.token_ids) for c in one.chunks) == recorded["truth"][name]["tokens"]
    assert one.chunks[-1].finish == ("stop" if name == "eos10" else "length")
    for chunk, (at_ms, _, _) in zip(one.chunks, recorded["streams"][name], strict=True):
        assert at_ms <= (chunk.arrived_ns - one.sent_ns) / 1e6 + 0.01
        assert (chunk.arrived_ns - one.sent_ns) / 1e6 < at_ms + 250


@pytest.mark.parametrize("kernel_timer", sorted({False, HAS_KERNEL_TIMER}))
def test_the_lag_probe_sees_a_client_that_blocks_its_loop(kernel_timer: bool) -> None:
    async def blocked() -> list[int]:
        probe = LagProbe(kernel_timer)
        with probe.measuring():
            for _ in range(5):
                await asyncio.sleep(0.02)
                time.sleep(0.1)
            await asyncio.sleep(0.02)
        return probe.samples_ns

    samples = asyncio.run(blocked())
    assert sum(ns > 50e6 for ns in samples) >= 3


@pytest.mark.parametrize("kernel_timer", sorted({False, HAS_KERNEL_TIMER}))
def test_the_lag_probe_ticks_once_a_period_and_leaves_nothing_open(kernel_timer: bool) -> None:
    async def idle() -> list[int]:
        probe = LagProbe(kernel_timer)
        with probe.measuring():
            await asyncio.sleep(50 * PERIOD_NS / 1e9)
        return probe.samples_ns

    before = psutil.Process().num_fds()
    samples = asyncio.run(idle())
    assert 5 <= len(samples) <= 51
    assert min(samples) >= 0
    assert psutil.Process().num_fds() == before
