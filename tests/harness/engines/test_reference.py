"""The reference engine through its adapter: a real worker process on a tiny random model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

from harness.compose import compose_run
from harness.config import Run
from harness.engines.base import DeadEngineError, EngineError, RefusedError, Request
from harness.engines.reference import ReferenceEngine, last_exception
from harness.engines.reference_plan import command, speculation

VOCAB, CONTEXT, SLOTS = 64, 96, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    return folder


def tiny_run(folder: Path, *overrides: str) -> Run:
    return compose_run(
        "cpu_smollm2",
        [
            "target=folder",
            f"target.location={folder}",
            "target.dtype=float32",
            f"target.context={CONTEXT}",
            f"engine.max_running_requests={SLOTS}",
            f"engine.kv_tokens={SLOTS * CONTEXT}",
            "machine.threads=1",
            *overrides,
        ],
    ).run


def asked(run: Run, name: str, prompt: list[int], max_tokens: int = 12) -> Request:
    return Request(name, tuple(prompt), max_tokens, (), False, run.sampler)


def with_engine(run: Run, arm: str, log: Path, do: Callable[[ReferenceEngine], Awaitable[None]]) -> None:
    async def go() -> None:
        engine = ReferenceEngine(run, run.arms[arm], log)
        await engine.launch()
        try:
            await do(engine)
        finally:
            await engine.stop()
            await engine.stop()

    asyncio.run(go())


async def tokens(engine: ReferenceEngine, request: Request) -> list[int]:
    return [token async for chunk in engine.generate(request) for token in chunk.token_ids]


PROMPT = [3, 4, 5, 6, 3, 4, 5, 6, 3, 4]


def test_both_arms_give_the_same_tokens_and_tell_the_truth_about_their_steps(folder, tmp_path):
    run = tiny_run(folder)
    outputs = {}
    for arm in ("plain", "ngram"):

        async def check(engine: ReferenceEngine, arm: str = arm) -> None:
            requests = [asked(run, f"r{i}", [*PROMPT, i]) for i in range(5)]
            outputs[arm] = await asyncio.gather(*[tokens(engine, r) for r in requests])
            counters = await engine.counters()
            assert counters is not None
            assert counters.output_tokens == 60
            assert counters.verify_steps + counters.draftless_steps + counters.accepted == 55
            steps = await engine.steps()
            assert sum(s.emitted for s in steps) == 60
            assert max(s.requests for s in steps) == SLOTS
            assert await engine.steps() == []
            assert (counters.drafted > 0) == (arm == "ngram")

        with_engine(run, arm, tmp_path / "log", check)
    assert outputs["plain"] == outputs["ngram"]


@pytest.mark.parametrize("arm", ["plain", "ngram"])
def test_a_first_token_arrives_a_decode_step_before_the_second_chunk(folder, tmp_path, arm):
    run = tiny_run(folder)
    gaps: list[float] = []

    async def check(engine: ReferenceEngine) -> None:
        await tokens(engine, asked(run, "warm", PROMPT))
        for i in range(8):
            await engine.steps()
            chunks = [chunk async for chunk in engine.generate(asked(run, f"r{i}", [*PROMPT, i]))]
            first = next(s for s in await engine.steps() or () if s.kind == "decode")
            gaps.append((chunks[1].arrived_ns - chunks[0].arrived_ns) / first.total_ns)

    with_engine(run, arm, tmp_path / "log", check)
    assert max(gaps) > 0.5  # of the step between them: all were 0 when both were delivered together


@pytest.fixture(scope="module")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        initializer_range=0.1,
    )
    folder = tmp_path_factory.mktemp("hybrid")
    Qwen3NextForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    return folder


def test_a_hybrid_target_serves_both_arms_alike(hybrid_folder, tmp_path):
    run = tiny_run(hybrid_folder, "target.implementation=drafters.hybrid.TransformersTarget")
    outputs = {}
    for arm in ("plain", "ngram"):

        async def check(engine: ReferenceEngine, arm: str = arm) -> None:
            requests = [asked(run, f"r{i}", [*PROMPT, i]) for i in range(4)]
            outputs[arm] = await asyncio.gather(*[tokens(engine, r) for r in requests])
            assert (await engine.resolved())["linear"] == "library"
            assert (await engine.memory()).weights_bytes > 0

        with_engine(run, arm, tmp_path / "log", check)
    assert outputs["plain"] == outputs["ngram"]


def test_chunks_carry_the_drafts_of_their_step_and_arrival_times_that_grow(folder, tmp_path):
    run = tiny_run(folder)

    async def check(engine: ReferenceEngine) -> None:
        before = time.monotonic_ns()
        chunks = [chunk async for chunk in engine.generate(asked(run, "r", PROMPT))]
        assert chunks[0].drafted is None
        assert all(c.drafted is not None and len(c.token_ids) <= c.accepted + 1 for c in chunks[1:])
        stamps = [c.arrived_ns for c in chunks]
        assert before < stamps[0]
        assert stamps == sorted(stamps)
        assert [c.finish for c in chunks] == [*[None] * (len(chunks) - 1), "length"]

    with_engine(run, "ngram", tmp_path / "log", check)


def test_what_the_worker_resolved_is_what_the_rig_pinned(folder, tmp_path):
    run = tiny_run(folder)
    pinned = ReferenceEngine.plan(run, run.arms["ngram"]).pinned

    async def check(engine: ReferenceEngine) -> None:
        resolved = await engine.resolved()
        assert {key: resolved[key] for key in pinned if key != "cuda_graphs"} == {
            key: value for key, value in pinned.items() if key != "cuda_graphs"
        }
        assert resolved["cuda_graphs"] == "off"
        assert resolved["drafter"] == "drafters.ngram.NgramDrafter"
        assert None not in resolved.values()
        memory = await engine.memory()
        assert memory.kv_tokens == SLOTS * CONTEXT
        assert memory.peak_bytes > memory.weights_bytes > 0

    with_engine(run, "ngram", tmp_path / "log", check)


def test_a_request_that_cannot_fit_fails_alone(folder, tmp_path):
    run = tiny_run(folder)

    async def check(engine: ReferenceEngine) -> None:
        with pytest.raises(EngineError, match="exceed the context"):
            await tokens(engine, asked(run, "big", PROMPT, CONTEXT))
        assert len(await tokens(engine, asked(run, "small", PROMPT))) == 12

    with_engine(run, "plain", tmp_path / "log", check)


def test_giving_up_on_a_request_frees_its_slot(folder, tmp_path):
    run = tiny_run(folder, "engine.max_running_requests=1", f"engine.kv_tokens={CONTEXT}")

    async def check(engine: ReferenceEngine) -> None:
        stream = engine.generate(asked(run, "long", PROMPT, 80))
        await anext(stream)
        await stream.aclose()
        assert len(await asyncio.wait_for(tokens(engine, asked(run, "next", PROMPT)), 30)) == 12
        assert (await engine.counters()).output_tokens < 80 + 12

    with_engine(run, "plain", tmp_path / "log", check)


def test_a_worker_that_dies_fails_every_request_with_its_exit_code(folder, tmp_path):
    run = tiny_run(folder)

    async def check(engine: ReferenceEngine) -> None:
        waiting = [asyncio.ensure_future(tokens(engine, asked(run, f"r{i}", PROMPT, 80))) for i in range(3)]
        await asyncio.sleep(0.01)
        os.kill(engine._process.pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, DeadEngineError)
            assert "killed by SIGKILL" in str(outcome)
        with pytest.raises(DeadEngineError, match="not running"):
            await tokens(engine, asked(run, "late", PROMPT))

    with_engine(run, "plain", tmp_path / "log", check)


def test_a_worker_that_cannot_start_says_why_and_nothing_of_its_traceback(folder, tmp_path):
    run = tiny_run(folder, "target.implementation=drafters.dense.DenseTarget")
    broken = run.model_copy(
        update={"arms": {"ngram": run.arms["ngram"].model_copy(update={"options": {"min_n": 5, "max_n": 2}})}}
    )

    async def go() -> None:
        engine = ReferenceEngine(broken, broken.arms["ngram"], tmp_path / "log")
        with pytest.raises(RefusedError, match=r"^reference engine: options\.min_n: [^|^]*$"):
            await engine.launch()
        await engine.stop()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("loading\nTraceback (most recent call last):\n  File x\n    f()\n    ^^^\nValueError: a: b\nmore\n", "a: b more"),
        ("Traceback (most recent call last):\n  File x\nKeyError\n", "KeyError"),
        (
            "Traceback (most recent call last):\n  File x\nKeyError: 1\n\nDuring handling\n\n"
            "Traceback (most recent call last):\n  File y\ntorch.OutOfMemoryError: no room\n",
            "no room",
        ),
        ("Traceback (most recent call last):\n  File x\n", None),
        ("warming up\n", None),
    ],
)
def test_of_a_traceback_the_last_exceptions_message_is_told(log: str, told: str | None) -> None:
    found = last_exception(log.splitlines())
    assert (found and found[1]) == told


CAUGHT = "Traceback (most recent call last):\n  File x\nValueError: options.n: is wrong\n"


@pytest.mark.parametrize(
    ("code", "is_ready", "kind", "told"),
    [
        (1, False, RefusedError, r"^reference engine: options\.n: is wrong$"),
        (1, True, DeadEngineError, r"exited with code 1; ValueError: options\.n: is wrong; traceback in .*log$"),
        (-9, False, DeadEngineError, "killed by SIGKILL.*; last log lines: "),
    ],
)
def test_only_what_ended_a_worker_before_it_was_ready_is_a_refusal(folder, tmp_path, code, is_ready, kind, told):
    (tmp_path / "log").write_text(CAUGHT)

    async def go() -> DeadEngineError:
        engine = ReferenceEngine(tiny_run(folder), tiny_run(folder).arms["plain"], tmp_path / "log")
        engine._ready = asyncio.get_running_loop().create_future()
        if is_ready:
            engine._ready.set_result({})
        return engine._death(code)

    died = asyncio.run(go())
    assert type(died) is kind
    assert re.search(told, str(died))


def test_stopping_leaves_no_process_even_while_it_computes(folder, tmp_path):
    run = tiny_run(folder)
    pids: list[int] = []

    async def check(engine: ReferenceEngine) -> None:
        pids.append(engine._process.pid)
        await anext(engine.generate(asked(run, "long", PROMPT, 80)))

    with_engine(run, "plain", tmp_path / "log", check)
    assert not psutil.pid_exists(pids[0])


PARENT = """
import asyncio, json, sys
from pathlib import Path
from harness.config import Run
from harness.engines.reference import ReferenceEngine
async def go():
    run = Run.model_validate_json(Path(sys.argv[1]).read_text())
    engine = ReferenceEngine(run, run.arms["plain"], Path(sys.argv[2]))
    print((await engine.launch()).pids[0], flush=True)
    await asyncio.sleep(600)
