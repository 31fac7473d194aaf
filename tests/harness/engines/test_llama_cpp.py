"""llama.cpp: its recorded bytes, what is launched for each arm, and the real server on the embedded target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compose import compose_run, missing_parts
from harness.config import Arm, Checkpoint, Run
from harness.engines import llama_cpp_plan
from harness.engines.base import UNKNOWN_ID, Chunk, EngineError, Request
from harness.engines.llama_cpp import LlamaCpp, LlamaCppEngine
from harness.engines.llama_cpp_stream import LlamaReader, hidden_steps
from harness.engines.server_dialect import Found
from harness.engines.server_metrics import parse_metrics
from harness.ledger import ledger, request_row
from harness.load import Result

RECORDED = Path(__file__).parents[2] / "recorded"
BUILT, WHEEL = RECORDED / "llama_cpp-b11434", RECORDED / "llama_cpp-xllamacpp-2026.10.11549"
RUN = compose_run("cpu_smollm2_llamacpp", ["machine.threads=1"]).run
DIALECT = LlamaCpp()
NAMES = ("prefill_tokens", "steps_with_draft", "steps_without_draft", "drafted", "accepted", "accepted_by_engine")


def request(max_tokens: int = 48, ids: tuple[int, ...] = (1, 2, 3), ignore_eos: bool = False, name: str = "r") -> Request:
    return Request(name, ids, max_tokens, (2,), ignore_eos, RUN.sampler)


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in path.read_text("utf-8").splitlines() if line.startswith("data: {")]


def read(told: list[dict[str, Any]], budget: int | None) -> list[Chunk]:
    reader = LlamaReader(request(), budget)
    return [chunk for at, event in enumerate(told) for chunk in reader.read(at, event)] + reader.end()


def row_of(chunks: list[Chunk], budget: int | None) -> dict[str, Any]:
    return request_row({}, Result(request(), 0, 0, 99, tuple(chunks), None), {}, ledger("r", chunks, budget, False))


def drafting(method: str, location: str, budget: int = 3, **options: Any) -> Arm:
    return Arm(
        method=method,
        drafter=None,
        needs_checkpoint=True,
        checkpoint=Checkpoint(location=location),
        draft_budget=budget,
        options=options,
        label=method,
    )


@pytest.mark.parametrize("answer", ["count", "utf8"])
@pytest.mark.parametrize(("arm", "budget"), [("plain", None), ("ngram", 4)])
def test_a_recorded_stream_gives_the_tokens_and_steps_of_the_recorded_answer(arm: str, budget: int | None, answer: str) -> None:
    """The same greedy request was also recorded without streaming, where every id is in the answer."""
    whole = json.loads((WHEEL / arm / f"{answer}.json").read_text("utf-8"))
    chunks = read(events(WHEEL / arm / f"{answer}.sse"), budget)
    row = row_of(chunks, budget)
    assert len(row["token_ids"]) == whole["tokens_predicted"] == 48
    hidden = [token for token in row["token_ids"] if token == UNKNOWN_ID]
    assert all(mine in (UNKNOWN_ID, theirs) for mine, theirs in zip(row["token_ids"], whole["tokens"], strict=True))
    assert len(hidden) == (26 if answer == "utf8" else 0)
    timings = whole["timings"]
    assert (row["drafted"], row["accepted_by_engine"]) == (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))
    assert row["finish"] == "length"
    assert row["cached_tokens"] == 0


def test_steps_of_a_recorded_stream_are_those_that_the_server_counted() -> None:
    """Two requests streamed and two not, in one server: it counted the drafting steps of all four."""
    rows = [row_of(read(events(WHEEL / "ngram" / f"{answer}.sse"), 4), 4) for answer in ("count", "utf8")]
    counters = DIALECT.counters(parse_metrics((WHEEL / "ngram" / "metrics.txt").read_text("utf-8")))
    assert counters.verify_steps == 2 * sum(row["steps_with_draft"] for row in rows)
    assert counters.drafted == 2 * sum(row["drafted"] for row in rows)
    assert counters.accepted == 2 * sum(row["accepted_by_engine"] for row in rows)
    assert counters.output_tokens == 2 * sum(row["output_tokens"] for row in rows)
    assert (counters.cached_tokens, counters.preemptions) == (0, 0)


def test_the_events_of_one_step_are_one_chunk() -> None:
    told = events(WHEEL / "ngram" / "count.sse")
    chunks = read(told, 4)
    assert [(chunk.token_ids, chunk.drafted, chunk.accepted) for chunk in chunks[:3]] == [
        ((1876,), None, None),
        ((30, 198), 4, 1),
        ((198,), 0, 0),
    ]
    assert chunks[1].arrived_ns == 2  # when its last token arrived


@pytest.mark.parametrize(
    ("arm", "budget"), [("eagle3", 3), ("dflash2", 7), ("dspark", 7), ("draft_model", 3), ("synthetic", 3)]
)
def test_streams_of_every_drafter_keep_the_ledger(arm: str, budget: int) -> None:
    """Recorded on the completions route, whose events carry the same totals but no ids; they are put in by count."""
    told = []
    for event in events(BUILT / arm / "stream.sse"):
        timings, last = event["timings"], event["choices"][0]["finish_reason"]
        seen = sum(len(e["tokens"]) for e in told) if told else 0
        tokens = [] if last else [7] * (1 if timings["predicted_n"] > seen else 0)
        told.append({"tokens": tokens, "tokens_predicted": timings["predicted_n"], "timings": timings, "stop": bool(last)})
    told[-1]["stop_type"] = "limit"
    row = row_of(read(told, budget), budget)
    timings = told[-1]["timings"]
    assert row["output_tokens"] == 16
    assert (row["drafted"], row["accepted_by_engine"]) == (timings["draft_n"], timings["draft_n_accepted"])
    assert row["steps_with_draft"] >= timings["draft_n"] / budget


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12), st.integers(0, 3))
@settings(deadline=None)
def test_any_sequence_of_steps_is_read_back_from_its_events(steps: list[tuple[int, int]], cut: int) -> None:
    """What the server would send for these steps, the last `cut` tokens missing, gives the same totals and one chunk a step."""
    steps = [(drafted, min(drafted, accepted)) for drafted, accepted in steps]
    told, count, drafted, accepted = [_token(1, 0, 0)], 1, 0, 0
    for step_drafted, step_accepted in steps:
        drafted, accepted = drafted + step_drafted, accepted + step_accepted
        for _ in range(step_accepted + 1):
            count += 1
            told.append(_token(count, drafted, accepted))
    told = told[: max(2, len(told) - min(cut, steps[-1][1]))]
    told.append({**_token(len(told), drafted, accepted), "tokens": [], "stop": True, "stop_type": "eos"})
    row = row_of(read(told, 4), 4)
    assert list(zip(row["step_drafted"], row["step_accepted"], strict=True)) == steps
    assert row["output_tokens"] == len(told) - 1


def _token(count: int, drafted: int, accepted: int) -> dict[str, Any]:
    timings = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
    return {"tokens": [count], "tokens_predicted": count, "timings": {**timings, "cache_n": 0}, "stop": False}


def test_steps_behind_held_back_tokens_are_as_few_as_can_be() -> None:
    assert hidden_steps(0, 0, 0, 4) == []
    assert hidden_steps(3, 0, 0, 4) == [(0, 0)] * 3
    assert hidden_steps(1, 4, 3, 4) == [(4, 3)]
    assert hidden_steps(6, 8, 4, 4) == [(4, 4), (4, 0)]
    assert hidden_steps(4, 4, 1, 4) == [(0, 0), (0, 0), (4, 1)]
    with pytest.raises(EngineError, match="did not draft"):
        hidden_steps(2, 0, 1, 4)


def test_a_strange_end_is_an_error() -> None:
    with pytest.raises(EngineError, match="stopped with 'none'"):
        LlamaReader(request(), 4).read(1, {"stop": True, "stop_type": "none"})


def test_the_command_of_each_arm_differs_by_its_speculation_alone() -> None:
    plans = {name: LlamaCppEngine.plan(RUN, arm) for name, arm in RUN.arms.items()}
    assert plans["plain"].base == plans["ngram"].base
    assert plans["plain"].speculation == ("--spec-type", "none")
    text = " ".join(plans["ngram"].speculation)
    assert "--spec-type ngram-simple" in text
    assert "--spec-ngram-simple-size-m 4" in text
    base = " ".join(plans["plain"].base)
    for pinned in ("--ctx-size 65536", "--parallel 32", "--fit off", "--threads 1", "--cache-ram 0", "--device none"):
        assert pinned in base


def test_the_budget_of_a_drafter_is_its_number_of_drafts(tmp_path: Path) -> None:
    file = tmp_path / "eagle3.gguf"
    file.write_bytes(b"GGUF")
    text = " ".join(DIALECT.speculation(RUN, drafting("eagle3", str(file), 5)))
    assert text == (
        f"--spec-type draft-eagle3 --spec-draft-model {file} --spec-draft-n-max 5 --spec-draft-n-min 0 --spec-draft-p-min 0 "
        "--spec-draft-type-k f16 --spec-draft-type-v f16"
    )
    assert DIALECT.speculation(RUN, drafting("dflash", str(tmp_path)))[3] == str(file)  # the one GGUF of a folder


def test_what_this_llama_cpp_cannot_serve_is_refused_before_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp_plan, "_help", lambda argv: "--spec-type none,ngram-simple,draft-eagle3")

    def gaps(arm: Arm, run: Run = RUN) -> str:
        return " ".join(DIALECT.missing(run, arm))

    assert gaps(RUN.arms["ngram"]) == ""
    assert "one size" in gaps(RUN.arms["ngram"].model_copy(update={"options": {"min_n": 1, "max_n": 3}}))
    assert "llama.cpp has none of this name" in gaps(drafting("xpress", str(tmp_path)))
    assert "has no --spec-type draft-dspark; use a newer build" in gaps(drafting("dspark", str(tmp_path)))
    assert "holds no single .gguf, and no config.json with *.safetensors to export one from" in gaps(
        drafting("eagle3", str(tmp_path))
    )
    assert "arm option 'sample'" in gaps(drafting("eagle3", str(tmp_path), sample=True))
    block = RUN.model_copy(update={"engine": RUN.engine.model_copy(update={"verify_rule": "block", "kv_dtype": "fp8"})})
    assert "standard rule only" in gaps(RUN.arms["plain"], block)
    assert "llama.cpp has no fp8" in gaps(RUN.arms["plain"], block)
    elsewhere = RUN.engine.model_copy(update={"flags": {**RUN.engine.flags, "gguf": "/nowhere/x.gguf"}})
    assert "'/nowhere/x.gguf' does not exist" in gaps(RUN.arms["plain"], RUN.model_copy(update={"engine": elsewhere}))


def test_what_is_not_on_this_disk_gets_no_advice_to_export_it_and_no_judgement_of_a_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama_cpp_plan, "_help", lambda argv: "--spec-type none")
    monkeypatch.setattr("harness.engines.method_support.shutil.which", lambda name: None)
    run = compose_run("published/rtx4090_qwen27b_depths").run
    told = {name: [*DIALECT.missing(run, arm)] for name, arm in run.arms.items()}
    assert not [line for lines in told.values() for line in lines if "export" in line or "newer build" in line]
    assert [line for line in told["dflash2"] if line.startswith("engine.binary: not set; on the GPU's machine build")]
    assert [line for line in missing_parts(run) if line.startswith("arms.dflash2.checkpoint.location")] == [
        "arms.dflash2.checkpoint.location: 'incoai/Qwen3.8-27B-DFlash2-GGUF' does not exist; fetch the file that you mean: "
        "hf download incoai/Qwen3.8-27B-DFlash2-GGUF FILE.gguf --local-dir checkpoints, and set "
        "arms.dflash2.checkpoint.location to it"
    ]


def test_a_revision_of_a_hub_repository_is_to_be_downloaded_first() -> None:
    arm = drafting("eagle3", "org/Drafter")
    pinned = arm.model_copy(update={"checkpoint": Checkpoint(location="org/Drafter", revision="main")})
    assert not [line for line in DIALECT.missing(RUN, arm) if "org/Drafter" in line]  # told with the rig's checkpoints
    assert [line for line in DIALECT.missing(RUN, pinned) if "hf download org/Drafter --revision main" in line]


def test_a_program_that_does_not_run_is_told() -> None:
    engine = RUN.engine.model_copy(update={"binary": "/no/llama-server"})
    assert "'/no/llama-server' does not run" in " ".join(
        DIALECT.missing(RUN.model_copy(update={"engine": engine}), RUN.arms["plain"])
    )


def test_every_sampler_of_the_server_is_overridden() -> None:
    """A recorded server's defaults: what is on there must be off, or ours, in the body."""
    defaults = json.loads((BUILT / "plain" / "props.json").read_text("utf-8"))["default_generation_settings"]["params"]
    body = DIALECT.body(RUN, request(), "x")
    assert (defaults["top_k"], defaults["min_p"], defaults["temperature"]) == (40, pytest.approx(0.05), pytest.approx(0.8))
    assert (body["top_k"], body["top_p"], body["min_p"], body["temperature"], body["repeat_last_n"]) == (0, 1.0, 0.0, 0.0, 0)
    assert body["samplers"] == ["temperature", "top_k", "top_p"]
    assert (body["cache_prompt"], body["return_tokens"], body["timings_per_token"]) == (False, True, True)
    assert (body["prompt"], body["n_predict"]) == ([1, 2, 3], 48)


