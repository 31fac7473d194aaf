"""SGLang's bytes, recorded from 0.5.23 on a CPU (plain), and the fields of its source for arms that only a GPU serves."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compose import compose_run
from harness.config import Arm, Checkpoint, Run
from harness.engines.base import Chunk, Counters, EngineError, Request, Told
from harness.engines.server_dialect import Found
from harness.engines.server_metrics import parse_metrics
from harness.engines.sglang import SGLang
from harness.engines.sglang_readback import INFO, problems, resolved
from harness.engines.sglang_stream import GenerateReader
from harness.engines.sse import EventParser

RECORDED = Path(__file__).parents[2] / "recorded" / "sglang-0.5.23-cpu" / "plain"
SGLANG = SGLang()
IDS = (908, 266, 843, 232, 477, 856, 843, 979, 927, 121, 48, 235, 516, 139, 160, 775)


@cache
def _run(*overrides: str) -> Run:
    return compose_run("h200_qwen27b", list(overrides)).run


def _arm(method: str, budget: int | None = 7) -> Arm:
    return Arm(method=method, drafter=None, needs_checkpoint=False, draft_budget=budget, label=method)


PLAIN = _arm("plain", None)


def _request(tokens: int = 16) -> Request:
    return Request("r", tuple(range(10)), tokens, (), True, _run().sampler)


def _found(**changed: Any) -> Found:
    info = json.loads((RECORDED / "server_info.json").read_text("utf-8"))
    log = (RECORDED / "server.log").read_text("utf-8")
    return Found({INFO: info | changed}, parse_metrics((RECORDED / "metrics.txt").read_text("utf-8")), log)


def _events() -> list[dict[str, Any]]:
    parts = EventParser().feed((RECORDED / "stream.sse").read_bytes())
    return [json.loads(text) for text in parts if text != b"[DONE]"]


def _read(events: list[dict[str, Any]], budget: int = 0) -> list[Chunk]:
    reader, chunks = GenerateReader(_request(), budget), []
    for number, event in enumerate(events):
        chunks += reader.read(number, event)
    return [*chunks, *reader.end()]


def test_the_recorded_cumulative_stream_gives_each_token_once_and_the_cached_prompt_tokens() -> None:
    chunks = _read(_events())
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == IDS
    assert [len(chunk.token_ids) for chunk in chunks] == [1] * 16
    assert chunks[-1].finish == "length"
    assert chunks[-1].told == Told(cached_tokens=9)


def test_an_incremental_stream_of_the_same_answer_reads_the_same() -> None:
    events = _events()
    seen = 0
    for event in events:
        event["output_ids"], seen = event["output_ids"][seen:], len(event["output_ids"])
    assert _read(events) == _read(_events())


def _answer(counts: list[int], meta: dict[str, Any], finish: str = "length") -> list[dict[str, Any]]:
    """A stream of one chunk per count with SGLang's totals in its last event."""
    events, total = [], 0
    for count in counts:
        total += count
        events.append({"output_ids": list(range(count)), "meta_info": {"completion_tokens": total, "finish_reason": None}})
    events[-1]["meta_info"] |= {"finish_reason": {"type": finish}, "cached_tokens": 0, **meta}
    return events


def test_steps_are_those_of_the_chunks_where_they_add_up_to_the_engines_totals() -> None:
    meta = {"spec_verify_ct": 3, "spec_num_correct_drafts": 10, "spec_num_proposed_drafts": 21, "spec_accept_length": 14 / 3}
    told = _read(_answer([1, 8, 1, 4], meta), 7)[-1].told
    assert told == Told(0, ((7, 7), (7, 0), (7, 3)), 3, 21, 10)


