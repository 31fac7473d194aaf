"""What vLLM is launched with: the base command of a rig and what an arm adds to it. Flags are those of vLLM 0.33."""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.config import Arm, Run
from harness.engines.base import Scalar
from harness.engines.method_support import assumed_version, compare, parse_version
from harness.engines.server_dialect import checkpoint_path, flag_list

# First version with each method; 0 is "in every version that has the flags below". xPress and DFlash 2 are served as dflash:
# the architecture in the drafter's config selects them.
SINCE = {
    "ngram": "0",
    "draft_model": "0",
    "mtp": "0",
    "eagle3": "0",
    "dflash": "0",
    "dflash2": "0.28.0",
    "dspark": "0",
    "xpress": "0.33.0",
}
NAMES = {"dflash2": "dflash", "xpress": "dflash"}
# Full graphs for decode, verification included; piecewise ones for what prefill shares a step with.
GRAPHS = "FULL_AND_PIECEWISE"
PER_REQUEST_METRICS = (0, 29)
NEEDS_V2 = ("dflash2", "dspark", "xpress")

# Options of an arm that go into --speculative-config, with vLLM's name for them.
OPTIONS = {
    "min_n": "prompt_lookup_min",
    "max_n": "prompt_lookup_max",
    **{
        name: name
        for name in (
            "attention_backend",
            "disable_eagle_block_drop",
            "disable_lookahead_block_hashes",
            "draft_lm_head_quantization",
            "draft_tensor_parallel_size",
            "dspark_draft_topk",
            "enable_adaptive_verification",
            "kv_cache_dtype",
            "max_model_len",
            "moe_backend",
            "quantization",
            "rejection_sample_method",
            "synthetic_acceptance_length",
            "xpress_topc",
        )
    },
}
# What only the reference engine is told: vLLM takes it from the checkpoint's config or from the request's sampler.
TOLD_BY_CHECKPOINT = ("tap_numbering", "feature", "recycle", "zero_first_embedding", "modules", "temperature")


def command(run: Run, model: str) -> list[str]:
    """The base command. It sees every arm's budget through the rig, never which arm is served, so it is equal for all arms."""
    engine, target = run.engine, run.target
    argv = [engine.interpreter or "<engine.interpreter>", "-m", "vllm.entrypoints.cli.main", "serve", model]
    argv += ["--dtype", target.dtype, "--max-model-len", str(target.context)]
    argv += ["--max-num-seqs", str(engine.max_running_requests), "--max-num-batched-tokens", str(engine.prefill_chunk)]
    argv += ["--long-prefill-token-threshold", str(_chunk(run))]
    argv += ["--kv-cache-dtype", "auto" if engine.kv_dtype == target.dtype else engine.kv_dtype]
    argv += _capacity(run)
    argv += ["--enable-prefix-caching" if engine.prefix_cache else "--no-enable-prefix-caching"]
    if engine.graphs == "off":
        argv += ["--enforce-eager"]
    else:
        argv += ["--cudagraph-capture-sizes", *map(str, graph_tokens(run))]
        argv += ["--compilation-config", json.dumps({"cudagraph_mode": GRAPHS})]
    return [*argv, *flag_list(engine.flags)]


def _chunk(run: Run) -> int:
    """Tokens of one request's prefill in a step; vLLM refuses more than the context."""
    return min(run.engine.prefill_chunk, run.target.context)


