"""samerig's own load client as a program, so that perf.clients can count its CPU as it counts the others'.

    python -m perf.samerig_client URL RESULT.json --requests 640 --concurrency 64

The path of a bench: OpenAI adapter, load client, rows, metrics. Only results are not stored.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from harness.compose import compose_run
from harness.engines.base import Request
from harness.engines.openai import OpenAIEngine
from harness.ledger import ledger, request_row
from harness.load import Result, run_window
from harness.metrics import Missing, tpot_ms, ttft_ms
from perf.scripted_server import TOKENS

PROMPT = tuple(range(1, 17))


async def ask(url: str, count: int, concurrency: int, model: str = "steady", tokens: int = TOKENS) -> Sequence[Result]:
    """Send `count` requests, `concurrency` at a time. Raises RuntimeError when one fails."""
    run = compose_run("cpu_smollm2", ["engine=openai", f"engine.url={url}", f"engine.flags.model={model}"]).run
    engine = OpenAIEngine(run, run.arms["plain"], Path("unused.log"))
    await engine.launch()
    requests = [Request(f"r{i}", PROMPT, tokens, (), True, run.sampler) for i in range(count)]
    gc.collect()
    gc.freeze()  # as a bench does, so that the collection before the window finds little to look at
    try:
        window = await run_window(engine, requests, timeout_s=120, concurrency=concurrency)
    finally:
        gc.unfreeze()
        await engine.stop()
    if failed := [result.error for result in window.results if result.error]:
        raise RuntimeError(f"{len(failed)} of {count} requests failed: {failed[0]}")
    return window.results


def times_ms(result: Result, budget: int | None = None) -> tuple[float, float | None]:
    """TTFT, and time per output token or null where the stream does not allow it, by the definitions of harness.metrics."""
    row = request_row({"phase": "measured"}, result, {}, ledger(result.request.request_id, result.chunks, budget, False))
    first, each = ttft_ms(row), tpot_ms(row, budget)
    assert not isinstance(first, Missing), first
    return first, None if isinstance(each, Missing) else each


def main() -> None:
    parser = argparse.ArgumentParser(prog="perf.samerig_client", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("result", type=Path)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    args = parser.parse_args()
    firsts, each = zip(*map(times_ms, asyncio.run(ask(args.url, args.requests, args.concurrency))), strict=True)
    found = {"ttft_ms": statistics.median(firsts), "tpot_ms": statistics.median(each)}
    args.result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
