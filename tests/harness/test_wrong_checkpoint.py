"""A checkpoint that a serving would refuse, or that is damaged, is refused by the plan: before anything is launched."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from harness import plan
from harness.compose import ConfigError, compose_run
from harness.config import Run
from harness.engines.base import ArmError, ArmPlan
from harness.engines.reference import ReferenceEngine
from harness.rigs import ROOT


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("draft_budget=100", r"arms\.dflash\.draft_budget: 100 drafts asked of a block trained for 7"),
        ("arms.dspark.draft_budget=9", r"arms\.dspark\.draft_budget: 9 drafts asked of a block trained for 7"),
        ("arms.mtp.checkpoint.location=tests", r"arms\.mtp\.checkpoint\.location: 'tests' has no config\.json"),
    ],
)
def test_what_a_checkpoint_rules_out_is_told_before_anything_is_launched(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        plan.plan_run(compose_run("cpu_smollm2", ["+arm@arms.dspark=dspark", override]), tmp_path)


DRAFTERS = ("dflash", "dflash2", "dspark", "eagle3", "mtp", "xpress")


@cache
def tried(method: str) -> Run:
    return compose_run("smoke", [f"+arm@arms.tried={method}"]).run


def _plan_with(method: str, folder: Path | str) -> ArmPlan:
    """The engine's plan of one drafter with its checkpoint in another folder."""
    run = tried(method)
    arm = run.arms["tried"]
    assert arm.checkpoint is not None
    elsewhere = arm.checkpoint.model_copy(update={"location": str(folder)})
    return ReferenceEngine.plan(run, arm.model_copy(update={"checkpoint": elsewhere}))


def test_the_plan_names_the_arm_whose_checkpoint_is_of_another_method(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^arms\.eagle3\.checkpoint\.location: .*dflash.*num_hidden_layers 2"):
        plan.plan_run(compose_run("smoke", ["arms.eagle3.checkpoint.location=checkpoints/smollm2_135m/dflash"]), tmp_path)


@pytest.mark.parametrize("method", DRAFTERS)
@pytest.mark.parametrize("other", DRAFTERS)
def test_a_checkpoint_of_another_method_is_refused_before_anything_is_launched(method: str, other: str) -> None:
    folder = f"checkpoints/smollm2_135m/{other}"
    if method == other:
        assert _plan_with(method, folder).missing == ()
        return
    with pytest.raises(ArmError, match=rf"^checkpoint\.location: .*{folder}"):
        _plan_with(method, folder)


@pytest.mark.parametrize("method", DRAFTERS)
@pytest.mark.parametrize("damage", ["config", "list", "cut", "text", "tensor", "shape", "width"])
def test_a_damaged_checkpoint_is_refused_before_anything_is_launched(method: str, damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(ROOT / "checkpoints" / "smollm2_135m" / method, folder)
    config, weights = folder / "config.json", next(folder.glob("*.safetensors"))
    if damage in ("config", "list"):
        config.write_text("{not json" if damage == "config" else "[1]")
    elif damage in ("cut", "text"):
        weights.write_bytes(weights.read_bytes()[:-1000] if damage == "cut" else b"no tensors at all")
    elif damage == "width":
        told = json.loads(config.read_text())
        config.write_text(json.dumps({**told, "hidden_size": 64, "target_hidden_size": 64}))
    else:
        tensors = load_file(weights)
        name = next(name for name in sorted(tensors) if name.endswith("down_proj.weight"))
        taken = tensors.pop(name)
        save_file(tensors if damage == "tensor" else {**tensors, name: taken[:-1].contiguous()}, weights)
    with pytest.raises(ArmError, match=rf"^checkpoint\.location: .*{folder}"):
        _plan_with(method, folder)


def test_a_checkpoint_is_held_against_what_it_says_of_its_target_where_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for method in DRAFTERS:
        made = _plan_with(method, f"checkpoints/smollm2_135m/{method}")
        assert made.memory.weights_bytes is None
        assert made.memory.drafter_weights_bytes
    with pytest.raises(ArmError, match="num_hidden_layers 2 is not implemented"):
        _plan_with("eagle3", "checkpoints/smollm2_135m/dflash")