def _capacity(run: Run) -> list[str]:
    """KV capacity as blocks, which is equal tokens for every arm; a rig that states equal bytes in its flags keeps those.

    A hybrid needs bytes: its recurrent layers draw blocks from the same pool, and vLLM chooses the block size itself.
    """
    flags = run.engine.flags
    if pool_bytes(run) is not None:
        return []
    return ["--num-gpu-blocks-override", str(run.engine.kv_tokens // block_size(flags))]


def pool_bytes(run: Run) -> int | None:
    """Bytes of KV and recurrent states over all GPUs, where the rig states them (of each GPU) instead of tokens."""
    stated = run.engine.flags.get("kv-cache-memory-bytes")
    return stated * max(1, run.machine.gpu_count) if isinstance(stated, int) else None


def block_size(flags: Mapping[str, Scalar]) -> int:
    """Tokens of one KV block; the engine's flags state it (`block-size`). Raises ValueError when they do not."""
    size = flags.get("block-size")
    if not isinstance(size, int) or size < 1:
        raise ValueError("engine.flags.block-size: state it (16 on a GPU, 128 on a CPU); KV tokens are counted in blocks")
    return size


def widths(run: Run) -> list[int]:
    """Rows per request in one step, over all arms of the rig: 1 for plain, 1 + budget for a drafter."""
    return sorted({1 + (arm.draft_budget or 0) for arm in run.arms.values()} | {1})


def graph_tokens(run: Run) -> list[int]:
    """CUDA-graph sizes in tokens, for plain too: every batch size at every width that an arm of this rig verifies.

    vLLM counts graph sizes in tokens. Its own default stops at 512 of them, which is 32 requests at 15 drafts and 512 at none.
    """
    return sorted({batch * width for batch in run.engine.graph_batch_sizes for width in widths(run)})


def speculation(run: Run, arm: Arm) -> list[str]:
    """`--speculative-config` and acceptance per request; nothing for plain. `num_speculative_tokens` is the budget itself."""
    if arm.method == "plain":
        return []
    config: dict[str, Scalar] = {"method": NAMES.get(arm.method, arm.method), "num_speculative_tokens": arm.draft_budget}
    if arm.checkpoint is not None:
        config["model"] = checkpoint_path(arm)
        config["revision"] = arm.checkpoint.revision
    config["rejection_sample_method"] = run.engine.verify_rule
    if arm.method != "ngram":
        config["draft_sample_method"] = "probabilistic" if arm.options.get("sample") else "greedy"
    config |= {OPTIONS[name]: value for name, value in arm.options.items() if name in OPTIONS and value is not None}
    told = {name: value for name, value in config.items() if value is not None}
    return ["--speculative-config", json.dumps(told, sort_keys=True), *_metrics(run)]


def _metrics(run: Run) -> list[str]:
    """Acceptance per request. It is no flag of the rig, because vLLM refuses it where nothing drafts; it changes no step."""
    lowest = assumed_version(run.engine.version, None)
    if lowest is not None and compare(parse_version(lowest), PER_REQUEST_METRICS) < 0:
        return []
    return ["--per-request-spec-decode-metrics", "detailed"]


def pinned(run: Run) -> dict[str, Scalar]:
    """Factors that the rig holds for every arm, by canonical name."""
    engine, flags = run.engine, run.engine.flags
    held: dict[str, Scalar] = {
        "dtype": run.target.dtype,
        "kv_dtype": engine.kv_dtype,
        "context_limit": run.target.context,
        "max_running_requests": engine.max_running_requests,
        "max_batched_tokens": engine.prefill_chunk,
        "prefill_chunk": _chunk(run),
        "prefix_cache": engine.prefix_cache,
        "cuda_graphs": "off" if engine.graphs == "off" else GRAPHS.lower(),
        "graph_batch_sizes": json.dumps(graph_tokens(run) if engine.graphs != "off" else []),
        "verify_rule": engine.verify_rule,
    }
    if flags.get("kv-cache-memory-bytes") is not None:
        held["kv_bytes"] = flags["kv-cache-memory-bytes"]
    else:
        held["kv_tokens"] = engine.kv_tokens // block_size(flags) * block_size(flags)
    named = {"attention-backend": "attention_backend", "async-scheduling": "async_scheduling", "block-size": "kv_block_size"}
    named |= {"seed": "engine_seed", "stream-interval": "stream_interval", "generation-config": "generation_config"}
    named |= {"tensor-parallel-size": "tensor_parallel", "gpu-memory-utilization": "memory_fraction"}
    held |= {factor: flags[flag] for flag, factor in named.items() if flags.get(flag) is not None}
    if (runner := engine.env.get("VLLM_USE_V2_MODEL_RUNNER")) is not None:
        held["runner"] = "V2" if runner == "1" else "V1"
    return held
