"""Decode speed of the reference engine beside `transformers.generate`, same model, prompts, precision and number of tokens.

    python -m perf.decode [--batch 1 8] [--tokens 64] [--rounds 5] [--dtype float32]

Prefill is left out on both sides: the clock runs from the first emitted token to the last. Why it matters: an engine slower
than the library that everyone has would make every speedup on top of it look better than it is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import psutil
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from drafters.dense import DenseTarget
from drafters.loop import Job, Loop, StepRecord
from drafters.ngram import NgramDrafter
from drafters.sampling import SamplingParams
from perf.timing import Spread, embedded_folder, interleaved, prompts

GREEDY = SamplingParams(0.0, 1.0, 0, 0)
PROMPT_TOKENS = 64


def main() -> None:
    args = _arguments()
    torch.set_num_threads(psutil.cpu_count(logical=False) or 1)
    folder, dtype = embedded_folder(), getattr(torch, args.dtype)
    texts = prompts(folder, max(args.batch), PROMPT_TOKENS)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    target = DenseTarget(folder, dtype, torch.device("cpu"), max(args.batch), PROMPT_TOKENS + args.tokens)
    print(f"decode, {args.dtype}, {torch.get_num_threads()} threads, {PROMPT_TOKENS} prompt + {args.tokens} new tokens, greedy")
    for batch in args.batch:
        _compare(model, target, texts[:batch], args.tokens, args.rounds)
    _widths(target, texts, args.batch)


def _compare(model: AutoModelForCausalLM, target: DenseTarget, texts: Sequence[tuple[int, ...]], new: int, rounds: int) -> None:
    records: list[StepRecord] = []
    contenders: dict[str, Callable[[], float]] = {
        "reference engine, plain": lambda: _reference(target, texts, new, None, records),
        "reference engine, ngram K=4": lambda: _reference(target, texts, new, 4, []),
        "transformers, dynamic cache": lambda: _transformers(model, texts, new, None),
        "transformers, static cache": lambda: _transformers(model, texts, new, "static"),
    }
    for contender in contenders.values():
        contender()
    records.clear()
    spreads = interleaved(contenders, rounds)
    base = spreads["transformers, dynamic cache"].median
    print(f"\nbatch {len(texts)}: decode tok/s, median [lowest .. highest] of {rounds} interleaved rounds")
    for name, spread in spreads.items():
        print(f"  {name:30s} {spread}   {spread.median / base:5.2f}x transformers dynamic")
    _print_split(records)


def _reference(
    target: DenseTarget, texts: Sequence[tuple[int, ...]], new: int, budget: int | None, records: list[StepRecord]
) -> float:
    """Tokens per second over the decode steps of one batch that starts together."""
    drafter = NgramDrafter(target, {"min_n": 1, "max_n": 3}, None) if budget else None
    loop = Loop(target, drafter, budget or 0, "standard", PROMPT_TOKENS)
    for i, text in enumerate(texts):
        loop.submit(Job(str(i), text, new, frozenset(), GREEDY))
    while loop.totals.prefill_tokens < PROMPT_TOKENS * len(texts):
        loop.step()
    before, started = loop.totals.output_tokens, time.perf_counter()
    while loop.busy:
        loop.step()
    records += [r for r in loop.records if r.kind == "decode"]
    return (loop.totals.output_tokens - before) / (time.perf_counter() - started)


class _Stamps(BaseStreamer):
    """Notes when each step's tokens arrive; the first call carries the prompt."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None: ...


def _transformers(model: AutoModelForCausalLM, texts: Sequence[tuple[int, ...]], new: int, cache: str | None) -> float:
    stamps = _Stamps()
    tokens = torch.tensor(texts)
    options = {"cache_implementation": cache} if cache else {}
    with torch.inference_mode():
        model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            streamer=stamps,
            **options,
        )
    return len(texts) * (new - 1) / (stamps.at[-1] - stamps.at[1])


def _print_split(records: Sequence[StepRecord]) -> None:
    total = sum(r.total_ns for r in records)
    model = sum(r.verify_ns for r in records)
    sampling = sum(r.sample_ns for r in records)
    rest = total - model - sampling
    step_ms = total / len(records) / 1e6
    print(
        f"  plain step {step_ms:.2f} ms (n={len(records)}): model {model / total:.1%}, sampling {sampling / total:.1%}, "
        f"bookkeeping {rest / total:.1%}"
    )


def _widths(target: DenseTarget, texts: Sequence[tuple[int, ...]], batches: Sequence[int]) -> None:
    """Time of a target pass by rows per request: what verification costs beside decoding one token."""
    row_ms = 0.0
    print("\ntarget pass by rows per request, ms, median [lowest .. highest] of 15")
    for batch in batches:
        slots = list(range(batch))
        for slot in slots:
            target.forward([slot], torch.tensor([texts[slot]]), [PROMPT_TOKENS], True)
            target.commit([slot], [PROMPT_TOKENS])
        one = 0.0
        for width in (1, 2, 4, 5, 8, 16):
            spread = _pass_ms(target, slots, width)
            one = one or spread.median
            row_ms = one if batch == batches[0] else row_ms
            print(f"  batch {batch}, {width:2d} rows {spread}   {spread.median / one:5.2f}x one row")
        for slot in slots:
            target.release(slot)
    if batches[0] == 1:
        _roofline(target, row_ms)


def _roofline(target: DenseTarget, step_ms: float) -> None:
    """How near one row at batch 1 comes to reading the weights once at the speed of this memory."""
    memory = target.memory()
    # Of a tied embedding only one row is read as a table; its packed copy is read whole, as the head.
    read = memory["weights"] - target.embedding.nbytes
    big = torch.ones(150_000_000)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        big.sum()
        times.append(time.perf_counter() - started)
    limit = big.nbytes / min(times[2:]) / 1e9
    print(
        f"\nbatch 1, one row: {read / 1e6:.0f} MB of weights in {step_ms:.1f} ms is {read / step_ms / 1e6:.1f} GB/s; "
        f"a plain read of memory reaches {limit:.1f} GB/s (best of 5), which would be {read / limit / 1e6:.1f} ms"
    )


def _pass_ms(target: DenseTarget, slots: list[int], width: int) -> Spread:
    tokens = torch.randint(2, 1000, (len(slots), width))
    times = []
    for _ in range(18):
        started = time.perf_counter()
        target.forward(slots, tokens, [width] * len(slots), False)
        times.append((time.perf_counter() - started) * 1e3)
    return Spread.of(times[3:])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="perf.decode", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
