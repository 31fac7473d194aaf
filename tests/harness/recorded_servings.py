"""What recorded servers said of themselves, through their adapters, as one side of a comparison, with one thing changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from synthetic import request, serving

from harness.compose import compose_run
from harness.config import Arm
from harness.control import Control, Side
from harness.engines import llama_cpp, sglang, vllm
from harness.engines.server_dialect import Found

RECORDED = Path(__file__).parents[1] / "recorded"


def named(control: Control) -> set[str]:
    """Factors that confound, without what a finding adds to the name."""
    return {finding.factor.split(" ")[0] for finding in control.of("confounder")}


def rows(arm: str, **given: Any) -> list[dict[str, Any]]:
    spans = ((0, "a"), (300, "b"), (600, "c"))
    suffix = given.pop("prompt_hash", "")
    made = [
        request([(100, 1), (200, 39)], arm=arm, serving_id=f"b0-{arm}", sent_ns=at * 1_000_000, prompt_id=name, **given)
        for at, name in spans
    ]
    return [row | {"prompt_hash": row["prompt_hash"] + suffix} for row in made]


def samples(arm: str, mhz: float) -> list[dict[str, Any]]:
    return [{"device": "gpu0", "serving_id": f"b0-{arm}", "at_ns": 10**8, "utilization": 0.9, "clock_mhz": mhz}]


def side(arm: str, engine: str, resolved: Mapping[str, Any], mhz: float = 1950.0, **given: Any) -> Side:
    told = {name: json.dumps(value) for name, value in {"engine": engine, **resolved}.items()}
    env = given.pop("env", {})
    return Side([serving(arm, resolved=told, env=env)], rows(arm, **given), [], samples(arm, mhz))


def set_at(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at a dotted path changed. KeyError where the engine does not say such a thing."""
    changed = deepcopy(document)
    at: Any = changed
    *keys, last = path.split(".")
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    assert last in at, path
    at[last] = value
    return changed


def _arm(method: str, budget: int | None) -> Arm:
    return Arm(method=method, drafter=None, needs_checkpoint=False, draft_budget=budget, label=method)


def vllm_resolved(method: str, path: str | None = None, value: Any = None) -> dict[str, Any]:
    folder = RECORDED / "vllm-0.32.0-cpu" / method
    info = json.loads((folder / "server_info.json").read_text("utf-8"))
    info = set_at(info, "vllm_config.compilation_config.cudagraph_mode", 2)  # as a GPU would have it
    info = set_at(info, path, value) if path else info
    found = Found(
        {"/server_info?config_format=json": info, "/version": json.loads((folder / "version.json").read_text("utf-8"))},
        log=(folder / "server.log").read_text("utf-8"),
    )
    assert set(found.info) == {vllm.vllm_readback.INFO, vllm.vllm_readback.VERSION}
    arm = _arm(method, None if method == "plain" else 4)
    return vllm.Vllm().resolved(compose_run("cpu_smollm2_vllm").run, arm, found)


def sglang_resolved(method: str, path: str | None = None, value: Any = None, **env: str) -> dict[str, Any]:
    """The recorded plain serving; a drafting one adds what SGLang would: its algorithm and its draft tokens, root included."""
    info = json.loads((RECORDED / "sglang-0.5.23-cpu" / "plain" / "server_info.json").read_text("utf-8"))
    info = set_at(info, "cuda_graph_config.decode.backend", "full")
    if method != "plain":
        info |= {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 5}
    info = set_at(info, path, value) if path else info
    found = Found({sglang.sglang_readback.INFO: info}, env=env)
    return sglang.SGLang().resolved(compose_run("h200_qwen27b").run, _arm(method, None if method == "plain" else 4), found)


def llama_resolved(method: str, *argv: str, slots: int = 2, kv: str = "f16") -> dict[str, Any]:
    folder = RECORDED / "llama_cpp-b11434" / method
    props = json.loads((folder / "props.json").read_text("utf-8")) | {"total_slots": slots}
    command = ["llama-server", "--threads", "1", "--cache-type-k", kv, "--batch-size", "2048", "--ubatch-size", "512"]
    command += ["--flash-attn", "off", "--device", "none", "--fit", "off"]
    found = Found({"/props": props}, log=(folder / "server.log").read_text("utf-8"), argv=[*command, *argv])
    return llama_cpp.LlamaCpp().resolved(compose_run("cpu_smollm2").run, _arm(method, None if method == "plain" else 7), found)


RESOLVE: dict[str, tuple[Callable[..., dict[str, Any]], str]] = {
    "vllm": (vllm_resolved, "ngram"),
    "sglang": (sglang_resolved, "ngram"),
    "llama_cpp": (llama_resolved, "dflash2"),
}
