"""Two rigs on the scripted engine as YAML files, and the check that runs measured at once neither lost nor mixed anything."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from harness.compose import compose_run
from harness.engines.reference import ReferenceEngine
from harness.run_file import facts_of
from harness.schedule import plan_servings
from harness.store import code_hash, read_tables

RIG = """
defaults:
  - machine: cpu
  - engine: reference
  - target: folder
  - arm@arms.plain: plain
  - arm@arms.ngram: ngram
  - workload: smoke
  - protocol: smoke
  - sampler: greedy
  - _self_
name: {name}
summary: the scripted engine
source: null
draft_budget: 3
best_budget: false
budget_candidates: [1, 3]
concurrency: [1]
target: {{name: scripted, location: "{tokenizer}", dtype: float32, quantization: none, context: 2048}}
protocol: {{check_answers: none, blocks: 1, sample_period_s: 0.1}}
engine:
  adapter: harness.engines.scripted.ScriptedEngine
  max_running_requests: 4
  kv_tokens: 8192
  kv_dtype: auto
  prefill_chunk: 512
  graphs: "off"
  graph_batch_sizes: []
  flags: {{step_ms: {step_ms}, prefill_ms: 2}}
"""
STEP_MS = {"slow": 5, "fast": 3}


def write_rigs(folder: Path) -> list[Path]:
    """A rig file for each of STEP_MS; their engines differ, so a mixed-up row shows."""
    tokenizer = ReferenceEngine.tokenizer_folder(compose_run("smoke").run)
    for name, step_ms in STEP_MS.items():
        (folder / f"{name}.yaml").write_text(RIG.format(name=name, tokenizer=tokenizer, step_ms=step_ms))
    return [folder / f"{name}.yaml" for name in STEP_MS]


def check_runs(results: Path, rigs: list[Path], budgets: tuple[int, ...]) -> list[tuple[str, str]]:
    """Every run is there once, whole, and holds rows of its own alone. Gives when each started and ended."""
    found = {}
    for rig in rigs:
        for budget in budgets:
            composed = compose_run(str(rig), [f"draft_budget={budget}"])
            found[composed.config_hash] = (
                rig.stem,
                {c.cell_id for s in plan_servings(composed.run, code_hash()) for c in s.cells},
            )
    folders = sorted(file.parent for file in results.glob("*/run.json"))
    assert Counter(facts_of(folder)["config_hash"] for folder in folders) == Counter(list(found))
    for folder in folders:
        name, cells = found[facts_of(folder)["config_hash"]]
        tables = read_tables(folder)
        assert facts_of(folder)["finished_at"]
        assert folder.name.startswith(f"{name}-")
        assert set(tables.requests.run_id) == set(tables.servings.run_id) == {folder.name}
        assert set(tables.cells.cell_id) == cells
        assert set(tables.requests[tables.requests.phase == "measured"].cell_id) == cells
        assert {row["config_hash"] for _, row in tables.servings.iterrows()} == {facts_of(folder)["config_hash"]}
        assert not list(folder.glob("**/.tmp-*"))
    return [(str(facts_of(folder)["started_at"]), str(facts_of(folder)["finished_at"])) for folder in folders]


def at_once(times: list[tuple[str, str]]) -> bool:
    """Whether at least two runs were measured at the same time."""
    spans = sorted(times)
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def outcomes(results: Path) -> list[dict[str, str | None]]:
    """What the jobs of the only sweep left."""
    files = results.glob(".sweeps/*/*/outcome.json")
    return [json.loads(file.read_text("utf-8")) for file in sorted(files, key=lambda file: int(file.parent.name))]
