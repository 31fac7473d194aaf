"""The adapters over real HTTP and a real process, against a server that answers with recorded bytes."""

import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.compose import compose_run
from harness.config import Run
from harness.engines.base import Chunk, Counters, Launched, Request
from harness.engines.server import ServerEngine
from harness.engines.sglang import SGLangEngine
from harness.engines.vllm import VllmEngine

SERVER = Path(__file__).parents[1] / "replay_server.py"
RECORDED = Path(__file__).parents[2] / "recorded"
PROMPT = (462, 614, 266, 11, 297, 74, 89, 301, 724, 487, 724, 654, 342, 614, 266, 11, 297, 74, 89, 301, 724, 487)


def _interpreter(tmp_path: Path, recorded: str) -> str:
    """A program in the place of the engine's Python: it starts the replaying server with the engine's own arguments."""
    program = tmp_path / "python"
    command = shlex.join([sys.executable, str(SERVER), str(RECORDED / recorded)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return str(program)


def _ask(adapter: type[ServerEngine], run: Run, arm: str, request: Request, log: Path) -> dict[str, Any]:
    """Launch, one request, everything that is read back, stop."""

    async def go() -> dict[str, Any]:
        engine = adapter(run, run.arms[arm], log)
        launched = await engine.launch()
        try:
            chunks = [chunk async for chunk in engine.generate(request)]
            found = {"launched": launched, "chunks": chunks, "counters": await engine.counters()}
            found |= {"resolved": dict(await engine.resolved()), "memory": await engine.memory()}
            await engine.flush()
            return found
        finally:
            await engine.stop()

    return asyncio.run(go())


def _ids(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


@pytest.mark.parametrize(("recorded", "right"), [("ngram", True), ("plain", False)])
def test_vllm_from_launch_to_stop(tmp_path: Path, recorded: str, right: bool) -> None:
    interpreter = _interpreter(tmp_path, f"vllm-0.32.0-cpu/{recorded}")
    run = compose_run("cpu_smollm2_vllm", [f"engine.interpreter={interpreter}", "draft_budget=4"]).run
    found = _ask(VllmEngine, run, "ngram", Request("r", PROMPT, 24, (), True, run.sampler), tmp_path / "log")
    launched: Launched = found["launched"]
    assert launched.argv[:4] == (interpreter, "-m", "vllm.entrypoints.cli.main", "serve")
    assert "--speculative-config" in launched.argv
    assert launched.versions == {"vllm": "0.32.0"}
    assert launched.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert launched.needs_probe
    assert (launched.problems == ()) == right, launched.problems
    assert _ids(found["chunks"])[:4] == [1006, 7, 279, 841]
    assert len(_ids(found["chunks"])) == 24
    assert found["counters"].output_tokens == 312
    assert found["counters"].verify_steps == (56 if right else None)
    assert found["resolved"]["engine"] == "vllm"
    assert found["resolved"].get("method") == ("ngram" if right else None)
    assert found["memory"].kv_tokens == 349440


@pytest.mark.parametrize("arm", ["plain", "ngram"])
def test_sglang_from_launch_to_stop(tmp_path: Path, arm: str) -> None:
    interpreter = _interpreter(tmp_path, "sglang-0.5.23-cpu/plain")
    overrides = ["engine=sglang", f"engine.interpreter={interpreter}"]
    run = compose_run("cpu_smollm2", overrides).run
    found = _ask(SGLangEngine, run, arm, Request("r", PROMPT, 16, (), True, run.sampler), tmp_path / "log")
    launched: Launched = found["launched"]
    assert launched.versions == {"sglang": "0.5.23"}
    assert launched.load_s == pytest.approx(0.085, abs=1e-3)
    assert launched.problems == (() if arm == "plain" else ("speculation: the server drafts nothing, the arm is ngram",))
    assert len(_ids(found["chunks"])) == 16
    assert found["chunks"][-1].told.cached_tokens == 9
    assert found["counters"] == Counters(5, 0, None, None, None, 168, 39, 39, 0)
    assert found["resolved"]["kv_tokens"] == 8192
    # Its n-gram drafter remembers earlier answers, so that arm is flushed although the prefix cache is off.
    assert ("POST /flush_cache" in (tmp_path / "log").read_text("utf-8").splitlines()) == (arm == "ngram")
