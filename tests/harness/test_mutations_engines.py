"""The mutation suite on what real engines say of themselves: eight secret changes, four engines, every one caught by its name.

The reference worker's own code runs in this process; vLLM, SGLang and llama.cpp are recorded dumps behind their adapters, with
the one value changed where the engine tells it. What no engine tells (lengths, template, hits, clock) is caught from the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import pytest
import test_mutations_reference as worker
from recorded_servings import RESOLVE, llama_resolved, named, sglang_resolved, side, vllm_resolved

from harness.control import compare

target = worker.target
VLLM = "vllm_config."
Told = Callable[[], dict[str, Any]]
# By mutation and engine: what the engine tells once the change is made, and the factor that must be named.
TOLD: dict[str, dict[str, tuple[str, Told]]] = {
    "graphs_off": {
        "vllm": ("cuda_graphs", lambda: vllm_resolved("ngram", VLLM + "compilation_config.cudagraph_mode", 0)),
        "sglang": ("cuda_graphs", lambda: sglang_resolved("ngram", "cuda_graph_config.decode.backend", "disabled")),
    },
    "cap_of_48": {
        "vllm": ("max_running_requests", lambda: vllm_resolved("ngram", VLLM + "scheduler_config.max_num_seqs", 48)),
        "sglang": (
            "max_running_requests",
            lambda: sglang_resolved("ngram", "internal_states.0.effective_max_running_requests_per_dp", 48),
        ),
        "llama_cpp": ("max_running_requests", lambda: llama_resolved("dflash2", slots=48)),
    },
    "other_kv_dtype": {
        "vllm": ("kv_dtype", lambda: vllm_resolved("ngram", VLLM + "cache_config.cache_dtype", "fp8")),
        "sglang": ("kv_dtype", lambda: sglang_resolved("ngram", "kv_cache_dtype", "fp8_e5m2")),
        "llama_cpp": ("kv_dtype", lambda: llama_resolved("dflash2", kv="q8_0")),
    },
    "other_prefix_cache": {
        "vllm": ("prefix_cache", lambda: vllm_resolved("ngram", VLLM + "cache_config.enable_prefix_caching", False)),
        "sglang": ("prefix_cache", lambda: sglang_resolved("ngram", "disable_radix_cache", True)),
    },
    "synthetic_acceptance": {
        "vllm": (
            "verify_rule",
            lambda: vllm_resolved("ngram", VLLM + "speculative_config.rejection_sample_method", "synthetic"),
        ),
        "sglang": ("synthetic_acceptance", lambda: sglang_resolved("ngram", SGLANG_SIMULATE_ACC_LEN="3")),
        "llama_cpp": ("synthetic_acceptance", lambda: llama_resolved("dflash2", "--spec-synth-len", "2.5")),
    },
}
# What the reference worker is launched with instead. Its KV cache has the dtype of its weights.
LAUNCHED: dict[str, tuple[set[str], dict[str, str]]] = {
    "cap_of_48": ({"max_running_requests"}, {"slots": "48"}),
    "other_kv_dtype": ({"kv_dtype", "dtype"}, {"dtype": "bfloat16"}),
}
# What it would tell where it cannot be launched so: a CPU has no graphs, and it refuses a rule that it does not have.
WOULD_TELL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "graphs_off": ("cuda_graphs", {"cuda_graphs": "decode"}, {"cuda_graphs": "off"}),
    "synthetic_acceptance": ("verify_rule", {}, {"verify_rule": "synthetic"}),
}
# What rows, samples and the command's environment show, whatever the engine.
SEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "shorter_outputs": ("output_length", {"output_tokens": 30}),
    "other_template": ("prompt_hash", {"prompt_hash": " of another template"}),
    "other_prefix_cache": ("cached_tokens", {"cached_tokens": 64}),
    "slower_clock": ("clock", {"mhz": 1769.0}),
}
MUTATIONS = ("graphs_off", "cap_of_48", "other_kv_dtype", *SEEN, "synthetic_acceptance")
ENGINES = ("reference", *RESOLVE)


def caught(engine: str, mutation: str, target: Path) -> tuple[set[str], set[str]]:
    """(factors that must be named, factors that are) in an arm that suffers the change, against an honest plain."""
    if engine == "reference":
        return _caught_in_worker(mutation, target)
    resolve, method = RESOLVE[engine]
    wanted, sides = set(), []
    if told := TOLD.get(mutation, {}).get(engine):
        wanted.add(told[0])
        sides.append(side("ngram", engine, told[1]()))
    if seen := SEEN.get(mutation):
        wanted.add(seen[0])
        sides.append(side("ngram", engine, resolve(method), **seen[1]))
    if (engine, mutation) == ("llama_cpp", "graphs_off"):
        wanted.add("env:")  # it tells no mode: its graphs are switched in the environment
        sides.append(side("ngram", engine, resolve(method), env={"GGML_CUDA_DISABLE_GRAPHS": "1"}))
    plain = side("plain", engine, resolve("plain"))
    return wanted, set[str]().union(*(named(compare(plain, arm, 1)) for arm in sides))


def _caught_in_worker(mutation: str, target: Path) -> tuple[set[str], set[str]]:
    plain = worker.side(target, "plain")
    if mutation in LAUNCHED:
        wanted, flags = LAUNCHED[mutation]
        return wanted, named(compare(plain, worker.side(target, "ngram", **flags), 1)) - {"linear"}  # follows the dtype
    honest = {name: json.loads(value) for name, value in plain.servings[0]["resolved"].items() if name != "engine"}
    if mutation in WOULD_TELL:
        factor, both, changed = WOULD_TELL[mutation]
        arm = side("ngram", "reference", honest | both | changed)
        return {factor}, named(compare(side("plain", "reference", honest | both), arm, 1))
    factor, seen = SEEN[mutation]
    return {factor}, named(compare(side("plain", "reference", honest), side("ngram", "reference", honest, **seen), 1))


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_secret_change_is_caught_on_every_engine(engine: str, mutation: str, target: Path) -> None:
    wanted, found = caught(engine, mutation, target)
    assert wanted
    assert found == wanted, "by its name, and nothing else is accused"


def test_the_suite_is_that_of_the_scripted_runs() -> None:
    alike = {"cap_of_one": "cap_of_48", "warm_prefix_cache": "other_prefix_cache"}
    assert {alike.get(change.__name__, change.__name__) for change in mutations.CHANGES} == set(MUTATIONS)


@pytest.mark.parametrize("engine", RESOLVE)
def test_recorded_servings_that_differ_in_the_drafter_alone_are_not_confounded(engine: str) -> None:
    resolve, method = RESOLVE[engine]
    found = compare(side("plain", engine, resolve("plain")), side("ngram", engine, resolve(method)), 1)
    assert found.of("confounder") == ()
    again = compare(side("plain", engine, resolve("plain")), side("plain2", engine, resolve("plain")), 1)
    assert again.of("confounder") == again.of("implied") == ()


def test_a_plain_arm_in_which_the_engine_found_a_drafter_by_itself_is_caught() -> None:
    found = compare(side("plain", "vllm", vllm_resolved("ngram")), side("plain2", "vllm", vllm_resolved("plain")), 1)
    assert "method" in named(found)
