"""The checks that need an NVIDIA GPU, as one script of under eight minutes: `make gpu-check`. Exit code 0 when all hold.

    python -m perf.gpu_check [--out FILE.json]

1  conformance   logits of the dense target against transformers, float32 and bfloat16, on the GPU
2  graphs        captured decode and verify passes equal the eager ones; seconds and bytes of capture
3  tokens        greedy output of plain and n-gram arms equals transformers' generate in float32, with graphs on
4  timings       decode and verify widths by CUDA events, eager and captured, at batch 1, 8 and 32
5  memory        allocator against what the target counts
6  nvml          the background sampler sees this process, power and clocks

It needs no model hub: it uses the embedded target, and a random model of 1.2 billion parameters where width matters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from drafters.dense import DenseTarget
from drafters.loop import Job, Loop
from drafters.ngram import NgramDrafter
from drafters.sampling import SamplingParams
from harness.monitor import Monitor
from harness.probe import gpus
from perf.timing import embedded_folder, prompts

GPU = torch.device("cuda")
BATCHES, WIDTHS = (1, 8, 32), (1, 2, 4, 5, 8, 16)
CONTEXT = 512
WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
Findings = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="perf.gpu_check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the findings as JSON")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: there is no NVIDIA GPU here, or this torch is a CPU build; nothing was checked")
        return 0
    print(f"gpu-check on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    # Exact products: TF32 would hide a wrong result behind its own rounding.
    torch.backends.cuda.matmul.allow_tf32 = False
    findings: Findings = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    failed = []
    for check in (conformance, graphs, tokens, timings, memory, nvml):
        started = time.monotonic()
        holds, found = check()
        findings[check.__name__] = {"holds": holds, "seconds": round(time.monotonic() - started, 1), **found}
        print(f"{'ok  ' if holds else 'FAIL'} {check.__name__}: {json.dumps(findings[check.__name__])}", flush=True)
        failed += [] if holds else [check.__name__]
    if args.out:
        args.out.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
    print(f"{len(failed)} of 6 checks failed: {', '.join(failed)}" if failed else "all checks hold")
    return bool(failed)


def dense(folder: Path, dtype: torch.dtype, slots: int) -> DenseTarget:
    return DenseTarget(folder, dtype, GPU, slots, CONTEXT)


def fill(target: DenseTarget, slots: Sequence[int], length: int = 200) -> None:
    """Commit a random text to every slot."""
    random = torch.Generator(device=GPU).manual_seed(1)
    for slot in slots:
        target.release(slot)
        text = torch.randint(2, 1000, (1, length), device=GPU, generator=random)
        target.forward([slot], text, [length], True)
        target.commit([slot], [length])


def conformance() -> tuple[bool, Findings]:
    """Largest difference of logits, relative to the largest logit."""
    folder, found = embedded_folder(), {}
    text = torch.randint(2, 40000, (2, 96), device=GPU)
    for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        with torch.inference_mode():
            truth = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(GPU)(text).logits.float()
        ours = dense(folder, dtype, 2).forward([0, 1], text, [96, 96], False).logits_RTV.float()
        apart = ((ours - truth).abs().max() / truth.abs().max()).item()
        found[str(dtype)] = {"relative_difference": apart, "limit": limit}
    return all(f["relative_difference"] < f["limit"] for f in found.values()), found


def graphs() -> tuple[bool, Findings]:
    """Captured against eager, in float32, at every captured shape and at ragged batches that need padding."""
    folder, worst = embedded_folder(), 0.0
    eager, captured = dense(folder, torch.float32, 8), dense(folder, torch.float32, 8)
    before, started = torch.cuda.memory_allocated(), time.monotonic()
    count = captured.capture((1, 4, 8), (1, 5), ("final",))
    found = {"graphs": count, "seconds_to_capture": time.monotonic() - started}
    found["bytes"] = torch.cuda.memory_allocated() - before
    for slots, width in (([0], 1), ([2, 5, 1], 1), ([0, 1, 2, 3], 5), (list(range(8)), 3)):
        passes = []
        for target in (eager, captured):
            fill(target, slots)
            text = torch.randint(2, 1000, (len(slots), width), device=GPU, generator=torch.Generator(GPU).manual_seed(2))
            passes.append(target.forward(slots, text, [width] * len(slots), False, ("final",)).logits_RTV.clone())
        worst = max(worst, (passes[0] - passes[1]).abs().max().item())
    return count > 0 and worst < 1e-3, {**found, "worst_difference": worst}


def tokens() -> tuple[bool, Findings]:
    """Greedy tokens of eight prompts through the loop with captured graphs, both arms, against transformers."""
    folder = embedded_folder()
    texts = prompts(folder, 8, 48)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(GPU)
    asked = torch.tensor(texts, device=GPU)
    with torch.inference_mode():
        out = model.generate(asked, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)
    truth = out[:, 48:].tolist()
    target, equal = dense(folder, torch.float32, 8), {}
    target.capture((1, 2, 4, 8), (1, 5), ())
    for name, budget in (("plain", 0), ("ngram", 4)):
        drafter = NgramDrafter(target, {"min_n": 1, "max_n": 3}, None) if budget else None
        loop = Loop(target, drafter, budget, "standard", 64)
        for i, text in enumerate(texts):
            loop.submit(Job(str(i), text, 64, frozenset(), SamplingParams(0.0, 1.0, 0, 0)))
        got: dict[str, list[int]] = {}
        while loop.busy:
            for e in loop.step():
                got.setdefault(e.job_id, []).extend(e.tokens)
        equal[name] = sum(got[str(i)] == truth[i] for i in range(8))
    return all(n == 8 for n in equal.values()), {"equal_of_8": equal}


def timings() -> tuple[bool, Findings]:
    """Milliseconds per pass in bfloat16 on a model of 1.2 B parameters: it must gain from graphs at batch 1."""
    with tempfile.TemporaryDirectory() as name:
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**WIDE)).to(torch.bfloat16).save_pretrained(name)
        target = dense(Path(name), torch.bfloat16, max(BATCHES))
    table: dict[str, dict[str, float]] = {}
    for kind in ("eager", "captured"):
        if kind == "captured":
            target.capture(BATCHES, WIDTHS, ())
        for batch in BATCHES:
            slots = list(range(batch))
            fill(target, slots)
            table[f"{kind} batch {batch}"] = {f"{w} rows": _pass_ms(target, slots, w) for w in WIDTHS}
    gain = table["eager batch 1"]["1 rows"] / table["captured batch 1"]["1 rows"]
    return gain > 1, {"ms": table, "graph_gain_batch_1": gain}


def _pass_ms(target: DenseTarget, slots: list[int], width: int) -> float:
    text = torch.randint(2, 1000, (len(slots), width), device=GPU)
    return _event_ms(lambda: target.forward(slots, text, [width] * len(slots), False))


def _event_ms(function: Callable[[], object], rounds: int = 20) -> float:
    """Median of `rounds`, by events on the device."""
    for _ in range(3):
        function()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return round(statistics.median(times), 4)


def memory() -> tuple[bool, Findings]:
    """What the allocator holds for a fresh target against what the target says, within 5 %."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    target = dense(embedded_folder(), torch.bfloat16, 16)
    held, told = torch.cuda.memory_allocated() - before, target.memory()
    counted = told["weights"] + told["kv"]
    return abs(held - counted) < 0.05 * held, {"allocated": held, "weights": told["weights"], "kv": told["kv"]}


def nvml() -> tuple[bool, Findings]:
    """Two seconds of products under the sampler: power and clock must be there."""
    monitor = Monitor(0.2, gpus())
    monitor.start(())
    a = torch.randn(4096, 4096, device=GPU)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        (a @ a).sum().item()
    samples = [s for s in monitor.drain() if s["device"] != "host"]
    monitor.stop()
    power = [s["power_w"] for s in samples if s["power_w"] is not None]
    clock = [s["clock_mhz"] for s in samples if s["clock_mhz"] is not None]
    found = {"samples": len(samples), "max_power_w": max(power, default=None), "max_clock_mhz": max(clock, default=None)}
    return bool(power and clock), found


if __name__ == "__main__":
    sys.exit(main())
