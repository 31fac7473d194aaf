"""Rows and run folders with known answers, built through the tables' own definitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from harness.config_hash import config_hash
from harness.records import TABLES

MS = 1_000_000
GIB = 2**30
STEP_MS = {"plain": 20.0, "plain2": 20.0, "plain_best": 16.0, "ngram": 24.0, "mtp": 24.0, "eagle3": 24.0}


def request(chunks: Sequence[tuple[float, int]] = ((100, 1),), **given: Any) -> dict[str, Any]:
    """A request sent at 0 with chunks of (arrival ms, tokens). Its ledger is not reported unless given."""
    sent = given.get("sent_ns", 0)
    tokens = sum(n for _, n in chunks)
    row = {
        "run_id": "r",
        "serving_id": "b0-plain",
        "block": 0,
        "arm": "plain",
        "cell_id": "cell",
        "prompt_set": "humaneval",
        "content_class": "code",
        "concurrency": 1,
        "phase": "measured",
        "request_id": "q",
        "prompt_id": "p0",
        "prompt_hash": f"hash of {given.get('prompt_id', 'p0')}",
        "prompt_tokens": 100,
        "max_tokens": 40,
        "ignore_eos": False,
        "scheduled_ns": sent,
        "sent_ns": sent,
        "ended_ns": sent + int(max((at for at, _ in chunks), default=0) * MS),
        "chunk_ns": [sent + int(at * MS) for at, _ in chunks],
        "chunk_tokens": [n for _, n in chunks],
        "chunk_reasoning": [False] * len(chunks),
        "token_ids": list(range(tokens)),
        "step_drafted": None,
        "step_accepted": None,
        "prefill_tokens": None,
        "steps_with_draft": None,
        "steps_without_draft": None,
        "drafted": None,
        "accepted": None,
        "accepted_by_engine": None,
        "output_tokens": tokens,
        "ended_inside_run": None,
        "cached_tokens": 0,
        "finish": "length",
        "error": None,
    }
    assert not given.keys() - row.keys()
    return row | given


def request_of_steps(drafted: Sequence[int], accepted: Sequence[int], cut: int = 0, **given: Any) -> dict[str, Any]:
    """A request of one prefill token and these steps, 20 ms each after a first token at 100 ms.

    `cut` tokens of the last step were not delivered. The ledger follows by counting the delivered tokens one by one.
    """
    made = [a + 1 for a in accepted]
    if cut:
        made[-1] -= cut
    delivered = [min(a, n) for a, n in zip(accepted, made, strict=True)]
    step_ms = given.pop("step_ms", 20.0)
    chunks = [(100.0, 1), *((100 + step_ms * (i + 1), n) for i, n in enumerate(made))]
    return request(
        chunks,
        **{
            "step_drafted": list(drafted),
            "step_accepted": list(accepted),
            "prefill_tokens": 1,
            "steps_with_draft": sum(d > 0 for d in drafted),
            "steps_without_draft": sum(d == 0 for d in drafted),
            "drafted": sum(drafted),
            "accepted": sum(delivered),
            "accepted_by_engine": sum(accepted),
            "ended_inside_run": int(cut > 0),
        }
        | given,
    )


def serving(arm: str = "plain", block: int = 0, **given: Any) -> dict[str, Any]:
    """A serving of one arm of budget 4: of the method that its name says, else of prompt lookup."""
    drafts = not arm.startswith("plain")
    method = arm if arm in ("mtp", "eagle3") else "ngram" if drafts else "plain"
    resolved = {"engine": "reference", "dtype": "float32", "prefix_cache": False, "max_running_requests": 4, "device": "cpu"}
    resolved |= {"target_hash": "t", "target_implementation": "Dense", "context_limit": 2048, "kv_tokens": 4096}
    resolved |= {"kv_dtype": "float32", "prefill_chunk": 64, "cuda_graphs": "off", "attention_backend": "sdpa"}
    resolved |= {"linear": "torch", "verify_rule": "standard"}
    resolved |= {"drafter": "drafters.ngram.NgramDrafter" if drafts else None, "draft_budget": 4 if drafts else None}
    row = {
        "run_id": "r",
        "serving_id": f"b{block}-{arm}",
        "block": block,
        "arm": arm,
        "session_id": "s",
        "method": method,
        "draft_budget": 4 if drafts else None,
        "order_in_block": 0,
        "config_hash": "c",
        "code_hash": "d",
        "argv": ["worker"],
        "env": {},
        "versions": {"torch": "2.13.0", "python": "3.12.1"},
        "resolved": {k: json.dumps(v) for k, v in resolved.items()},
        "host": {"cpu_model": '"Test CPU"', "usable_cores": "2", "load_1m": str(block), "memory_bytes": str(16 * GIB)},
        "memory": {"peak_bytes": GIB} | ({"drafter_weights_bytes": 0, "draft_state_bytes": GIB // 4} if drafts else {}),
        "memory_source": {},
        "launched_ns": 0,
        "launched_at": "2026-01-01T00:00:00Z",
        "ended_ns": 1,
        "startup_s": 1.0,
        "load_s": None,
        "graph_capture_s": None,
        "counters": {"preemptions": 0, "cached_tokens": 0},
        "energy_j": None,
        "throttle_reasons": [],
        "foreign_processes": [],
        "client_lag_p50_ms": 0.01,
        "client_lag_p99_ms": 0.1,
        "flags": [],
    }
    assert not given.keys() - row.keys()
    return row | given


CONFIG = {
    "name": "synthetic",
    "summary": "made for a test",
    "machine": {"kind": "cpu"},
    "engine": {
        "adapter": "harness.engines.reference.ReferenceEngine",
        "graphs": "off",
        "kv_tokens": 4096,
        "kv_dtype": "float32",
        "max_running_requests": 4,
        "prefix_cache": False,
    },
    "target": {"name": "Tiny", "dtype": "float32", "quantization": "none", "context": 2048},
    "sampler": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0},
    "arms": {"plain": {"method": "plain"}, "ngram": {"method": "ngram"}},
    "workload": {"name": "w", "stop": "natural", "sets": [{"set": "humaneval"}, {"set": "chat"}]},
    "concurrency": [1, 2],
    "protocol": {
        "name": "screen",
        "blocks": 3,
        "a_a": True,
        "prompts_per_set": 6,
        "load": "closed",
        "rate_rps": None,
    },
}


def simulate(
    blocks: int = 3, arms: Sequence[str] = ("plain", "ngram", "plain2"), seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """A run in which every arm's step takes STEP_MS with 1 % noise per boot, and ngram accepts 0 to 4 of 4 drafts alike."""
    draw = np.random.default_rng(seed)
    servings, requests = [], []
    for block in range(blocks):
        for arm in arms:
            servings.append(serving(arm, block))
            boot = float(np.exp(draw.normal(0, 0.01)))
            for name, content in (("humaneval", "code"), ("chat", "chat")):
                for concurrency in (1, 2):
                    requests += _cell(arm, block, name, content, concurrency, boot, draw)
    return {"servings": servings, "requests": requests, "steps": [], "samples": []}