@pytest.mark.parametrize(
    ("counts", "verified", "correct"),
    [
        ([1, 9, 4], 3, 10),  # two steps in one chunk
        ([5, 8, 1], 3, 10),  # the prefill's token came together with the first step's
        ([1, 8, 1, 2], 3, 10),  # the limit cut the last step
    ],
)
def test_a_stream_that_does_not_show_every_step_gives_totals_only(counts: list[int], verified: int, correct: int) -> None:
    meta = {"spec_verify_ct": verified, "spec_num_correct_drafts": correct, "spec_num_proposed_drafts": 7 * verified}
    told = _read(_answer(counts, meta), 7)[-1].told
    assert told is not None
    assert told.steps is None
    assert (told.steps_with_draft, told.drafted, told.accepted) == (verified, 21, correct)


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12))
def test_the_length_that_sglang_prints_is_one_prefill_token_too_high_and_is_not_used(steps: list[int]) -> None:
    completion, verified = 1 + sum(steps), len(steps)
    meta = {
        "spec_verify_ct": verified,
        "spec_num_correct_drafts": sum(steps) - verified,
        "spec_accept_length": completion / verified,
    }
    told = _read(_answer([1, *steps], meta), 7)[-1].told
    assert told is not None
    assert told.steps is not None
    assert told.accepted is not None
    length = 1 + told.accepted / verified
    assert meta["spec_accept_length"] - length == pytest.approx(1 / verified)
    assert length <= 8


def test_tokens_that_are_counted_but_never_came_are_an_error() -> None:
    events = _answer([1, 4], {})
    events[1]["output_ids"] = [1, 2]
    with pytest.raises(EngineError, match="tokens are missing"):
        _read(events, 7)


def test_an_abort_and_a_stream_without_an_end_are_errors() -> None:
    with pytest.raises(EngineError, match="'abort': no reason given"):
        _read(_answer([1, 4], {}, finish="abort"))
    with pytest.raises(EngineError, match="without a finish reason"):
        _read(_events()[:-1])


def test_recorded_metrics_give_the_totals() -> None:
    counted = SGLANG.counters(_found().families)
    assert counted == Counters(5, 0, None, None, None, 168, 39, 39, 0)
    assert SGLANG.counters({}) == Counters()  # metrics are off: unknown, not zero


