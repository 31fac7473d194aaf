"""Streams of OpenAI-compatible servers, well and badly behaved: the right row, or the right refusal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from misbehaving_server import MisbehavingServer, Play, serving

from harness.compose import compose_run
from harness.config import Run
from harness.engines.base import UNKNOWN_ID, Chunk, EngineError, Request
from harness.engines.openai import OpenAIEngine
from harness.engines.server_completions import CompletionsReader
from harness.engines.server_metrics import parse_metrics
from harness.ledger import ledger, request_row
from harness.load import Result, run_window
from harness.metrics import Missing, is_coalesced, tpot_ms, ttfa_ms, ttft_ms

RECORDED = Path(__file__).parents[2] / "recorded"
STREAMS = json.loads((RECORDED / "streams.json").read_text("utf-8"))
RUN = compose_run("cpu_smollm2", ["engine=openai"]).run
PROMPT = (1, 2, 3)
STOP = 2


def attached(url: str, **flags: Any) -> Run:
    engine = RUN.engine.model_copy(update={"url": url, "flags": {**RUN.engine.flags, **flags}})
    return RUN.model_copy(update={"engine": engine})


def asked(max_tokens: int = 64, ignore_eos: bool = False, name: str = "r") -> Request:
    return Request(name, PROMPT, max_tokens, (STOP,), ignore_eos, RUN.sampler)


def answered(
    play: Play, request: Request | None = None, timeout_s: float = 5.0, **flags: Any
) -> tuple[Result, MisbehavingServer]:
    """What the load client gets for one request from a server that plays this."""

    async def go() -> tuple[Result, MisbehavingServer]:
        async with serving(play) as (server, url):
            run = attached(url, **flags)
            engine = OpenAIEngine(run, run.arms["plain"], Path("unused.log"))
            await engine.launch()
            window = await run_window(engine, [request or asked()], timeout_s=timeout_s, concurrency=1)
            await engine.stop()
            return window.results[0], server

    return asyncio.run(go())


def row_of(result: Result, budget: int | None = None) -> dict[str, Any]:
    totals = ledger(result.request.request_id, result.chunks, budget, False)
    return request_row({"phase": "measured"}, result, {}, totals)


def counts(result: Result) -> list[int]:
    return [len(chunk.token_ids) for chunk in result.chunks if chunk.token_ids]


@pytest.mark.parametrize("name", STREAMS["streams"])
@pytest.mark.parametrize(("ids", "usage"), [(True, "none"), (False, "running")])
def test_the_scripted_streams_give_their_tokens_and_times(name: str, ids: bool, usage: str) -> None:
    beats, truth = STREAMS["streams"][name], STREAMS["truth"][name]
    result, _ = answered(Play(beats=beats, ids=ids, usage=usage))
    assert result.error is None
    row = row_of(result)
    assert row["output_tokens"] == truth["tokens"] == sum(count for _, count, _ in beats)
    assert [chunk.reasoning for chunk in result.chunks if chunk.token_ids] == [kind != "content" for _, _, kind in beats]
    budget = 2 if name in ("spec3", "bundle") else None
    if name == "bundle":
        budget = 3
    assert is_coalesced(row, budget) == (truth["tpot_ms"] is None)
    told = tpot_ms(row, budget)
    if truth["tpot_ms"] is None:
        assert isinstance(told, Missing)
    else:  # a busy machine delays; it never makes a token early
        assert not isinstance(told, Missing)
        assert told == pytest.approx(truth["tpot_ms"], rel=0.3)
    first = ttft_ms(row)
    assert not isinstance(first, Missing)
    assert first >= truth["ttft_ms"] - 1
    if "ttfa_ms" in truth:
        answer = ttfa_ms(row)
        assert not isinstance(answer, Missing)
        assert answer >= truth["ttfa_ms"] - 1


def test_final_usage_counts_one_token_per_chunk_and_refuses_anything_else() -> None:
    plain, _ = answered(Play(ids=False, usage="final"))
    assert (counts(plain), plain.error) == ([1, 1, 1, 1], None)
    assert plain.chunks[0].token_ids == (UNKNOWN_ID,)
    spec, _ = answered(Play(ids=False, usage="final", beats=[(0, 1, "text"), (1, 3, "text")]))
    assert spec.error is not None
    assert "usage says 4 tokens" in spec.error


def test_without_ids_and_usage_tokens_are_not_counted() -> None:
    result, _ = answered(Play(ids=False, usage="none"))
    assert result.error is not None
    assert "tokens cannot be counted" in result.error


def test_a_stop_token_that_only_the_usage_knows_is_one_token_without_id() -> None:
    events = [
        {"choices": [{"text": " w", "finish_reason": None}]},
        {"choices": [{"text": "", "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 3}},
    ]
    reader = CompletionsReader(asked())
    chunks = [chunk for at, event in enumerate(events) for chunk in reader.read(at, event)] + reader.end()
    assert [(chunk.arrived_ns, chunk.token_ids, chunk.finish) for chunk in chunks] == [
        (0, (UNKNOWN_ID,), None),
        (2, (UNKNOWN_ID,), "stop"),
    ]


def test_an_early_end_counts_what_came_and_not_what_was_asked() -> None:
    result, _ = answered(Play(token_ids=[7, 8, 9, STOP]), asked(40))
    row = row_of(result)
    assert (row["output_tokens"], row["max_tokens"], row["finish"], row["error"]) == (4, 40, "stop", None)
    assert row["token_ids"] == [7, 8, 9, STOP]


def test_tokens_past_the_stop_token_in_its_chunk_are_cut() -> None:
    result, _ = answered(Play(beats=[(0, 1, "text"), (1, 6, "text")], token_ids=[7, 101, 102, STOP, 104, 105, 106]))
    assert (counts(result), result.chunks[-1].finish, result.error) == ([1, 3], "stop", None)


def test_a_server_that_goes_on_past_the_stop_token_is_left() -> None:
    beats = [(i, 1, "text") for i in range(8)]
    result, _ = answered(Play(beats=beats, token_ids=[7, STOP, 9, 9, 9, 9, 9, 9], finish="length"))
    assert (counts(result), result.chunks[-1].finish) == ([1, 1], "stop")
    fixed, _ = answered(Play(beats=beats, token_ids=[7, STOP, 9, 9, 9, 9, 9, 9], finish="length"), asked(8, ignore_eos=True))
    assert (sum(counts(fixed)), fixed.chunks[-1].finish) == (8, "length")


def test_more_tokens_than_asked_for_is_an_error() -> None:
    result, _ = answered(Play(), asked(3))
    assert result.error is not None
    assert "more than the 3 tokens" in result.error


def test_empty_text_with_a_token_is_a_token_and_text_without_one_is_none() -> None:
    result, _ = answered(Play(texts=["", " w", "", " w"]))
    assert counts(result) == [1, 1, 1, 1]
    empty, _ = answered(Play(beats=[], usage="none"))
    assert empty.error == "empty: the stream ended without a token"


def test_characters_cut_between_packets_arrive_whole() -> None:
    result, _ = answered(Play(texts=["你", "好", "😀", "naïve"]))
    assert (counts(result), result.error) == ([1, 1, 1, 1], None)


@pytest.mark.parametrize(
    ("play", "error"),
    [
        (Play(fault="http_500"), "HTTP 500: .*out of luck"),
        (Play(fault="no_stream"), "no event stream: .*not for you"),
        (Play(fault="error_event"), "the model fell over"),
        (Play(fault="truncate"), "truncated: the stream ended without a finish reason"),
        (Play(fault="cut_inside_chunk"), "in the middle of its answer"),
        (Play(finish="abort"), "finished it with 'abort'"),
        (Play(prompt_tokens=17), "3 prompt tokens were sent, the server counted 17"),
    ],
    ids=lambda value: value.fault or value.finish if isinstance(value, Play) else None,
)
def test_a_failure_is_a_row_with_its_reason(play: Play, error: str) -> None:
    result, _ = answered(play)
    assert result.error is not None
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(result.error)
    assert row_of(dataclasses.replace(result, chunks=()))["finish"] is None


def test_a_server_that_hangs_times_out_and_the_request_is_cancelled() -> None:
    result, _ = answered(Play(fault="hang"), timeout_s=0.2)
    assert result.error is not None
    assert result.error.startswith("timeout: no end after 0.2 s")


def test_cached_tokens_are_in_the_row() -> None:
    assert row_of(answered(Play(cached=2))[0])["cached_tokens"] == 2
    assert row_of(answered(Play())[0])["cached_tokens"] is None


def test_every_sampling_parameter_is_sent() -> None:
    _, server = answered(Play())
    body = server.bodies[0]
    assert body["prompt"] == list(PROMPT)
    sent = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n")}
    assert sent == {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1}
    assert (body["presence_penalty"], body["frequency_penalty"], body["seed"]) == (0.0, 0.0, RUN.sampler.seed)
    assert (body["stop_token_ids"], body["ignore_eos"], body["return_token_ids"]) == ([STOP], False, True)
    _, strict = answered(Play(), extensions=False)
    assert not {"top_k", "min_p", "ignore_eos", "return_token_ids"} & strict.bodies[0].keys()


def test_counters_are_found_by_their_ends() -> None:
    text = (RECORDED / "llama_cpp-b11434" / "eagle3" / "metrics.txt").read_text("utf-8")
    counters = OpenAIEngine.speak(RUN).counters(parse_metrics(text))
    assert (counters.verify_steps, counters.drafted, counters.accepted) == (138, 405, 0)
    assert counters.requests is None


def test_the_recorded_completions_route_of_llama_cpp_counts_what_its_usage_says() -> None:
    for path in sorted(RECORDED.glob("llama_cpp-b11434/*/stream.sse")):
        lines = [line[6:] for line in path.read_text("utf-8").splitlines() if line.startswith("data: {")]
        reader = CompletionsReader(dataclasses.replace(asked(), prompt_ids=(1,) * 10))
        chunks: list[Chunk] = []
        try:
            for at, line in enumerate(lines):
                chunks += reader.read(at, json.loads(line))
            chunks += reader.end()
        except EngineError as refused:  # a token whose bytes end inside a character has no event, and no id either
            assert "usage says 16 tokens, 1" in str(refused)  # noqa: PT017 - both outcomes are right, for different streams
            continue
        assert sum(len(chunk.token_ids) for chunk in chunks) == 16
        assert chunks[-1].told is not None
        assert chunks[-1].told.cached_tokens == 9


def test_a_plan_wants_a_server_of_its_own_for_each_arm() -> None:
    both = attached("http://a:1")
    assert any("attached to the same server" in gap for gap in OpenAIEngine.plan(both, both.arms["ngram"]).missing)
    neither = OpenAIEngine.plan(RUN, RUN.arms["plain"]).missing
    assert any("give either engine.flags.command" in gap for gap in neither)


def test_base_and_speculation_are_apart_in_the_plan() -> None:
    flags = {**RUN.engine.flags, "command": "python -m server --served here"}
    run = RUN.model_copy(update={"engine": RUN.engine.model_copy(update={"flags": flags})})
    arm = run.arms["ngram"].model_copy(update={"options": {"command": "--draft {budget}"}})
    plan = OpenAIEngine.plan(run, arm)
    assert plan.speculation == ("--draft", "4")
    assert plan.base[:5] == ("python", "-m", "server", "--served", "here")
    assert "--draft" not in plan.base
    flags["command"] = "python -m 'my server' --model {model}"
    assert OpenAIEngine.speak(run).command(run, "/a folder") == ["python", "-m", "my server", "--model", "/a folder"]


def test_simulated_acceptance_is_refused() -> None:
    flags = {**RUN.engine.flags, "command": "python -m server"}
    run = RUN.model_copy(update={"engine": RUN.engine.model_copy(update={"flags": flags})})
    for words in ("--spec-synth-len 2.5", """-sc '{"rejection_sample_method": "synthetic"}'"""):
        arm = run.arms["ngram"].model_copy(update={"options": {"command": words}})
        assert any("simulates acceptance" in gap for gap in OpenAIEngine.plan(run, arm).missing)
        declared = arm.model_copy(update={"method": "synthetic"})
        assert not any("simulates acceptance" in gap for gap in OpenAIEngine.plan(run, declared).missing)


def test_simulated_acceptance_that_the_shell_exports_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {**RUN.engine.flags, "command": "python -m server"}
    run = RUN.model_copy(update={"engine": RUN.engine.model_copy(update={"flags": flags})})
    arm = run.arms["ngram"].model_copy(update={"options": {"command": "--ngram"}})
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.5")
    assert "engine: 'SGLANG_SIMULATE_ACC_LEN' simulates acceptance" in " ".join(OpenAIEngine.plan(run, arm).missing)
    attached = run.model_copy(update={"engine": run.engine.model_copy(update={"url": "http://x", "flags": RUN.engine.flags})})
    assert not any("simulates acceptance" in gap for gap in OpenAIEngine.plan(attached, arm).missing)


def test_a_prefix_cache_that_cannot_be_emptied_is_refused() -> None:
    def gaps(**flags: str) -> list[str]:
        changed = {"flags": {**RUN.engine.flags, **flags}, "prefix_cache": True, "url": "http://a:1"}
        run = RUN.model_copy(update={"engine": RUN.engine.model_copy(update=changed)})
        return [gap for gap in OpenAIEngine.plan(run, run.arms["plain"]).missing if "flush" in gap]

    assert gaps() == ["engine.flags.flush: null, so the prefix cache stays warm between cells; give the path that empties it"]
    assert gaps(flush="/reset_prefix_cache") == []