def _cell(
    arm: str, block: int, name: str, content: str, concurrency: int, boot: float, draw: np.random.Generator
) -> list[dict[str, Any]]:
    free, rows = [0] * concurrency, []
    for prompt in range(6):
        drafts = not arm.startswith("plain")
        accepted = [int(draw.integers(0, 5)) if drafts else 0 for _ in range(12 if drafts else 36)]
        drafted = [4 if drafts else 0] * len(accepted)
        slot = int(np.argmin(free))
        step_ms = STEP_MS[arm] * boot
        row = request_of_steps(
            drafted,
            accepted,
            step_ms=step_ms,
            sent_ns=free[slot],
            arm=arm,
            block=block,
            serving_id=f"b{block}-{arm}",
            cell_id=f"{block}-{arm}-{name}-{concurrency}",
            prompt_set=name,
            content_class=content,
            concurrency=concurrency,
            prompt_id=f"p{prompt}",
            prompt_tokens=50 + 10 * prompt,
            request_id=f"{block}-{arm}-{name}-{concurrency}-{prompt}",
        )
        free[slot] = row["ended_ns"] + 1000
        rows.append(row)
    return rows


def write_run(folder: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]], config: Mapping[str, Any] = CONFIG) -> Path:
    """A finished run folder. Servings that are told no configuration of their own were asked this one."""
    folder.mkdir(parents=True)
    asked = {"config_hash": config_hash(config)}
    servings = [{**row, **asked} if set(row["config_hash"]) == {"c"} else row for row in rows["servings"]]
    rows = {**rows, "servings": servings}
    for table in TABLES:
        pq.write_table(table.to_arrow(rows.get(table.name, [])), folder / f"{table.name}.parquet")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False), "utf-8")
    (folder / "run.json").write_text(json.dumps({"run_id": folder.name, "finished_at": "now"}), "utf-8")
    return folder