@pytest.mark.parametrize(("arm", "method", "budget"), [("plain", "plain", None), ("ngram", "ngram", 4)])
def test_the_recorded_server_resolved_what_was_asked(arm: str, method: str, budget: int | None) -> None:
    folder = WHEEL / arm
    argv = [*DIALECT.command(RUN, "model.gguf"), *DIALECT.speculation(RUN, RUN.arms[arm])]
    found = Found(
        {"/props": json.loads((folder / "props.json").read_text("utf-8"))},
        parse_metrics((folder / "metrics.txt").read_text("utf-8")),
        (folder / "server.log").read_text("utf-8"),
        argv,
    )
    factors = DIALECT.resolved(RUN, RUN.arms[arm], found)
    assert (factors["method"], factors["draft_budget"]) == (method, budget)
    wanted = {
        "context_limit": 2048,
        "max_running_requests": 2,
        "kv_tokens": 4096,
        "dtype": "Q4_1",
        "device": "cpu",
        "threads": 1,
    }
    assert {name: factors[name] for name in wanted} == wanted
    assert factors["synthetic_acceptance"] is False
    memory = DIALECT.memory(RUN, RUN.arms[arm], found)
    assert (memory.weights_bytes, memory.kv_bytes, memory.kv_tokens) == (round(92.1 * 2**20), 90 << 20, 4096)
    assert memory.drafter_weights_bytes == 0
    assert 0 < (DIALECT.startup(found).load_s or 0) < 60


def test_a_log_of_a_drafter_tells_nothing_of_the_target_as_the_drafters() -> None:
    log = "\n".join(
        [
            "x model buffer size =   92.00 MiB",
            "x KV buffer size =    90.00 MiB",
            "spec: loading draft model 'a.gguf'",
            "x model buffer size =    7.00 MiB",
            "x KV buffer size =    3.00 MiB",
        ]
    )
    memory = DIALECT.memory(RUN, drafting("eagle3", "a.gguf"), Found(log=log))
    assert (memory.weights_bytes, memory.drafter_weights_bytes) == (92 << 20, 7 << 20)
    assert (memory.kv_bytes, memory.draft_state_bytes, memory.kv_tokens) == (90 << 20, 3 << 20, None)


def test_slots_are_erased_only_where_the_rig_has_a_prefix_cache() -> None:
    warm = compose_run("cpu_smollm2_llamacpp", ["machine.threads=1", "engine.prefix_cache=true"]).run
    assert "--slot-save-path" in DIALECT.command(warm, "model.gguf")
    assert "--slot-save-path" not in DIALECT.command(RUN, "model.gguf")
