"""A whole run on the reference engine with a tiny random target: two arms, each in a worker of its own, for a test to kill."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from scripted_bench import ENGINE, NGRAM, PLAIN, TARGET, run_bench, scripted_run
from transformers import LlamaConfig, LlamaForCausalLM

from harness.config import Run

OPTIONS = {"min_n": 1, "max_n": 3}


def make_target(folder: Path) -> None:
    """A random Llama whose vocabulary is the 256 bytes that the prompts of `scripted_bench` are made of."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=256, num_key_value_heads=2, initializer_range=0.2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")  # a target has them; fixed prompts need none


def reference_run(target: Path) -> Run:
    """Eight cells in two servings: plain and n-gram, two prompt sets, concurrency 1 and 2."""
    adapter = "harness.engines.reference.ReferenceEngine"
    sets = [{"set": "alpha", "max_tokens": 60}, {"set": "beta", "max_tokens": 40}]
    return scripted_run(
        protocol={"blocks": 1, "warmup_batches": 2, "request_timeout_s": 300},
        machine={"kind": "cpu", "threads": 1},
        engine={**ENGINE, "adapter": adapter, "max_running_requests": 2, "kv_tokens": 256, "kv_dtype": "float32"},
        target={**TARGET, "location": str(target), "implementation": "drafters.dense.DenseTarget", "context": 128},
        arms={"plain": PLAIN, "ngram": {**NGRAM, "drafter": "drafters.ngram.NgramDrafter", "options": OPTIONS}},
        workload={"name": "test", "sets": sets, "stop": "fixed", "seed": 7},
    )


def main(results: str, target: str) -> None:
    """As a process of its own would run it: 130 when it was told to stop, 2 with the reason when it cannot go on."""
    try:
        run_bench(reference_run(Path(target)), Path(results))
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:
        print(f"error: {error}", flush=True)
        sys.exit(2)
