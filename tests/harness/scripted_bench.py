"""A whole run on the scripted engine: built here for tests, and run as a program so that a test can kill it.

python scripted_bench.py RESULTS '{"step_ms": 2}' '{"blocks": 2}'
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.asked import Asked
from harness.config import PromptSet, Run
from harness.config_hash import config_hash
from harness.run import bench
from harness.workloads import prompt_count

ENGINE = {
    "adapter": "harness.engines.scripted.ScriptedEngine",
    "max_running_requests": 64,
    "kv_tokens": 4096,
    "kv_dtype": "auto",
    "prefill_chunk": 256,
    "prefix_cache": False,
    "graphs": "off",
    "verify_rule": "standard",
}
TARGET = {
    "name": "scripted",
    "source": "folder",
    "location": "nowhere",
    "implementation": "harness.engines.scripted",
    "dtype": "float32",
    "quantization": "none",
    "context": 512,
}
PLAIN = {"method": "plain", "drafter": None, "needs_checkpoint": False, "label": "plain"}
NGRAM = {"method": "ngram", "drafter": "drafters.ngram", "needs_checkpoint": False, "draft_budget": 3, "label": "n-gram"}
PROTOCOL = {
    "name": "test",
    "blocks": 2,
    "a_a": False,
    "prompts_per_set": 3,
    "waves": 1,
    "warmup_prompts": 1,
    "warmup_batches": 4,
    "settled_within": 0.05,
    "load": "closed",
    "request_timeout_s": 5,
    "sample_period_s": 0.05,
}


def scripted_run(flags: Mapping[str, Any] | None = None, protocol: Mapping[str, Any] | None = None, **changes: Any) -> Run:
    """Two arms, two sets, concurrency 1 and 2, on the scripted engine; `flags` are the engine's."""
    run = {
        "name": "scripted",
        "summary": "a scripted engine",
        "machine": {"kind": "cpu"},
        "engine": {**ENGINE, "flags": {"step_ms": 0, "prefill_ms": 0, **(flags or {})}},
        "target": TARGET,
        "draft_budget": 3,
        "concurrency": [1, 2],
        "sampler": {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 1},
        "arms": {"plain": PLAIN, "ngram": NGRAM},
        "workload": {
            "name": "test",
            "sets": [{"set": "alpha", "max_tokens": 12}, {"set": "beta", "max_tokens": 8}],
            "stop": "natural",
            "seed": 7,
        },
        "protocol": {**PROTOCOL, **(protocol or {})},
    }
    return Run.model_validate({**run, **changes})


@dataclass(frozen=True)
class Composed:
    run: Run
    yaml: str
    config_hash: str


def composed(run: Run) -> Composed:
    text = run.model_dump_json(indent=1)
    return Composed(run, text, config_hash(json.loads(text)))


class FixedPrompts:
    """Prompts made of their own names, so that no tokenizer is needed."""

    stop_ids = (0,)

    def __init__(self, run: Run) -> None:
        self._run = run

    def measured(self, prompt_set: PromptSet, concurrency: int) -> Sequence[Asked]:
        return [self._asked(prompt_set.set, i) for i in range(prompt_count(self._run.protocol, concurrency))]

    def warmup(self, prompt_set: PromptSet, count: int) -> Sequence[Asked]:
        return [self._asked("warmup", i) for i in range(count)]

    def _asked(self, name: str, index: int) -> Asked:
        ids = tuple(f"{name} {index}".encode())
        return Asked(f"{name}-{index}", "chat", ids, hashlib.sha256(bytes(ids)).hexdigest())


def run_bench(run: Run, results: Path, fresh: bool = False, console: Console | None = None) -> Path:
    return bench(composed(run), results, fresh, console or Console(quiet=True), FixedPrompts(run))


def main(results: str, flags: Mapping[str, Any], protocol: Mapping[str, Any], console: Console | None = None) -> None:
    """Run as a process of its own would; the exit code is the command line's."""
    try:
        run_bench(scripted_run(flags, protocol), Path(results), console=console)
    except KeyboardInterrupt as stopped:
        print(stopped, flush=True)
        sys.exit(130)
    except RuntimeError as error:
        print(f"error: {error}", flush=True)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), Console())
