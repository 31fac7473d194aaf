"""A synthetic claim run of all six arms and the A/A arm with steps, samples and memory: for tests and for looking at pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import synthetic

from harness.records import TABLES

MS = synthetic.MS
ARMS = ("plain", "ngram", "mtp", "eagle3", "dflash", "dflash2", "plain2")
BUDGET = {"ngram": 4, "mtp": 4, "eagle3": 4, "dflash": 7, "dflash2": 7}
DRAFT_MS = {"ngram": 0.1, "mtp": 2.0, "eagle3": 3.0, "dflash": 1.6, "dflash2": 1.8}
ACCEPTANCE = {"ngram": 0.3, "mtp": 0.62, "eagle3": 0.7, "dflash": 0.74, "dflash2": 0.8}
CLASSES = {"humaneval": ("code", 1.1), "prose": ("prose", 0.7)}
LEVELS = (1, 2)
TOKENS = 36
PLAIN_MS = {1: 20.0, 2: 26.0}
PER_ROW_MS = {1: 0.5, 2: 2.2}

CONFIG = deepcopy(synthetic.CONFIG) | {
    "name": "six_arms",
    "summary": "all arms, made for a test",
    "arms": {arm: {"method": arm, "draft_budget": BUDGET.get(arm)} for arm in ARMS if arm != "plain2"},
    "workload": {"name": "w", "stop": "natural", "sets": [{"set": name} for name in CLASSES]},
    "concurrency": list(LEVELS),
}
CONFIG["protocol"] = {**synthetic.CONFIG["protocol"], "name": "claim", "blocks": 5, "prompts_per_set": 3}


def write(folder: Path, rows: Mapping[str, Any] | None = None, config: Mapping[str, Any] = CONFIG) -> Path:
    """A finished run folder of these rows; tables that are not named are empty."""
    rows = rows or simulate()
    return synthetic.write_run(folder, {table.name: rows.get(table.name, []) for table in TABLES}, config)


def simulate(
    blocks: int = 5, arms: Sequence[str] = ARMS, seed: int = 0, launched: str = "2026-01-01T00:00:00+00:00"
) -> dict[str, Any]:
    """Rows of every table. Each arm's step costs what its rows and its drafter cost; boots differ by 1 %."""
    draw = np.random.default_rng(seed)
    tables: dict[str, Any] = {"servings": [], "requests": [], "steps": [], "samples": []}
    clock = 0
    for block in range(blocks):
        for arm in (*arms[block % len(arms) :], *arms[: block % len(arms)]):
            row = _serving(arm, block, clock, launched)
            boot, at = float(np.exp(draw.normal(0, 0.01))), clock + 500 * MS
            for name, (content, ease) in CLASSES.items():
                for level in LEVELS:
                    at = _cell(tables, arm, block, (name, content, ease), level, boot, at, draw)
            row["ended_ns"] = at
            tables["servings"].append(row)
            tables["samples"] += _samples(row, clock, at, draw)
            clock = at + 700 * MS
    return tables


