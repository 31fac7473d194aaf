"""What a ready vLLM server says of itself: canonical factors, memory, startup seconds, and whether it is what was asked.

Sources: `/server_info?config_format=json` (the server runs in dev mode), `/version`, and the log, where alone the model runner
and the attention backend of the worker are told. Memory figures of the log are of target and drafter together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.config import WITHOUT_WEIGHTS, Arm, Run
from harness.control.read import NONE, read_factors
from harness.engines.base import Memory, Scalar
from harness.engines.drafter_files import DFLASH2, other_drafter
from harness.engines.method_support import family
from harness.engines.server_dialect import Found, Startup
from harness.engines.vllm_command import NAMES

INFO = "/server_info?config_format=json"
VERSION = "/version"
GIB = 1 << 30
_ARCHITECTURE = re.compile(r"Resolved architecture: (\w+)")
_RUNNER = re.compile(r"(?:Using|using the) (V[12]) [Mm]odel [Rr]unner")
_LOADED = re.compile(r"Model loading took ([\d.]+) GiB memory and ([\d.]+) seconds")
_READ = re.compile(r"Loading weights took ([\d.]+) seconds")
_GRAPHS = re.compile(r"Graph capturing finished in ([\d.]+) secs, took ([\d.]+) GiB")
_OVERRIDDEN = re.compile(r"Overriding num_gpu_blocks=(\d+) with num_gpu_blocks_override=(\d+)")
_AVAILABLE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
# Modes of CUDA graphs as the dump writes them: a number, or a pair of decode and everything else.
_MODES = {"0": "off", "1": "piecewise", "2": "full", "[2, 0]": "full_decode_only", "[2, 1]": "full_and_piecewise"}


def resolved(run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
    """Factors by canonical name, with vLLM's own words put into ours; null where it does not tell."""
    documents: dict[str, Any] = {"log": found.log, "env": found.env}
    documents |= {name: found.info[path] for name, path in (("server_info", INFO), ("version", VERSION)) if path in found.info}
    factors = read_factors("vllm", documents)
    if _config(found).get("speculative_config"):
        factors["method"] = _method(arm, found)
    if isinstance(dtype := factors.get("dtype"), str):
        factors["dtype"] = dtype.removeprefix("torch.")
    if factors.get("kv_dtype") == "auto":
        factors["kv_dtype"] = factors.get("dtype")
    if factors.get("max_scheduled_tokens") == NONE:  # without speculation: the scheduler then takes the whole token budget
        factors["max_scheduled_tokens"] = _config(found).get("scheduler_config", {}).get("max_num_batched_tokens")
    if "cuda_graphs" in factors:
        factors["cuda_graphs"] = _MODES.get(str(factors["cuda_graphs"]), factors["cuda_graphs"])
    if factors.get("runner") is None and found.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        factors["runner"] = "V1"  # what it was told to use it does not log
    if run.machine.kind == "cpu" and factors.get("attention_backend") is None:
        factors["attention_backend"] = "CPU_ATTN"  # the CPU platform has no other, and does not log it
    return factors


def _method(arm: Arm, found: Found) -> str:
    """Our name of the method that is served: DFlash 2 and xPress are dflash whose checkpoint has a head of its own."""
    method = str(_config(found)["speculative_config"].get("method"))
    if method == "dflash" and family(arm) in ARCHITECTURES:
        return arm.method if drafter_architecture(found) in ARCHITECTURES[family(arm)] else method
    return "mtp" if method.endswith("mtp") else method


ARCHITECTURES = {
    "dflash2": set(DFLASH2),
    "xpress": {"Qwen3XPressModel", "DFlashQwen3XPressModel"},
}


def drafter_architecture(found: Found) -> str | None:
    """Architecture of the drafter's checkpoint. The log names the target's first, then the drafter's; the dump has neither."""
    names = _ARCHITECTURE.findall(found.log)
    return names[-1] if len(names) > 1 else None


def problems(run: Run, arm: Arm, found: Found) -> list[str]:
    """Why this server is not the arm that was asked for; empty when it is. What cannot be read is no problem, but no proof."""
    config, wrong = _config(found), []
    speculative = config.get("speculative_config")
    if arm.method == "plain":
        return ["speculation: the server drafts, but the arm is plain"] if speculative else []
    if INFO in found.info and not speculative:
        return [f"speculation: the server drafts nothing, the arm is {arm.method}"]
    if speculative:
        wrong += _drafts(run, arm, speculative, drafter_architecture(found))
    runner = _RUNNER.findall(found.log)
    asked = {"0": "V1", "1": "V2"}.get(str(run.engine.env.get("VLLM_USE_V2_MODEL_RUNNER")))
    if runner and asked and runner[-1] != asked:
        wrong.append(f"runner: {asked} was asked for, the server runs {runner[-1]}")
    return wrong


