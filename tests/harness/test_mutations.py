"""The mutation suite: a rig that secretly changes one factor for one arm is caught, every time, and an honest one never."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import mutations
import pytest
from scripted_bench import ENGINE, NGRAM, PLAIN, run_bench, scripted_run
from synthetic import request, serving

from harness.compose import compose_run
from harness.config import Arm
from harness.control import Control, Side, compare
from harness.engines import llama_cpp, sglang, vllm
from harness.engines.server_dialect import Found
from harness.report.run import read_run

RECORDED = Path(__file__).parents[1] / "recorded"
# Graphs are on, so that they can be switched off.
RIG = {**ENGINE, "graphs": "decode", "graph_batch_sizes": [1, 2], "flags": {"step_ms": 5, "prefill_ms": 1}}
CAUGHT = {
    "graphs_off": {"cuda_graphs"},
    "cap_of_one": {"max_running_requests", "concurrency_reached"},
    "other_kv_dtype": {"kv_dtype"},
    "shorter_outputs": {"output_length"},
    "warm_prefix_cache": {"cached_tokens", "validity"},
    "synthetic_acceptance": {"synthetic_acceptance"},
    "other_template": {"prompt_hash"},
    "slower_clock": {"clock"},
}
Audit = Callable[[str], Control]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """One run of the scripted engine whose arms are an honest drafter, one drafter per secret change, and the A/A arm."""
    arms = {"plain": PLAIN, "ngram": NGRAM} | {name: {**NGRAM, "label": name} for name in CAUGHT}
    workload = {"name": "test", "sets": [{"set": "alpha", "max_tokens": 24}], "stop": "natural", "seed": 7}
    protocol = {"blocks": 1, "a_a": True, "prompts_per_set": 6, "warmup_prompts": 0, "sample_period_s": 0.02}
    run = scripted_run(protocol=protocol, engine=RIG, arms=arms, workload=workload, concurrency=[2])
    with pytest.MonkeyPatch.context() as patch:
        mutations.secretly(patch)
        finished = read_run(run_bench(run, tmp_path_factory.mktemp("secret")))

    def control(arm: str) -> Control:
        found = finished.control(arm, 2)
        assert found is not None
        return found

    return control


def named(control: Control) -> set[str]:
    """Factors that confound, without what a finding adds to the name."""
    return {finding.factor.split(" ")[0] for finding in control.of("confounder")}


@pytest.mark.parametrize("arm", ["ngram", "plain2"])
def test_an_honest_arm_is_controlled(audit: Audit, arm: str) -> None:
    assert audit(arm).findings_that_count == ()


@pytest.mark.parametrize("change", CAUGHT)
def test_a_secret_change_of_one_arm_is_caught_by_its_name(audit: Audit, change: str) -> None:
    assert audit(change).verdict == "CONFOUNDED"
    assert named(audit(change)) == CAUGHT[change]


def test_every_change_of_the_suite_is_tried() -> None:
    assert {change.__name__ for change in mutations.CHANGES} == set(CAUGHT)


# --- the same on what real servers said ---


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
    return Side([serving(arm, resolved=told)], rows(arm, **given), [], samples(arm, mhz))


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


@pytest.mark.parametrize("engine", RESOLVE)
def test_recorded_servings_that_differ_in_the_drafter_alone_are_not_confounded(engine: str) -> None:
    resolve, method = RESOLVE[engine]
    found = compare(side("plain", engine, resolve("plain")), side("ngram", engine, resolve(method)), 1)
    assert found.of("confounder") == ()
    again = compare(side("plain", engine, resolve("plain")), side("plain2", engine, resolve("plain")), 1)
    assert again.of("confounder") == again.of("implied") == ()


CONFIG = "vllm_config."
RESOLVED_MUTATIONS = [
    ("vllm", "cuda_graphs", lambda: vllm_resolved("ngram", CONFIG + "compilation_config.cudagraph_mode", 0)),
    ("vllm", "max_running_requests", lambda: vllm_resolved("ngram", CONFIG + "scheduler_config.max_num_seqs", 48)),
    ("vllm", "kv_dtype", lambda: vllm_resolved("ngram", CONFIG + "cache_config.cache_dtype", "fp8")),
    ("vllm", "prefix_cache", lambda: vllm_resolved("ngram", CONFIG + "cache_config.enable_prefix_caching", False)),
    ("vllm", "verify_rule", lambda: vllm_resolved("ngram", CONFIG + "speculative_config.rejection_sample_method", "synthetic")),
    ("sglang", "cuda_graphs", lambda: sglang_resolved("ngram", "cuda_graph_config.decode.backend", "disabled")),
    (
        "sglang",
        "max_running_requests",
        lambda: sglang_resolved("ngram", "internal_states.0.effective_max_running_requests_per_dp", 48),
    ),
    ("sglang", "kv_dtype", lambda: sglang_resolved("ngram", "kv_cache_dtype", "fp8_e5m2")),
    ("sglang", "prefix_cache", lambda: sglang_resolved("ngram", "disable_radix_cache", True)),
    ("sglang", "synthetic_acceptance", lambda: sglang_resolved("ngram", SGLANG_SIMULATE_ACC_LEN="3")),
    ("llama_cpp", "max_running_requests", lambda: llama_resolved("dflash2", slots=1)),
    ("llama_cpp", "kv_dtype", lambda: llama_resolved("dflash2", kv="q8_0")),
    ("llama_cpp", "synthetic_acceptance", lambda: llama_resolved("dflash2", "--spec-synth-len", "2.5")),
]


@pytest.mark.parametrize(("engine", "factor", "mutated"), RESOLVED_MUTATIONS)
def test_a_secret_change_in_what_a_server_resolved_is_caught(
    engine: str, factor: str, mutated: Callable[[], dict[str, Any]]
) -> None:
    resolve, _ = RESOLVE[engine]
    assert factor in named(compare(side("plain", engine, resolve("plain")), side("ngram", engine, mutated()), 1))


ROW_MUTATIONS: dict[str, dict[str, Any]] = {
    "output_length": {"output_tokens": 30},
    "prompt_hash": {"prompt_hash": " of another template"},
    "cached_tokens": {"cached_tokens": 64},
    "clock": {"mhz": 1769.0},
}


@pytest.mark.parametrize("engine", RESOLVE)
@pytest.mark.parametrize("factor", ROW_MUTATIONS)
def test_a_secret_change_that_only_the_rows_show_is_caught(engine: str, factor: str) -> None:
    resolve, method = RESOLVE[engine]
    found = compare(side("plain", engine, resolve("plain")), side("ngram", engine, resolve(method), **ROW_MUTATIONS[factor]), 1)
    assert named(found) == {factor}


def test_a_plain_arm_in_which_the_engine_found_a_drafter_by_itself_is_caught() -> None:
    found = compare(side("plain", "vllm", vllm_resolved("ngram")), side("plain2", "vllm", vllm_resolved("plain")), 1)
    assert "method" in named(found)
