"""The account of one arm of a rig file: what the rig holds for every arm, and what its source does and does not state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harness.audit.account import Account, Fact, Origin, Scalar, Source
from harness.audit.rig_flags import engine_name, flag_facts
from harness.baselines import for_arm, plain_of
from harness.config import Run
from harness.control.factors import is_draft
from harness.held import slot_tokens
from harness.published import Published, published_of

# A published rig names what its source does not state; some of these names cover several factors.
COVERS = {
    "sampler": ("sampler.temperature", "sampler.top_p", "sampler.top_k", "sampler.seed"),
    "prompts": ("workload", "template_options", "system_prompt"),
    "depths": ("workload",),
    "max_tokens": ("workload",),
    "protocol": (),
    "blocks": (),
    "cuda_graphs": ("cuda_graphs", "graph_batch_sizes"),
    "engine": ("engine", "engine_build", "max_running_requests", "kv_tokens", "prefill_chunk", "prefix_cache", "cuda_graphs"),
    "target": ("target", "target_revision", "dtype", "quantization", "context_limit"),
    "target_hash": ("target_hash", "target_revision"),
    "machine": ("machine", "device", "threads"),
}
NONE = "none"
# Whom SGLang verifies against samples of the target alone, unless told to draw drafts too.
SERIAL = ("eagle3", "mtp", "draft_model")
NOT_STATED = ("not stated", "unstated")


def from_run(run: Run, arm_name: str, family: str) -> Account:
    """The account of one arm. Of a published rig only what its source states; of ours everything. Raises ConfigError."""
    published, run = published_of(run), for_arm(run, run.arms[arm_name])
    origin: Origin = "stated" if published else "pinned"
    facts = {name: Fact(value, origin, where) for name, value, where in _rig(run)}
    facts |= {name: Fact(value, origin, where) for name, value, where in _arm(run, arm_name)}
    unstated: set[str] = set()
    if published:
        facts, unstated = _as_stated(published, arm_name, facts)
    else:
        facts |= {name: Fact(value, origin, f"engine.{name}") for name, value in as_served(run).items()}
        facts |= flag_facts(run, origin) | {name: Fact(value, origin, where) for name, value, where in _options(run, arm_name)}
    if run.arms[arm_name].method == "plain":
        facts = {name: fact for name, fact in facts.items() if name == "method" or not is_draft(name)}
        unstated = {name for name in unstated if not is_draft(name)}
    source: Source = "published" if published else "rig"
    return Account(f"{family}:{arm_name}", source, facts, family, frozenset(unstated))


def stated_factors(config: Mapping[str, Any], arm_name: str) -> frozenset[str]:
    """Factors in which an arm with engine flags of its own differs from plain, by what a saved configuration asks."""
    run = Run.model_validate(config)
    ours, plain = (from_run(run, name, run.name).facts for name in (arm_name, plain_of(run)))
    return frozenset(
        name
        for name in ours.keys() | plain.keys()
        if (ours[name].value if name in ours else None) != (plain[name].value if name in plain else None)
    )


def _rig(run: Run) -> Iterator[tuple[str, Scalar, str]]:
    machine, engine, target, workload = run.machine, run.engine, run.target, run.workload
    yield "engine", engine_name(run), "engine.adapter"
    if engine.version:
        yield "engine_build", engine.version, "engine.version"
    yield "machine", f"{machine.gpu_count} x {machine.gpu}" if machine.gpu else machine.kind, "machine"
    yield "device", machine.kind, "machine.kind"
    if machine.threads:
        yield "threads", machine.threads, "machine.threads"
    yield "target", target.name, "target.name"
    yield "target_revision", target.revision or target.sha256, "target.revision"
    if engine_name(run) == "reference":
        yield "target_implementation", target.implementation, "target.implementation"
    yield "dtype", target.dtype, "target.dtype"
    yield "quantization", target.quantization, "target.quantization"
    yield "context_limit", target.context, "target.context"
    for name in ("kv_tokens", "kv_dtype", "max_running_requests", "prefill_chunk", "prefix_cache"):
        yield name, getattr(engine, name), f"engine.{name}"
    yield "cuda_graphs", engine.graphs, "engine.graphs"
    if engine.graphs != "off":
        yield "graph_batch_sizes", json.dumps(sorted(engine.graph_batch_sizes)), "engine.graph_batch_sizes"
    for name, value in run.sampler.model_dump().items():
        yield f"sampler.{name}", value, f"sampler.{name}"
    yield "stop", workload.stop, "workload.stop"
    yield "workload", _sets(run), "workload.sets"
    options = json.dumps(workload.template_options, sort_keys=True) if workload.template_options else NONE
    yield "template_options", options, "workload.template_options"
    yield "system_prompt", workload.system_prompt or NONE, "workload.system_prompt"
    yield "concurrency", json.dumps(run.concurrency), "concurrency"


def as_served(run: Run) -> dict[str, Scalar]:
    """Factors that a served engine has under its own values, as its adapter translates them."""
    engine, dtype = run.engine, run.target.dtype
    found: dict[str, Scalar] = {"kv_dtype": dtype} if engine.kv_dtype == "auto" else {}
    match engine_name(run):
        case "vllm":
            widths = {1, *(1 + (arm.draft_budget or 0) for arm in run.arms.values())}
            tokens = sorted({size * width for size in engine.graph_batch_sizes for width in widths})
            found["max_batched_tokens"] = engine.prefill_chunk
            if engine.graphs == "decode":
                found |= {"cuda_graphs": "full_and_piecewise", "graph_batch_sizes": json.dumps(tokens)}
        case "sglang" if engine.graphs == "decode":
            found["cuda_graphs"] = "full"
        case "llama_cpp":
            slot = slot_tokens(run)
            found |= {"context_limit": slot, "kv_tokens": slot * engine.max_running_requests}
    return found


def _sets(run: Run) -> str:
    """Prompt sets with their output limits, as one text that is equal when they are."""
    return (
        ", ".join(f"{s.set}{f' at {s.depth}' if s.depth else ''} to {run.max_tokens(s)}" for s in run.workload.sets)
        + f"; {run.protocol.prompts_per_set} prompts a set"
    )


def _arm(run: Run, name: str) -> Iterator[tuple[str, Scalar, str]]:
    arm, where = run.arms[name], f"arms.{name}"
    yield "method", arm.method, f"{where}.method"
    if arm.method != "plain":
        yield "draft_budget", arm.draft_budget, f"{where}.draft_budget"
    if arm.checkpoint:
        located = arm.checkpoint.sha256 or _located(arm.checkpoint.location, arm.checkpoint.revision)
        yield "draft_checkpoint_hash", located, f"{where}.checkpoint"


def _options(run: Run, name: str) -> Iterator[tuple[str, Scalar, str]]:
    """What our drafters are told; a published source has drafters of its own."""
    arm = run.arms[name]
    if arm.drafter and engine_name(run) == "reference":
        yield "drafter", arm.drafter, f"arms.{name}.drafter"
    is_serial = engine_name(run) == "sglang" and arm.method in SERIAL and not arm.options.get("sample")
    rule = "target_only" if is_serial and run.engine.verify_rule == "standard" else run.engine.verify_rule
    yield "verify_rule", rule, "engine.verify_rule"
    for option, value in arm.options.items():
        yield f"draft_options.{option}", value, f"arms.{name}.options.{option}"


def _located(location: str, revision: str | None) -> str:
    return f"{location}@{revision}" if revision else location


def _as_stated(published: Published, arm: str, facts: Mapping[str, Fact]) -> tuple[dict[str, Fact], set[str]]:
    """Only what the source states: what this rig fills in goes, what the source says of one arm comes."""
    own = published.factors.get(arm, {})
    filled = [name for name in published.unstated if own.get(name) is None]
    unstated = {part for name in filled for part in COVERS.get(name, (name,))}
    unstated |= {name for name, value in own.items() if value is None}
    unstated -= {name for name, value in own.items() if value is not None}
    found = {name: fact for name, fact in facts.items() if name not in unstated and fact.value not in NOT_STATED}
    found |= {name: Fact(value, "stated", f"published.factors.{arm}") for name, value in own.items() if value is not None}
    return found, unstated
