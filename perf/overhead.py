"""What the harness itself costs: the same requests inside the loop, and through pipes, event loop, load client and rows.

    python -m perf.overhead [--requests 16] [--rounds 5]

Also how much CPU the client spends per chunk, on an engine that costs nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from drafters.dense import DenseTarget
from drafters.loop import Job, Loop
from drafters.sampling import SamplingParams
from harness.compose import compose_run
from harness.config import Run
from harness.engines.base import Request
from harness.engines.reference import ReferenceEngine
from harness.load import run_window
from perf.timing import Spread, embedded_folder, prompts

TOKENS, PROMPT_TOKENS = 32, 48


def main() -> None:
    parser = argparse.ArgumentParser(prog="perf.overhead", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    folder = embedded_folder()
    texts = prompts(folder, args.requests, PROMPT_TOKENS)
    inside, through = _alternate(folder, texts, args.rounds)
    gap_ms = (through.median - inside.median) * 1e3 / args.requests
    print(f"\nharness overhead, {args.requests} requests one at a time, {TOKENS} tokens each, {args.rounds} interleaved rounds")
    print(f"  in the loop, no harness   s {inside}")
    print(f"  through harness and pipes s {through}   {through.median / inside.median:5.3f}x")
    print(f"  per request {gap_ms:.2f} ms, per chunk {gap_ms / TOKENS:.3f} ms")


def _alternate(folder: Path, texts: Sequence[tuple[int, ...]], rounds: int) -> tuple[Spread, Spread]:
    run = compose_run("cpu_smollm2", ["engine.max_running_requests=1", "engine.kv_tokens=2048"]).run
    torch.set_num_threads(psutil.cpu_count(logical=False) or 1)
    target = DenseTarget(folder, torch.float32, torch.device("cpu"), 1, 2048)
    return asyncio.run(_rounds(run, target, texts, rounds))


async def _rounds(run: Run, target: DenseTarget, texts: Sequence[tuple[int, ...]], rounds: int) -> tuple[Spread, Spread]:
    with tempfile.TemporaryDirectory() as folder:
        engine = ReferenceEngine(run, run.arms["plain"], Path(folder) / "log")
        await engine.launch()
        try:
            await _through(run, engine, texts, "warm")
            _inside(target, texts)
            pairs = [(_inside(target, texts), await _through(run, engine, texts, str(i))) for i in range(rounds)]
        finally:
            await engine.stop()
    return Spread.of([a for a, _ in pairs]), Spread.of([b for _, b in pairs])


def _inside(target: DenseTarget, texts: Sequence[tuple[int, ...]]) -> float:
    loop = Loop(target, None, 0, "standard", 512)
    started = time.perf_counter()
    for i, text in enumerate(texts):
        loop.submit(Job(str(i), text, TOKENS, frozenset(), SamplingParams(0.0, 1.0, 0, 0)))
        while loop.busy:
            loop.step()
    return time.perf_counter() - started


async def _through(run: Run, engine: ReferenceEngine, texts: Sequence[tuple[int, ...]], tag: str) -> float:
    requests = [Request(f"{tag}-{i}", text, TOKENS, (), True, run.sampler) for i, text in enumerate(texts)]
    started = time.perf_counter()
    window = await run_window(engine, requests, concurrency=1, rate_rps=None, timeout_s=600)
    seconds = time.perf_counter() - started
    if failed := [r.error for r in window.results if r.error]:
        raise RuntimeError(f"perf.overhead: a request failed: {failed[0]}")
    return seconds


if __name__ == "__main__":
    main()
