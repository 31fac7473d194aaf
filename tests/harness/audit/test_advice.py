"""What to do about a difference fits the factor: a release, the GPUs that are seen, the words before the program."""

import pytest

from harness.audit.command import from_command
from harness.audit.compare import audit

SERVE = "vllm serve M --num-gpu-blocks-override 4096 --no-enable-prefix-caching --enforce-eager"
DRAFTS = f"{SERVE} --spec-method mtp --spec-tokens 3"


def found(a, b, version_a=None, version_b=None):
    outcome = audit(from_command(a, version_a), from_command(b, version_b))
    return outcome, {one.factor: one for one in outcome.differences}


@pytest.mark.parametrize(("stated", "silent"), [("a", "b"), ("b", "a")])
def test_a_release_that_one_command_states_leaves_the_verdict_unknown_and_asks_for_the_other(stated, silent):
    outcome, factors = found(SERVE, DRAFTS, **{f"version_{stated}": "0.33.0"})
    assert (outcome.verdict, factors["engine_build"].kind) == ("UNKNOWN", "unknown")
    assert factors["engine_build"].remedy == f"give --version-{silent}"


def test_two_releases_confound_and_one_release_on_both_sides_controls():
    assert found(SERVE, DRAFTS, "0.32.0", "0.33.0")[1]["engine_build"].kind == "confounder"
    assert found(SERVE, DRAFTS, "0.33.0", "0.33.0")[0].verdict == "CONTROLLED"


def test_gpus_narrowed_on_one_side_are_unknown_and_unequal_counts_confound():
    one_sided, factors = found(SERVE, f"CUDA_VISIBLE_DEVICES=0,1 {DRAFTS}", "0.33.0", "0.33.0")
    assert (one_sided.verdict, factors["visible_gpus"].kind) == ("UNKNOWN", "unknown")
    assert factors["visible_gpus"].remedy.startswith("set CUDA_VISIBLE_DEVICES")
    two_sided, factors = found(f"CUDA_VISIBLE_DEVICES=0 {SERVE}", f"CUDA_VISIBLE_DEVICES=0,1 {DRAFTS}", "0.33.0", "0.33.0")
    assert (two_sided.verdict, factors["visible_gpus"].kind) == ("CONFOUNDED", "confounder")


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("docker run --gpus all image", "runs in a container"),
        ("/usr/bin/numactl -N 0", "binds the server to cores"),
        ("with-lock", "the words before the program"),
    ],
)
def test_a_wrapper_on_one_side_confounds_and_is_told_for_what_it_is(before, told):
    outcome, factors = found(SERVE, f"{before} {DRAFTS}", "0.33.0", "0.33.0")
    assert outcome.verdict == "CONFOUNDED"
    assert told in factors["wrapper"].remedy


def test_no_remedy_sends_the_reader_to_a_default_that_a_release_cannot_have():
    a = "NCCL_P2P_DISABLE=1 CUDA_VISIBLE_DEVICES=0 docker run vllm/vllm-openai:v0.33.0 --model M"
    remedies = {one.factor: one.remedy for one in audit(from_command(a), from_command(SERVE)).differences}
    assert {"engine_build", "visible_gpus", "wrapper", "env.NCCL_P2P_DISABLE"} <= remedies.keys()
    for factor in ("engine_build", "visible_gpus", "wrapper", "env.NCCL_P2P_DISABLE"):
        assert "default" not in remedies[factor]
