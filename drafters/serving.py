"""What a worker serves: the loop built from its arguments, and the answers it gives about itself."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from drafters.checkpoint import checkpoint_hash
from drafters.contract import Drafter, Target
from drafters.layers import Linear
from drafters.loop import Job, Loop
from drafters.resident import peak_bytes, settle
from drafters.sampling import SamplingParams
from drafters.teacher_forcing import Text, replay
from drafters.widths import sweep_widths


@dataclass(frozen=True, slots=True)
class Serving:
    """A loop, and facts that do not change while it serves."""

    loop: Loop
    facts: Mapping[str, Any]
    resolved: Mapping[str, Any]

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Act on one message; the reply, if it asks for one. A request that cannot be taken is answered, never raised."""
        match message["op"]:
            case "generate":
                try:
                    self.loop.submit(_job(message))
                except ValueError as refusal:
                    return {"failed": message["id"], "error": str(refusal)}
            case "cancel":
                self.loop.cancel(message["id"])
            case "ask":
                return {"answer": message["n"], "value": getattr(self, f"tell_{message['what']}")(**message.get("with", {}))}
            case other:
                raise ValueError(f"worker: unknown op '{other}'")
        return None

    def tell_counters(self) -> dict[str, int]:
        return asdict(self.loop.totals)

    def tell_steps(self) -> list[list[Any]]:
        """Records since the last call, each as a list in the order of `StepRecord`'s fields."""
        records, self.loop.records[:] = list(self.loop.records), []
        return [list(asdict(record).values()) for record in records]

    def tell_widths(self, texts: list[list[int]], widths: list[int], rounds: int) -> list[list[int]]:
        """Timed target passes by rows per request; each as a list in the order of `WidthTime`'s fields."""
        target, capture = self._idle().target, getattr(self.loop.target, "capture", None)
        if capture is not None and self.facts["graph_capture_s"] is not None:
            capture([len(texts)], widths, ())  # where plain's width is replayed from a graph, so are the others
        times = sweep_widths(target, texts, widths, rounds, self.loop.prefill_chunk)
        return [list(asdict(time).values()) for time in times]

    def tell_replay(self, prompt: list[int], answer: list[int], max_tokens: int, draft: bool) -> dict[str, Any]:
        """A finished request read again; see `drafters.teacher_forcing`. Without `draft`, the target's choices alone."""
        loop = self._idle()
        text = Text(prompt, answer, max_tokens)
        return asdict(replay(loop.target, loop.drafter if draft else None, loop.budget, loop.prefill_chunk, text))

    def _idle(self) -> Loop:
        if self.loop.busy:
            raise ValueError("worker: asked to look into a text while requests run; wait until they are done")
        return self.loop

    def tell_resolved(self) -> dict[str, Any]:
        return dict(self.resolved)

    def tell_memory(self) -> dict[str, int]:
        """Bytes. Peak is the process's own since it was ready on a CPU, the allocator's on a GPU."""
        target = self.loop.target.memory()
        drafter = self.loop.drafter.memory() if self.loop.drafter else {"weights": 0, "state": 0}
        on_gpu = self.loop.target.device.type == "cuda"
        return {
            "weights_bytes": target["weights"],
            "drafter_weights_bytes": drafter["weights"],
            "kv_bytes": target["kv"],
            "kv_tokens": target["kv_tokens"],
            "draft_state_bytes": drafter["state"],
            "graph_bytes": self.facts["graph_bytes"],
            "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else peak_bytes(),
        }