def test_recorded_configuration_gives_the_factors_and_none_of_a_drafter() -> None:
    found = resolved(_run(), PLAIN, _found())
    expected = {
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "kv_tokens": 8192,
        "context_limit": 1024,
        "max_running_requests": 4096,  # the effective one: the argument is null
        "prefill_chunk": 4096,
        "prefix_cache": True,
        "cuda_graphs": "off",
        "graph_batch_sizes": "[]",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "admission_delay": "none",
        "engine_build": "0.5.23",
        "kv_block_size": 1,
        "async_scheduling": True,
        "mixed_chunk": False,
        "generation_config": "model",
        "schedule_policy": "fcfs",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not {"method", "draft_budget", "verify_width", "accept_threshold", "draft_attention_backend"} & set(found)


SPECULATIVE = {
    "ngram": {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1},
    "draft_model": {"speculative_algorithm": "STANDALONE", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1},
    "mtp": {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1},
    "eagle3": {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1},
    "dflash": {"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1},
    "dspark": {"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1},
}


@pytest.mark.parametrize("method", SPECULATIVE)
def test_every_algorithm_resolves_to_our_name_and_to_drafts_without_the_anchor(method: str) -> None:
    found = _found(**SPECULATIVE[method])
    factors = resolved(_run(), _arm(method), found)
    assert (factors["method"], factors["draft_budget"], factors["verify_width"]) == (method, 7, 8)
    assert factors["draft_tree_width"] == 1
    assert factors["draft_memory"] == ("cell" if method == "ngram" else "none")
    assert factors["verify_rule"] == "standard"
    assert problems(_run(), _arm(method), found) == []


LOADED = (
    "Load weight end. elapsed=9.1 s, type=Qwen3_5ForCausalLM, avail mem=80.0 GB, mem usage=50.10 GB.\n"
    "Load weight end. elapsed=1.2 s, type={}, avail mem=76.0 GB, mem usage=3.59 GB.\n"
)


def test_dflash2_is_told_from_the_class_of_the_drafter_that_was_loaded() -> None:
    found = _found(**SPECULATIVE["dflash"])
    degraded = replace(found, log=LOADED.format("DFlashDraftModel"))
    assert resolved(_run(), _arm("dflash2"), degraded)["method"] == "dflash"
    assert problems(_run(), _arm("dflash2"), degraded) == [
        "method: the drafter is a DFlashDraftModel, so dflash2 would draft as dflash"
    ]
    whole = replace(found, log=LOADED.format("DFlash2DraftModel"))
    assert resolved(_run(), _arm("dflash2"), whole)["method"] == "dflash2"
    assert problems(_run(), _arm("dflash2"), whole) == []


@pytest.mark.parametrize(
    ("method", "changed", "told"),
    [
        ("eagle3", {}, "drafts nothing"),
        ("plain", SPECULATIVE["ngram"], "drafts with NGRAM"),
        ("eagle3", SPECULATIVE["mtp"], "EAGLE3 was asked for, the server resolved EAGLE"),
        ("eagle3", SPECULATIVE["eagle3"] | {"speculative_num_draft_tokens": 7}, "drafts 6 (7 with the anchor)"),
        ("ngram", SPECULATIVE["ngram"] | {"speculative_eagle_topk": 10}, "10 candidates per position"),
        (
            "eagle3",
            SPECULATIVE["eagle3"] | {"speculative_accept_threshold_acc": 0.9},
            "accepts drafts that the target would not",
        ),
    ],
)
def test_a_server_that_is_not_its_arm_says_so(method: str, changed: dict[str, Any], told: str) -> None:
    arm = PLAIN if method == "plain" else _arm(method)
    found = problems(_run(), arm, _found(**changed))
    assert len(found) == 1
    assert told in found[0]


def test_another_drafter_than_the_arms_is_a_problem() -> None:
    arm = _arm("eagle3").model_copy(update={"checkpoint": Checkpoint(location="org/head")})
    found = _found(**SPECULATIVE["eagle3"], speculative_draft_model_path="/models/other-head")
    assert problems(_run(), arm, found) == ["drafter: 'org/head' was asked for, the server has loaded '/models/other-head'"]
    assert problems(_run(), arm, _found(**SPECULATIVE["eagle3"], speculative_draft_model_path="/models/head")) == []


def test_a_lossy_threshold_is_a_factor_of_the_serving() -> None:
    lossy = _found(**SPECULATIVE["eagle3"], speculative_accept_threshold_acc=0.9)
    assert resolved(_run(), _arm("eagle3"), lossy)["accept_threshold"] == 0.9
    assert resolved(_run(), _arm("eagle3"), _found(**SPECULATIVE["eagle3"]))["accept_threshold"] == 1.0


def test_startup_and_memory_come_from_the_scheduler_and_its_log() -> None:
    found = _found()
    assert SGLANG.startup(found).load_s == pytest.approx(0.085, abs=1e-3)
    assert SGLANG.startup(found).graph_capture_s == 0.0
    memory = SGLANG.memory(_run(), PLAIN, found)
    assert (memory.weights_bytes, memory.kv_tokens, memory.drafter_weights_bytes) == (int(0.006 * 2**30), 8192, 0)
    assert set(memory.source) == {"weights_bytes", "drafter_weights_bytes", "kv_bytes", "kv_tokens", "graph_bytes"}
    drafted = SGLANG.memory(_run(), _arm("dflash2"), replace(found, log=LOADED.format("DFlash2DraftModel")))
    assert drafted.drafter_weights_bytes == int(3.59 * 2**30)
    assert SGLANG.memory(_run(), _arm("dflash2"), found).drafter_weights_bytes == 0  # no checkpoint: it is the target's own
    assert SGLANG.memory(_run(), PLAIN, Found()).weights_bytes is None
    assert SGLANG.versions(found) == {"sglang": "0.5.23"}


def test_the_body_states_every_sampling_parameter() -> None:
    run = _run()
    params = SGLANG.body(run, Request("r", (1, 2), 9, (7,), False, run.sampler), "name")["sampling_params"]
    assert (params["temperature"], params["top_p"], params["top_k"]) == (1.0, 0.95, 20)
    assert (params["max_new_tokens"], params["stop_token_ids"], params["ignore_eos"]) == (9, [7], False)
    assert {"min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "sampling_seed", "min_new_tokens"} <= set(
        params
    )
    greedy = _run("sampler=greedy")
    assert SGLANG.body(greedy, _request(), "name")["sampling_params"]["top_k"] == greedy.sampler.top_k or -1