def _drafts(run: Run, arm: Arm, speculative: Mapping[str, Any], architecture: str | None) -> list[str]:
    asked, budget = NAMES.get(arm.method, arm.method), speculative.get("num_speculative_tokens")
    served, wrong = speculative.get("method"), []
    if served != asked and not (asked == "mtp" and str(served).endswith("mtp")):
        wrong.append(f"method: '{asked}' was asked for, the server resolved '{served}'")
    if architecture and architecture not in ARCHITECTURES.get(family(arm), {architecture}):
        wrong.append(f"method: the drafter is a {architecture}, so {family(arm)} would draft as {served}")
    wrong += other_drafter(arm, speculative.get("model"))
    if budget != arm.draft_budget:
        wrong.append(f"draft_budget: {arm.draft_budget} was asked for, the server drafts {budget}")
    rule, allowed = speculative.get("rejection_sample_method"), {run.engine.verify_rule, "standard"}
    if rule is not None and rule not in allowed | {arm.options.get("rejection_sample_method")}:
        wrong.append(f"verify_rule: '{rule}' is not what the rig asks for; remove it or say so in the arm's options")
    return wrong


def versions(found: Found) -> dict[str, str]:
    told = found.info.get(VERSION, {}).get("version")
    return {"vllm": str(told)} if told else {}


def startup(found: Found) -> Startup:
    """Seconds for weights (target and drafter) and for graphs, from the log."""
    loads = [float(seconds) for _, seconds in _LOADED.findall(found.log)] or [float(s) for s in _READ.findall(found.log)]
    graphs = [float(seconds) for seconds, _ in _GRAPHS.findall(found.log)]
    return Startup(load_s=sum(loads) if loads else None, graph_capture_s=sum(graphs) if graphs else None)


def memory(arm: Arm, found: Found, drafter_bytes: int | None) -> Memory:
    """Bytes as the log and the cache configuration tell them. `drafter_bytes` are the headers' of a drafter on this disk.

    The log's weights are target and drafter together: with a drafter of unknown size neither can be told alone.
    """
    cache, source = _config(found).get("cache_config") or {}, {}
    loaded = sum(float(gib) for gib, _ in _LOADED.findall(found.log))
    drafter = 0 if arm.method in WITHOUT_WEIGHTS else drafter_bytes
    weights = int(loaded * GIB) - drafter if loaded and drafter is not None else None
    graphs = [float(gib) for _, gib in _GRAPHS.findall(found.log)]
    available = [float(gib) for gib in _AVAILABLE.findall(found.log)]
    kv_bytes = cache.get("kv_cache_memory_bytes") or (int(available[-1] * GIB) if available else None)
    if weights is not None:
        source["weights_bytes"] = "log: Model loading took, less the drafter's headers"
    if drafter is not None:
        source["drafter_weights_bytes"] = "headers of the drafter's checkpoint" if drafter else "the arm has no drafter weights"
    if graphs:
        source["graph_bytes"] = "log: Graph capturing finished"
    if kv_bytes is not None:
        told = "server_info: kv_cache_memory_bytes" if cache.get("kv_cache_memory_bytes") else "log: Available KV cache memory"
        if blocks := _OVERRIDDEN.findall(found.log):
            fit, used = map(int, blocks[-1])
            kv_bytes, told = kv_bytes * used // fit, f"{told}, of which {used} of {fit} blocks are used"
        source["kv_bytes"] = f"{told}; the drafter's layers included"
    if (tokens := cache.get("kv_cache_size_tokens")) is not None:
        source["kv_tokens"] = "server_info: kv_cache_size_tokens"
    return Memory(
        weights_bytes=weights,
        drafter_weights_bytes=drafter,
        kv_bytes=kv_bytes,
        kv_tokens=tokens,
        graph_bytes=int(sum(graphs) * GIB) if graphs else None,
        source=source,
    )


def _config(found: Found) -> Mapping[str, Any]:
    config: Mapping[str, Any] = found.info.get(INFO, {}).get("vllm_config", {})
    return config
