"""The reference engine looked into through its adapter: a real worker on a tiny random model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness.compose import compose_run
from harness.engines.base import Request
from harness.engines.reference import ReferenceEngine
from harness.inside import OpenEngine

PROMPT = [3, 4, 5, 6, 3, 4, 5, 6, 3, 4]
OVERRIDES = (
    *("target=folder", "target.dtype=float32", "target.context=96", "engine.max_running_requests=3", "engine.kv_tokens=288"),
    "machine.threads=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, initializer_range=0.2, **sizes)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    return folder


def test_served_and_recomputed_acceptance_agree_and_the_counters_stay_clean(folder: Path, tmp_path: Path):
    run = compose_run("cpu_smollm2", [*OVERRIDES, f"target.location={folder}"]).run

    async def go() -> None:
        engine = ReferenceEngine(run, run.arms["ngram"], tmp_path / "log")
        assert isinstance(engine, OpenEngine)
        await engine.launch()
        try:
            request = Request("r", tuple(PROMPT), 40, (), False, run.sampler)
            chunks = [chunk async for chunk in engine.generate(request)]
            tokens = [t for chunk in chunks for t in chunk.token_ids]
            steps = [chunk for chunk in chunks if chunk.drafted is not None]
            before = await engine.counters()
            got = await engine.replay(PROMPT, tokens, 40, draft=True)
            alone = await engine.replay(PROMPT, tokens, 40, draft=False)
            times = await engine.widths([[*PROMPT, *tokens]] * 2, range(1, 6), 2)
            assert got.drafted == sum(chunk.drafted or 0 for chunk in steps)
            assert got.accepted == sum(min(chunk.accepted or 0, len(chunk.token_ids)) for chunk in steps)
            assert got.steps_with_draft == sum(bool(chunk.drafted) for chunk in steps)
            assert max(got.deficits) < 1e-4
            assert (alone.drafted, alone.deficits) == (None, got.deficits)
            assert len(times) == 10
            assert {t.width for t in times} == {1, 2, 3, 4, 5}
            assert await engine.counters() == before
            again = [
                t
                async for chunk in engine.generate(Request("s", tuple(PROMPT), 40, (), False, run.sampler))
                for t in chunk.token_ids
            ]
            assert again == tokens
        finally:
            await engine.stop()

    asyncio.run(go())