def build(args: argparse.Namespace) -> Serving:
    """Load target and drafter and capture what is to be captured."""
    device = torch.device(args.device)
    threads = _set_threads(args.threads) if device.type == "cpu" else None
    target: Target = load_dotted(args.implementation)(
        args.target, getattr(torch, args.dtype), device, args.slots, args.max_length
    )
    drafter: Drafter | None = None
    if args.drafter:
        drafter = load_dotted(args.drafter)(target, args.options, args.checkpoint)
        check_budget(drafter, args.draft_budget)
    graphs, graph_bytes, graph_s = _capture(target, drafter, args)
    loop = Loop(target, drafter, args.draft_budget, args.verify_rule, args.prefill_chunk)
    resolved = {
        "target_implementation": args.implementation,
        "target_hash": checkpoint_hash(args.target),
        "dtype": args.dtype,
        "kv_dtype": args.dtype,
        "kv_tokens": target.memory()["kv_tokens"],
        "context_limit": target.max_length,
        "max_running_requests": target.slots,
        "prefill_chunk": args.prefill_chunk,
        "prefix_cache": False,
        "verify_rule": args.verify_rule,
        "device": str(device),
        "threads": threads,
        "linear": _linear_kind(target),
        "cuda_graphs": "decode" if graphs else "off",
        "graph_count": graphs or None,
        "graph_batch_sizes": args.graph_batch_sizes or None,
        "attention_backend": "torch.scaled_dot_product_attention",
        "drafter": args.drafter,
        "draft_budget": args.draft_budget,
        "draft_options": json.dumps(args.options, sort_keys=True),
        "draft_checkpoint_hash": checkpoint_hash(Path(args.checkpoint)) if args.checkpoint else None,
    }
    versions = {"torch": torch.__version__, "torch_config_cpu": torch.backends.cpu.get_cpu_capability()}
    facts = {"pid": os.getpid(), "versions": versions, "graph_bytes": graph_bytes, "graph_capture_s": graph_s}
    settle()
    # A factor that does not apply here is absent: a null would read as "could not be found out".
    return Serving(loop, facts, {key: value for key, value in resolved.items() if value is not None})


def check_budget(drafter: Drafter, budget: int) -> None:
    """ValueError when a drafter that states a `max_budget`, the drafts of its trained block, is asked for more."""
    limit = getattr(drafter, "max_budget", None)
    if limit is not None and budget > limit:
        raise ValueError(
            f"draft_budget: {budget} drafts asked of a block trained for {limit}; set draft_budget to {limit} or less"
        )


def load_dotted(path: str) -> Any:
    """The object that a dotted path names, inside this package only."""
    module, _, name = path.rpartition(".")
    if not module.startswith("drafters."):
        raise ValueError(f"'{path}' must name something inside drafters.")
    return getattr(importlib.import_module(module), name)


def _job(message: Mapping[str, Any]) -> Job:
    params = SamplingParams(message["temperature"], message["top_p"], message["top_k"], message["seed"])
    return Job(message["id"], tuple(message["prompt"]), message["max_tokens"], frozenset(message["stop_ids"]), params)


def _set_threads(asked: int) -> int:
    """One thread per physical core unless the rig says otherwise: a second one per core only contends."""
    threads = asked or psutil.cpu_count(logical=False) or 1
    torch.set_num_threads(threads)
    return threads


def _capture(target: Target, drafter: Drafter | None, args: argparse.Namespace) -> tuple[int, int | None, float | None]:
    """Captured graphs, their bytes and seconds. Plain decoding verifies one row, a drafter one to K + 1."""
    sizes = [int(size) for size in args.graph_batch_sizes.split(",") if size]
    if not sizes:
        return 0, None, None
    capture = getattr(target, "capture", None)
    if capture is None:
        raise ValueError(f"engine.graphs: {args.implementation} cannot capture graphs; set engine.graphs=off")
    on_gpu = target.device.type == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    started = time.monotonic()
    count = capture(sizes, (1, args.draft_budget + 1), drafter.taps if drafter else ())
    return count, torch.cuda.memory_allocated() - before if on_gpu else None, time.monotonic() - started


def _linear_kind(target: Target) -> str:
    """Which kernels multiply, `Linear.kind`; other implementations leave it to their library."""
    head = getattr(target, "head", None)
    return head.kind if isinstance(head, Linear) else "library"