def _serving(arm: str, block: int, clock: int, launched: str) -> dict[str, Any]:
    method = "plain" if arm.startswith("plain") else arm
    memory = {"weights_bytes": 600 << 20, "kv_bytes": 900 << 20, "kv_tokens": 4096, "peak_bytes": 1400 << 20}
    if method != "plain":
        memory |= {"drafter_weights_bytes": (0 if arm == "ngram" else 90 << 20), "draft_state_bytes": 40 << 20}
    if arm in ("dflash", "dflash2"):
        memory |= {"kv_bytes": 850 << 20, "kv_tokens": 3868}
    row = synthetic.serving("plain" if method == "plain" else "ngram", block)
    at = datetime.fromisoformat(launched) + timedelta(microseconds=clock // 1000)
    row |= {"arm": arm, "method": method, "serving_id": f"b{block}-{arm}", "draft_budget": BUDGET.get(arm), "memory": memory}
    return row | {"launched_ns": clock, "launched_at": at.isoformat(), "config_hash": "c" * 64, "code_hash": "d" * 64}


def _cell(
    tables: dict[str, Any],
    arm: str,
    block: int,
    prompt_set: tuple[str, str, float],
    level: int,
    boot: float,
    start: int,
    draw: np.random.Generator,
) -> int:
    """Three prompts after each other in every slot; when it ended."""
    name, content, ease = prompt_set
    budget, free = BUDGET.get(arm, 0), [start] * level
    keys = {"serving_id": f"b{block}-{arm}", "block": block, "arm": arm, "cell_id": f"{block}-{arm}-{name}-{level}"}
    keys |= {"prompt_set": name, "content_class": content, "concurrency": level}
    for prompt in range(3 * level):
        slot = int(np.argmin(free))
        accepted = _accepted(arm, ease, budget, draw)
        step_ms = boot * (PLAIN_MS[level] + PER_ROW_MS[level] * budget + DRAFT_MS.get(arm, 0.0))
        row = synthetic.request_of_steps(
            [budget] * len(accepted),
            accepted,
            cut=sum(kept + 1 for kept in accepted) - TOKENS,
            step_ms=step_ms,
            sent_ns=free[slot],
            prompt_id=f"p{prompt}",
            prompt_tokens=50 + 10 * prompt,
            request_id=f"{keys['cell_id']}-{prompt}",
            **keys,
        )
        late = int(draw.gamma(4, 5) * MS)
        row["chunk_ns"] = [at + late for at in row["chunk_ns"]]
        row["ended_ns"] += late
        tables["steps"] += _steps(row, keys, budget, level, boot)
        free[slot] = row["ended_ns"] + 1000
        tables["requests"].append(row)
    return max(free) + 50 * MS


def _accepted(arm: str, ease: float, budget: int, draw: np.random.Generator) -> list[int]:
    """Drafts accepted in every step, until the tokens after the first are made; the last step may make more."""
    made, accepted = 0, []
    while made < TOKENS:
        kept = next((i for i in range(budget) if draw.random() > ACCEPTANCE[arm] * ease), budget)
        accepted.append(kept)
        made += kept + 1
    return accepted


def _steps(row: Mapping[str, Any], keys: Mapping[str, Any], budget: int, level: int, boot: float) -> list[dict[str, Any]]:
    draft, verify = DRAFT_MS.get(str(keys["arm"]), 0.0) * boot, (PLAIN_MS[level] * 0.9 + PER_ROW_MS[level] * budget) * boot
    total = draft + verify + 0.1 * PLAIN_MS[level] * boot
    return [
        {
            "run_id": "r",
            **keys,
            "phase": "measured",
            "started_ns": at,
            "kind": "decode",
            "requests": level,
            "rows": (budget + 1) * level,
            "context_tokens": 100,
            "draft_ns": int(draft * MS),
            "verify_ns": int(verify * MS),
            "sample_ns": int(0.2 * MS),
            "total_ns": int(total * MS),
            "drafted": budget * level,
            "accepted": kept * level,
            "emitted": (kept + 1) * level,
        }
        for at, kept in zip(row["chunk_ns"][1:], row["step_accepted"], strict=True)
    ]


def _samples(serving: Mapping[str, Any], start: int, end: int, draw: np.random.Generator) -> list[dict[str, Any]]:
    """Two a second of the host and of one GPU."""
    keys = {name: serving[name] for name in ("run_id", "serving_id", "block", "arm")}
    nothing = dict.fromkeys(("device_memory_bytes", "power_w", "clock_mhz", "temperature_c", "load_1m", "steal", "throttle"))
    found = []
    for at in range(start, end, 500 * MS):
        host = {"device": "host", "memory_bytes": 300 << 20, "utilization": 0.3, "steal": 0.0}
        gpu = {"device": "gpu0", "memory_bytes": 1400 << 20, "utilization": 0.9, "power_w": 300 + 40 * draw.random()}
        gpu |= {"clock_mhz": 1980 - 60 * draw.random(), "temperature_c": 55 + 3 * draw.random()}
        found += [{**keys, "at_ns": at, **nothing, **device} for device in (host, gpu)]
    return found
