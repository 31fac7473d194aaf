"""Drafters as GGUF: what is written is what the checkpoint holds, in llama.cpp's order; what has no place is refused."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from drafters.export_gguf import export, main
from drafters.gguf_drafter import TargetShape, describe, halves_to_rotary_rows
from drafters.gguf_float32 import dequantise
from drafters.gguf_llama import GgufLlama, rotary_rows_to_halves

sys.path.insert(0, str(Path(__file__).parent))
from tiny_eagle3 import CONFIG, DRAFT_VOCAB, checkpoint, vocabulary
from tiny_gguf import HIDDEN, KV_HEADS, LAYERS, write_gguf


@pytest.fixture
def target(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "target.gguf")
    return tmp_path / "target.gguf"


def test_rotary_rows_go_to_llama_cpp_and_come_back() -> None:
    rows = np.arange(32 * 3, dtype=np.float32).reshape(32, 3)
    there = halves_to_rotary_rows(rows, 2)
    assert there[:4, 0].tolist() == [0.0, 24.0, 3.0, 27.0]  # rows 0, 8, 1, 9 of a head of 16
    assert np.array_equal(rotary_rows_to_halves(there, 2), rows)


def test_an_eagle3_file_holds_the_checkpoint(tmp_path: Path, target: Path) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target))
    export(folder, target, tmp_path / "out.gguf", "float32")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    values = {name: field.contents() for name, field in reader.fields.items()}
    assert values["general.architecture"] == "eagle3"
    assert values["eagle3.target_layers"] == [1, 1, LAYERS]  # what enters these layers, as published
    assert values["eagle3.target_hidden_size"] == HIDDEN
    assert values["eagle3.attention.head_count_kv"] == KV_HEADS
    of_target = gguf.GGUFReader(target).fields
    assert values["tokenizer.ggml.tokens"] == of_target["tokenizer.ggml.tokens"].contents()
    assert values["tokenizer.ggml.merges"] == of_target["tokenizer.ggml.merges"].contents()
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(tensors) == 14
    assert tensors["d2t"].tolist() == [3 * i for i in range(DRAFT_VOCAB)]
    noise = torch.Generator().manual_seed(0)
    assert np.array_equal(tensors["fc.weight"], torch.randn((HIDDEN, 3 * HIDDEN), generator=noise).numpy())


def test_only_matrices_are_stored_in_half_precision(tmp_path: Path, target: Path) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target))
    assert main([str(folder), str(target)]) == 0
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "eagle3.gguf").tensors}
    assert {kind for name, kind in kinds.items() if "norm" in name} == {"F32"}
    assert kinds.pop("d2t") == "I64"
    assert {kind for name, kind in kinds.items() if "norm" not in name} == {"F16"}


@pytest.mark.parametrize("name", ["midlayer.self_attn.q_proj.bias", "fc_norm.0.weight"])
def test_a_tensor_for_which_llama_cpp_has_no_place_is_refused(
    tmp_path: Path, target: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target), **{name: torch.zeros(HIDDEN)})
    assert main([str(folder), str(target)]) == 1
    assert name in capsys.readouterr().err
    assert not (tmp_path / "eagle3.gguf").exists()


def test_an_export_that_fails_midway_leaves_nothing_and_the_old_file_as_it_was(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = checkpoint(tmp_path / "eagle3", vocabulary(target)), tmp_path / "eagle3.gguf"
    export(folder, target, out, "float32")
    before = out.read_bytes()

    def fails(self: gguf.GGUFWriter) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fails)
    with pytest.raises(OSError, match="No space"):
        export(folder, target, out, "float32")
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eagle3", "eagle3.gguf", "target.gguf"]


def test_a_drafter_of_another_vocabulary_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ValueError, match="another target"):
        export(checkpoint(tmp_path / "eagle3", 12), target, tmp_path / "out.gguf", "float32")


def test_the_published_names_of_dflash_2_have_their_places() -> None:
    config = CONFIG | {"architectures": ["DFlash2DraftModel"], "vocab_size": 300, "num_hidden_layers": 1, "is_causal": True}
    inner = {"target_layer_ids": [0, 1], "mask_token_id": 7, "block_size": 8, "conv_kernel_size": 2, "selector_top_k": 4}
    file = describe(config | {"dflash_config": inner}, TargetShape(LAYERS, HIDDEN))
    assert file.fields[".target_layers"] == [1, 2]  # published as outputs, told as inputs
    assert (file.fields[".block_size"], file.fields[".attention.causal"], file.fields[".selector_top_k"]) == (8, True, 4)
    kernel = np.zeros((2, 2, HIDDEN), dtype=np.float32)
    published = {"layers.0.mlp_conv.base_kernel": kernel, "candidate_selector.predecessor_codebook": kernel[0]}
    assert [name for name, _ in file.tensors(published)] == ["blk.0.ffn_conv_base", "selector_predecessor.weight"]


def test_an_mtp_module_is_refused() -> None:
    with pytest.raises(ValueError, match="MtpModule"):
        describe(CONFIG | {"architectures": ["MtpModule"]}, TargetShape(LAYERS, HIDDEN))


def test_a_dequantised_target_holds_the_same_numbers(tmp_path: Path, target: Path) -> None:
    dequantise(target, tmp_path / "float.gguf")
    assert {t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "float.gguf").tensors} == {"F32"}
    before, after = (dict(GgufLlama.open(path).tensors()) for path in (target, tmp_path / "float.gguf"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
