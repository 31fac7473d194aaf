"""What the load client spends per chunk, and how late it reacts, on an engine that costs nothing.

    python -m perf.client [--requests 1000] [--concurrency 64]

Why it matters: a client that is the bottleneck makes all drafters look equally good.

Twice: with cores that may fall asleep between two chunks, and with cores held awake as a bench holds them on a GPU's rig
(`harness.awake`). What the first lag has above the second is the machine's wake-up.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from pathlib import Path

import numpy as np

from harness.awake import cores_awake
from harness.compose import compose_run
from harness.config import Run
from harness.engines.base import Request
from harness.engines.scripted import ScriptedEngine
from harness.load import run_window

CHUNKS, STEP_MS = 20, 20.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="perf.client", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    args = parser.parse_args()
    run = compose_run("cpu_smollm2").run
    scripted = run.model_copy(update={"engine": run.engine.model_copy(update={"flags": {"step_ms": STEP_MS, "jitter": 0.5}})})
    for wanted in (False, True):
        with cores_awake(wanted) as limit_us:
            if wanted and limit_us is None:
                print("cores cannot be held awake: it takes Linux and the right to write /dev/cpu_dma_latency")
                return
            cores = "cores may sleep" if limit_us is None else f"cores held awake (wake-up within {limit_us} us)"
            _report(cores, args.concurrency, *asyncio.run(_measure(scripted, args.requests, args.concurrency)))


def _report(cores: str, concurrency: int, requests: int, chunks: int, cpu_s: float, wall_s: float, lag_ms: np.ndarray) -> None:
    lag = ", ".join(f"p{q} {np.percentile(lag_ms, q):.2f}" for q in (50, 95, 99))
    print(f"{cores}: {requests} requests at concurrency {concurrency}, {chunks} chunks in {wall_s:.1f} s")
    print(
        f"  client and scripted engine together: {cpu_s / chunks * 1e6:.0f} us of CPU per chunk, {cpu_s / wall_s:.1%} of a core"
    )
    print(f"  event-loop lag ms: {lag}, n={len(lag_ms)}", flush=True)


async def _measure(run: Run, count: int, concurrency: int) -> tuple[int, int, float, float, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        engine = ScriptedEngine(run, run.arms["plain"], Path(folder) / "log")
        await engine.launch()
        requests = [Request(f"r{i}", (1, 2, 3), CHUNKS, (), True, run.sampler) for i in range(count)]
        engine.prepare(requests)
        gc.collect()
        gc.freeze()  # as a bench does, so that the collection before the window finds little to look at
        wall, cpu = time.perf_counter(), time.process_time()
        window = await run_window(engine, requests, timeout_s=60, concurrency=concurrency)
        spent = time.process_time() - cpu, time.perf_counter() - wall
        await engine.stop()
    complete = sum(len(r.chunks) == CHUNKS for r in window.results)
    return complete, sum(len(r.chunks) for r in window.results), *spent, np.array(window.lag_samples) / 1e6


if __name__ == "__main__":
    main()
