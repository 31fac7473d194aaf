"""What a ready SGLang server says of itself: canonical factors, memory, startup seconds, and whether it is what was asked.

Source: `/server_info`, every resolved argument and the schedulers' own state. `max_running_requests` at its top level is only
the argument, null when unset; the effective one is in `internal_states`. Memory there is the target's, graphs are both models'.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from harness.config import WITHOUT_WEIGHTS, Arm, Run
from harness.control.factors import is_draft
from harness.control.read import read_factors
from harness.engines.base import Memory, Scalar
from harness.engines.drafter_files import other_drafter
from harness.engines.method_support import family
from harness.engines.server_dialect import Found, Startup
from harness.engines.sglang_command import ALGORITHMS

INFO = "/server_info"
GIB = 1 << 30
_LOADS = re.compile(r"Load weight end\..*?type=(\w+),.*?mem usage=([\d.]+) GB")
# NEXTN is an alias that the server resolves.
_RESOLVED = {"mtp": {"EAGLE", "NEXTN", "FROZEN_KV_MTP"}}
_DRAFTER_OF = {"EAGLE": "mtp", "NEXTN": "mtp", "FROZEN_KV_MTP": "mtp", "STANDALONE": "draft_model"}
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
_DFLASH2 = ("DFlash2",)


def resolved(run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
    """Factors by canonical name, with SGLang's own words put into ours; null where it does not tell."""
    documents: dict[str, Any] = {"log": found.log, "env": found.env}
    if found.argv:
        documents["command"] = shlex.join(found.argv)
    if INFO in found.info:
        documents["server_info"] = found.info[INFO]
    factors = read_factors("sglang", documents)
    info = _info(found)
    if not info.get("speculative_algorithm"):
        # Every speculative argument is listed even so; none is a fact of a plain serving.
        return _named({name: value for name, value in factors.items() if not is_draft(name)})
    factors["method"] = _method(arm, found)
    # The n-gram corpus fills from earlier answers and is emptied before every window; no other drafter keeps any of them.
    factors["draft_memory"] = "cell" if arm.method == "ngram" else "none"
    if info.get("speculative_accept_threshold_acc") not in (None, 1.0):
        factors["accept_threshold"] = info["speculative_accept_threshold_acc"]
    return _named(factors)


def _named(factors: dict[str, Scalar]) -> dict[str, Scalar]:
    if factors.get("kv_dtype") == "auto":
        factors["kv_dtype"] = factors.get("dtype")
    if factors.get("cuda_graphs") == "disabled":
        factors["cuda_graphs"] = "off"
        factors["graph_batch_sizes"] = "[]"  # the list is resolved even where nothing is captured
    return factors


def _method(arm: Arm, found: Found) -> str:
    """Our name of the method that is served: DFlash 2 is DFLASH whose checkpoint has a selector."""
    algorithm = str(_info(found)["speculative_algorithm"])
    if algorithm == "DFLASH" and family(arm) == "dflash2":
        return arm.method if (drafter_architecture(found) or "").startswith(_DFLASH2) else "dflash"
    return _DRAFTER_OF.get(algorithm, algorithm.lower())


def drafter_architecture(found: Found) -> str | None:
    """Class of the drafter: the log tells one per loaded model, the target first."""
    names = [name for name, _ in _LOADS.findall(found.log)]
    return names[-1] if len(names) > 1 else None


def problems(run: Run, arm: Arm, found: Found) -> list[str]:
    """Why this server is not the arm that was asked for; empty when it is. What cannot be read is no problem, but no proof."""
    info = _info(found)
    if not info:
        return []
    algorithm = info.get("speculative_algorithm")
    if arm.method == "plain":
        return [f"speculation: the server drafts with {algorithm}, but the arm is plain"] if algorithm else []
    if not algorithm:
        return [f"speculation: the server drafts nothing, the arm is {arm.method}"]
    wrong = []
    if algorithm not in _RESOLVED.get(arm.method, {ALGORITHMS.get(arm.method)}):
        wrong.append(f"method: {ALGORITHMS.get(arm.method, arm.method)} was asked for, the server resolved {algorithm}")
    architecture = drafter_architecture(found)
    if family(arm) == "dflash2" and architecture and not architecture.startswith(_DFLASH2):
        wrong.append(f"method: the drafter is a {architecture}, so dflash2 would draft as dflash")
    if (rows := info.get("speculative_num_draft_tokens")) is not None and rows - 1 != arm.draft_budget:
        wrong.append(f"draft_budget: {arm.draft_budget} was asked for, the server drafts {rows - 1} ({rows} with the anchor)")
    wrong += other_drafter(arm, info.get("speculative_draft_model_path"))
    if (width := info.get("speculative_eagle_topk")) not in (None, 1):
        wrong.append(f"draft tree: the server drafts {width} candidates per position, a chain was asked for")
    lossy = [name for name in THRESHOLDS if info.get(name) not in (None, 1.0)]
    return wrong + [f"{name}: {info[name]} accepts drafts that the target would not; set it to 1.0" for name in lossy]


def versions(found: Found) -> dict[str, str]:
    told = _info(found).get("version")
    return {"sglang": str(told)} if told else {}


def startup(found: Found) -> Startup:
    """Seconds for weights and for graphs; both models' graphs are summed."""
    told = _info(found).get("startup_time") or {}
    graphs = told.get("cuda_graph") or {}
    load = told.get("load_weight")
    return Startup(
        load_s=None if load is None else float(load),
        graph_capture_s=sum(map(float, graphs.values())) if graphs else None,
    )


def memory(arm: Arm, found: Found, drafter_bytes: int | None) -> Memory:
    """Bytes that the scheduler tells for the target, its log for the drafter's weights; GB there are GiB."""
    state = (_info(found).get("internal_states") or [{}])[0]
    used, source = state.get("memory_usage") or {}, {}
    graphs = used.get("graph") or {}
    logged = [float(gib) for _, gib in _LOADS.findall(found.log)]
    drafter: int | None = 0 if arm.method in WITHOUT_WEIGHTS else drafter_bytes
    source["drafter_weights_bytes"] = "headers of the drafter's checkpoint" if drafter else "the arm has no drafter weights"
    if arm.method not in WITHOUT_WEIGHTS and len(logged) > 1:
        drafter, source["drafter_weights_bytes"] = int(sum(logged[1:]) * GIB), "log: Load weight end, after the target's"
    source |= {
        "weights_bytes": "server_info: memory_usage.weight",
        "kv_bytes": "server_info: memory_usage.kvcache, the target's",
        "kv_tokens": "server_info: memory_usage.token_capacity",
        "graph_bytes": "server_info: memory_usage.graph, target and drafter",
    }
    found_bytes = {
        "weights_bytes": _bytes(used.get("weight")),
        "drafter_weights_bytes": drafter,
        "kv_bytes": _bytes(used.get("kvcache")),
        "kv_tokens": used.get("token_capacity"),
        "graph_bytes": _bytes(sum(map(float, graphs.values()))) if graphs else None,
    }
    return Memory(**found_bytes, source={name: text for name, text in source.items() if found_bytes[name] is not None})


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


def _info(found: Found) -> Mapping[str, Any]:
    info: Mapping[str, Any] = found.info.get(INFO, {})
    return info