asyncio.run(go())
"""


def test_a_killed_harness_leaves_no_orphan(folder, tmp_path):
    run = tiny_run(folder)
    (tmp_path / "run.json").write_text(json.dumps(run.model_dump(mode="json")))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "run.json"), str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    with parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        assert worker.is_running()
        parent.kill()
    assert psutil.wait_procs([worker], timeout=10)[1] == []


def test_the_base_command_is_the_same_for_every_arm_and_speculation_adds_only_flags(folder):
    run = tiny_run(folder)
    plans = {name: ReferenceEngine.plan(run, run.arms[name]) for name in ("plain", "ngram")}
    assert plans["plain"].base == plans["ngram"].base == (sys.executable, *command(run, str(folder)))
    assert plans["plain"].speculation == ()
    assert plans["ngram"].speculation == tuple(speculation(run.arms["ngram"]))
    assert plans["plain"].missing == ()


def test_a_target_that_cannot_be_captured_is_refused_before_it_is_loaded(folder):
    overrides = ["target.implementation=drafters.hybrid.TransformersTarget", "engine.graphs=decode"]
    run = tiny_run(folder, *overrides, "engine.graph_batch_sizes=[1]")
    assert any("cannot capture" in line for line in ReferenceEngine.plan(run, run.arms["plain"]).missing)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.kv_dtype=fp8", "engine.kv_dtype"),
        ("engine.prefix_cache=true", "engine.prefix_cache"),
        ("machine=h200", "machine.kind"),
        ("engine.graphs=decode", "engine.graph_batch_sizes"),
    ],
)
def test_a_plan_names_what_this_machine_or_engine_lacks(folder, override, message):
    run = tiny_run(folder, override)
    missing = ReferenceEngine.plan(run, run.arms["plain"]).missing
    assert any(message in line for line in missing)
