"""The real server of llama.cpp, from the package `xllamacpp`, on the embedded target."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from drafters.ngram_simple import NgramSimpleDrafter
from harness.compose import compose_run
from harness.config import Run
from harness.engines.base import Request
from harness.engines.gguf_header import read_header
from harness.engines.llama_cpp import LlamaCppEngine
from harness.ledger import ledger, request_row
from harness.load import run_window
from harness.metrics.ledger import accepted_prefix
from harness.processes import is_alive

pytest.importorskip("xllamacpp")
ROOT = Path(__file__).parents[3]
SMALL = ["machine.threads=1", "target.context=256", "engine.max_running_requests=2", "engine.kv_tokens=512"]


def request(max_tokens: int, ids: tuple[int, ...], name: str, run: Run) -> Request:
    return Request(name, ids, max_tokens, (), True, run.sampler)


def test_the_real_server_drafts_accepts_and_changes_no_greedy_token(tmp_path: Path) -> None:
    run = compose_run("cpu_smollm2_llamacpp", SMALL).run
    once = (582, 827, 1296, 1876, 30, 198)  # " one two three four.\n", from the embedded target's tokenizer
    prompts = [once * 4, (1, *once * 2, 3478, 42)]
    rows = {arm: asyncio.run(_serve(run, arm, prompts, tmp_path / f"{arm}.log")) for arm in ("plain", "ngram")}
    assert [row["token_ids"] for row in rows["plain"]] == [row["token_ids"] for row in rows["ngram"]]
    drafted, accepted, steps = (sum(row[name] for row in rows["ngram"]) for name in ("drafted", "accepted", "steps_with_draft"))
    assert drafted > 0
    assert 1 + accepted / steps > 1.5  # the prompt repeats itself, and so does the model
    told = [(row["steps_with_draft"], row["drafted"], row["accepted"]) for row in rows["ngram"]]
    assert told == [ngram_of_the_reference(run, ids, row["token_ids"]) for ids, row in zip(prompts, rows["ngram"], strict=True)]
    assert all(row["steps_with_draft"] == 0 and row["cached_tokens"] == 0 for row in rows["plain"])


@pytest.mark.parametrize("arm", ["eagle3", "dflash", "dflash2", "dspark"])
def test_the_real_server_exports_and_accepts_every_trained_drafter(arm: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "checkpoints/smollm2_135m" / arm, tmp_path / arm, ignore=shutil.ignore_patterns("*.png"))
    run = compose_run("cpu_smollm2_llamacpp", [*SMALL, f"arms.{arm}.checkpoint.location={tmp_path / arm}"]).run
    once = (582, 827, 1296, 1876, 30, 198)
    rows = asyncio.run(_serve(run, arm, [once * 4, (1, *once * 2, 3478, 42)], tmp_path / "server.log"))
    drafted, accepted = (sum(row[name] for row in rows) for name in ("drafted", "accepted"))
    assert 0 < accepted < drafted
    assert read_header(tmp_path / f"{arm}.gguf").source


def ngram_of_the_reference(run: Run, prompt: tuple[int, ...], answer: list[int], budget: int = 4) -> tuple[int, int, int]:
    """Drafting steps, drafted and accepted, had the reference engine's drafter of the same rule drafted this greedy answer."""
    drafter = NgramSimpleDrafter(cast(Any, SimpleNamespace(device="cpu")), run.arms["ngram"].options, None)
    new, done, steps = [*prompt[1:], answer[0]], 1, [0, 0, 0]
    while done < len(answer):
        drafter.observe([0], None, torch.tensor([new]), [len(new)])
        draft = drafter.propose([0], [min(budget, len(answer) - done - 1)])
        tokens = draft.tokens_RK[0].tolist() if draft else []
        hits = accepted_prefix([a == b for a, b in zip(tokens, answer[done:], strict=False)])
        steps = [steps[0] + bool(tokens), steps[1] + len(tokens), steps[2] + hits]
        new = answer[done : done + hits + 1]
        done += hits + 1
    return steps[0], steps[1], steps[2]


async def _serve(run: Run, arm: str, prompts: list[tuple[int, ...]], log: Path) -> list[dict[str, Any]]:
    """Rows of these prompts from a real server, checked against its counters; nothing of it is left afterwards."""
    engine = LlamaCppEngine(run, run.arms[arm], log)
    launched = await engine.launch()
    try:
        factors = await engine.resolved()
        assert (factors["method"], factors["draft_budget"]) == (run.arms[arm].method, run.arms[arm].draft_budget)
        asked = [request(24, ids, str(i), run) for i, ids in enumerate(prompts)]
        window = await run_window(engine, asked, timeout_s=120, concurrency=2)
        assert [result.error for result in window.results] == [None, None]
        budget = run.arms[arm].draft_budget
        rows = [request_row({}, r, {}, ledger(r.request.request_id, r.chunks, budget, False)) for r in window.results]
        counters = await engine.counters()
        assert counters is not None
        assert counters.output_tokens == sum(row["output_tokens"] for row in rows) == 48
        assert counters.prefill_tokens == sum(len(ids) for ids in prompts)
        told = (counters.verify_steps, counters.drafted, counters.accepted)
        assert told == tuple(sum(row[name] for row in rows) for name in ("steps_with_draft", "drafted", "accepted_by_engine"))
    finally:
        await engine.stop()
    assert not any(map(is_alive, launched.pids))
    return rows


def test_the_real_server_forgets_every_prompt_when_it_is_flushed(tmp_path: Path) -> None:
    run = compose_run("cpu_smollm2_llamacpp", [*SMALL, "engine.prefix_cache=true"]).run
    prompts = [(582, 827, 1296, 1876, 30, 198) * 6, (1, *(3478, 42, 827) * 9)]

    async def cached(engine: LlamaCppEngine, turn: int) -> list[int | None]:
        asked = [request(4, ids, f"{turn}-{i}", run) for i, ids in enumerate(prompts)]
        window = await run_window(engine, asked, timeout_s=120, concurrency=1)
        told = [result.chunks[-1].told for result in window.results]
        return [one.cached_tokens if one else None for one in told]

    async def go() -> list[list[int | None]]:
        engine = LlamaCppEngine(run, run.arms["plain"], tmp_path / "log")
        await engine.launch()
        try:
            found = [await cached(engine, 0), await cached(engine, 1)]
            await engine.flush()
            return [*found, await cached(engine, 2)]
        finally:
            await engine.stop()

    assert asyncio.run(go()) == [[0, 0], [35, 27], [0, 0]]
