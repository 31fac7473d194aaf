"""The mutation suite: a rig that secretly changes one factor for one arm is caught, every time, and an honest one never."""

from __future__ import annotations

from collections.abc import Callable

import mutations
import pytest
from recorded_servings import named
from scripted_bench import ENGINE, NGRAM, PLAIN, run_bench, scripted_run

from harness.control import Control
from harness.report.run import read_run

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


@pytest.mark.parametrize("arm", ["ngram", "plain2"])
def test_an_honest_arm_is_controlled(audit: Audit, arm: str) -> None:
    assert audit(arm).findings_that_count == ()


@pytest.mark.parametrize("change", CAUGHT)
def test_a_secret_change_of_one_arm_is_caught_by_its_name(audit: Audit, change: str) -> None:
    assert audit(change).verdict == "CONFOUNDED"
    assert named(audit(change)) == CAUGHT[change]


def test_every_change_of_the_suite_is_tried() -> None:
    assert {change.__name__ for change in mutations.CHANGES} == set(CAUGHT)
