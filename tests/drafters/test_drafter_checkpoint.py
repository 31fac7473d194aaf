"""Every way in which a drafter checkpoint can fail to fit is one line that names the tensor or the key."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from drafters.drafter_checkpoint import (
    DrafterWeights,
    check_fits,
    check_taps,
    load_into,
    read_drafter_config,
    size_of,
    taps_from_layer_inputs,
)

CPU = torch.device("cpu")
TARGET = SimpleNamespace(hidden_size=48, num_layers=3, vocab_size=160)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {
        "fc.weight": torch.randn(4, 6, dtype=torch.bfloat16),
        "norm.weight": torch.ones(4),
        "d2t": torch.tensor([0, 70001, 130003]),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def open_(folder: Path, dtype: torch.dtype = torch.float32) -> DrafterWeights:
    return DrafterWeights(folder, dtype, CPU)


def refusal(call) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (every caller checks the text)
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_floats_are_converted_and_ids_are_not(folder):
    weights = open_(folder, torch.bfloat16)
    assert weights.take("norm.weight", (4,)).dtype is torch.bfloat16
    assert weights.take("d2t", (3,)).tolist() == [0, 70001, 130003]


def test_a_missing_tensor_is_named_with_its_shape_and_the_nearest_name(folder):
    line = refusal(lambda: open_(folder).take("model.fc.weight", (4, 6)))
    assert "'model.fc.weight' [4, 6] is missing" in line
    assert "nearest name there is 'fc.weight'" in line
    assert "does not fit this architecture" in refusal(lambda: open_(folder).take("lm_head.weight", (2, None)))


def test_a_wrongly_shaped_tensor_is_named_with_both_shapes(folder):
    for shape in [(4, 5), (4,), (4, 6, 1)]:
        line = refusal(lambda shape=shape: open_(folder).take("fc.weight", shape))
        assert "'fc.weight' has shape [4, 6]" in line
    assert "'norm.weight' has shape [4]" in refusal(lambda: open_(folder).optional("norm.weight", (5,)))
    assert open_(folder).optional("absent", (5,)) is None
    assert open_(folder).take("fc.weight", (4, None)).shape == (4, 6)


def test_a_tensor_left_over_is_named_unless_it_is_allowed(folder):
    weights = open_(folder)
    weights.take("fc.weight", (4, 6))
    assert "tensor 'd2t' and 1 more is not used" in refusal(weights.finish)
    assert "tensor 'norm.weight' is not used" in refusal(lambda: weights.finish(["d2t"]))
    weights.finish([r"d2t", r"norm\..*"])


def test_a_folder_that_is_none_or_holds_no_tensors_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder"):
        open_(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no \.safetensors"):
        open_(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_drafter_config(tmp_path)


def test_a_module_on_the_meta_device_is_filled_by_name(folder):
    with torch.device("meta"):
        module = nn.ModuleDict({"fc": nn.Linear(6, 4, bias=False), "out": nn.RMSNorm(4)})
    weights = open_(folder)
    load_into(module, weights, lambda name: name.replace("out.", "norm."))
    assert module["fc"].weight.dtype is torch.float32
    assert module["fc"](torch.ones(6)).shape == (4,)
    weights.finish(["d2t"])
    with torch.device("meta"):
        wider = nn.ModuleDict({"fc": nn.Linear(7, 4, bias=False)})
    assert "must have [4, 7]" in refusal(lambda: load_into(wider, open_(folder)))


def test_nested_configs_are_lifted_and_the_top_level_wins(tmp_path):
    nested = {"hidden_size": 8, "vocab_size": 5, "transformer_layer_config": {"hidden_size": 4, "rms_norm_eps": 1e-5}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    config = read_drafter_config(tmp_path)
    assert (config["hidden_size"], config["rms_norm_eps"]) == (8, 1e-5)


@pytest.mark.parametrize("value", [None, 0, -1, "8", 1.5, True])
def test_a_size_that_is_no_size_is_named(value):
    assert "hidden_size" in refusal(lambda: size_of({"hidden_size": value}, "hidden_size"))


def test_a_size_may_have_a_default():
    assert size_of({"n": None}, "n", 3) == 3


def test_published_layer_inputs_become_outputs_one_lower():
    assert taps_from_layer_inputs([2, 15, 27]) == (1, 14, 26)


def test_taps_outside_the_target_are_named_with_their_key():
    check_taps((0, 2, "final"), 3)
    for ids in [(-1,), (3,), (0, 3), (True,), ("last",)]:
        assert "target_layer_ids: tap" in refusal(lambda ids=ids: check_taps(ids, 3, "target_layer_ids"))
    assert "at least one tap" in refusal(lambda: check_taps((), 3))


def test_a_drafter_of_another_target_is_refused_by_key():
    good = {"vocab_size": 160, "hidden_size": 48}
    check_fits(good, TARGET)
    check_fits({**good, "vocab_size": 150}, TARGET)  # a table padded to a multiple of 64
    check_fits({**good, "hidden_size": 32, "target_hidden_size": 48}, TARGET, shares_embedding=False)
    assert "vocab_size 161" in refusal(lambda: check_fits({**good, "vocab_size": 161}, TARGET))
    assert "vocab_size 96" in refusal(lambda: check_fits({**good, "vocab_size": 96}, TARGET))
    assert "hidden_size 64" in refusal(lambda: check_fits({**good, "hidden_size": 64}, TARGET))
    assert "target_hidden_size 64" in refusal(lambda: check_fits({**good, "target_hidden_size": 64}, TARGET))
    line = refusal(lambda: check_fits({**good, "hidden_size": 32, "target_hidden_size": 48}, TARGET))
    assert "embed_tokens.weight" in line
