"""What SGLang is launched with: the base command of a rig and what an arm adds to it. Flags are those of SGLang 0.5.23."""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.config import Arm, Run
from harness.engines.base import Scalar
from harness.engines.server_dialect import checkpoint_path, flag_list

# First version with each method; 0 is "in every version that has the flags below". SGLang has no xPress.
SINCE = {
    "ngram": "0",
    "draft_model": "0",
    "mtp": "0",
    "eagle3": "0",
    "dflash": "0",
    "dflash2": "0.5.19",
    "dspark": "0.5.16",
}
ALGORITHMS = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "mtp": "NEXTN",
    "eagle3": "EAGLE3",
    "dflash": "DFLASH",
    "dflash2": "DFLASH",  # the architecture in the drafter's config selects it
    "dspark": "DSPARK",
}
SERIAL = ("draft_model", "mtp", "eagle3")

# Options of an arm that become flags of its speculation.
OPTIONS = {
    "attention_backend": "speculative-draft-attention-backend",
    "kv_cache_dtype": "speculative-draft-kv-cache-dtype",
    "quantization": "speculative-draft-model-quantization",
    "load_format": "speculative-draft-load-format",
    "window_size": "speculative-draft-window-size",
    "token_map": "speculative-token-map",
    "max_trie_depth": "speculative-ngram-max-trie-depth",
    "sps_table_path": "speculative-dspark-sps-table-path",
}
# What only the reference engine is told: SGLang takes it from the checkpoint, from the request, or has a rule
# of its own for it (its n-gram drafter matches as long as it can, so min_n and max_n have no counterpart).
TOLD_BY_CHECKPOINT = ("tap_numbering", "feature", "recycle", "zero_first_embedding", "modules", "temperature", "min_n", "max_n")
_KV_DTYPES = {"fp8": "fp8_e4m3"}


def command(run: Run, model: str) -> list[str]:
    """The base command. It never sees the arm, so nothing in it can differ between arms."""
    engine, target = run.engine, run.target
    argv = [engine.interpreter or "<engine.interpreter>", "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--device", run.machine.kind, "--dtype", target.dtype, "--context-length", str(target.context)]
    argv += ["--max-running-requests", str(engine.max_running_requests), "--max-total-tokens", str(engine.kv_tokens)]
    argv += ["--chunked-prefill-size", str(engine.prefill_chunk)]
    argv += [
        "--kv-cache-dtype",
        "auto" if engine.kv_dtype == target.dtype else _KV_DTYPES.get(engine.kv_dtype, engine.kv_dtype),
    ]
    if not engine.prefix_cache:
        argv += ["--disable-radix-cache"]
    if engine.graphs == "off":
        argv += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
    else:
        argv += ["--cuda-graph-backend-decode", "full", "--cuda-graph-bs-decode", *map(str, engine.graph_batch_sizes)]
    return [*argv, *flag_list(engine.flags)]


def speculation(run: Run, arm: Arm) -> list[str]:
    """What the arm adds; nothing for plain.

    SGLang counts the anchor: `num_draft_tokens` is the budget plus one for every method, a DFlash block included. A serial
    drafter takes `budget` steps with one candidate each, so that it drafts a chain and no tree; n-gram's tree has breadth one.
    """
    if arm.method == "plain":
        return []
    budget = arm.draft_budget or 0
    argv = ["--speculative-algorithm", ALGORITHMS.get(arm.method, arm.method.upper())]
    if arm.checkpoint is not None:
        argv += ["--speculative-draft-model-path", str(checkpoint_path(arm))]
        if arm.checkpoint.revision:
            argv += ["--speculative-draft-model-revision", arm.checkpoint.revision]
    if arm.method in SERIAL:
        argv += ["--speculative-num-steps", str(budget), "--speculative-eagle-topk", "1"]
    if arm.method == "dspark":
        argv += ["--speculative-dspark-block-size", str(budget)]
    argv += ["--speculative-num-draft-tokens", str(budget + 1)]
    if arm.method == "ngram":
        argv += ["--speculative-ngram-max-bfs-breadth", "1"]
    if run.engine.verify_rule == "block":
        argv += ["--speculative-use-block-verification"]
    if arm.options.get("sample") and arm.method in ("mtp", "eagle3"):
        argv += ["--speculative-use-rejection-sampling"]
    return [*argv, *flag_list({OPTIONS[name]: value for name, value in arm.options.items() if name in OPTIONS})]


def pinned(run: Run) -> dict[str, Scalar]:
    """Factors that the rig holds for every arm, by canonical name."""
    engine, flags = run.engine, run.engine.flags
    held: dict[str, Scalar] = {
        "dtype": run.target.dtype,
        "kv_dtype": engine.kv_dtype,
        "kv_tokens": engine.kv_tokens,
        "context_limit": run.target.context,
        "max_running_requests": engine.max_running_requests,
        "prefill_chunk": engine.prefill_chunk,
        "prefix_cache": engine.prefix_cache,
        "cuda_graphs": "off" if engine.graphs == "off" else "full",
        "graph_batch_sizes": json.dumps(list(engine.graph_batch_sizes) if engine.graphs != "off" else []),
        "verify_rule": engine.verify_rule,
    }
    return held | {factor: flags[flag] for flag, factor in _FACTORS.items() if flags.get(flag) is not None}


_FACTORS: Mapping[str, str] = {
    "attention-backend": "attention_backend",
    "sampling-backend": "sampling_backend",
    "page-size": "kv_block_size",
    "min-free-slots-delay": "admission_delay",
    "mem-fraction-static": "memory_fraction",
    "tensor-parallel-size": "tensor_parallel",
    "random-seed": "engine_seed",
    "sampling-defaults": "generation_config",
    "schedule-policy": "schedule_policy",
    "stream-interval": "stream_interval",
    "speculative-accept-threshold-single": "accept_threshold",
}
