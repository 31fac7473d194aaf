"""A drafter that does not fit its target or its arm is refused by its files, on every served engine, before it is launched."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compose import compose_run
from harness.config import Arm, Checkpoint, Run
from harness.engines import llama_cpp_plan, sglang_missing, vllm_missing
from harness.engines.drafter_files import Described, described, gaps_between
from harness.engines.gguf_header import read_header
from harness.rigs import ROOT

CPU = ROOT / "checkpoints" / "smollm2_135m"


def folder(place: Path, architecture: str = "LlamaForCausalLMEagle3", **config: object) -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    return place


def gguf_file(place: Path, tokens: int, arch: str = "dflash", tensors: tuple[str, ...] = ("fc.weight",)) -> Path:
    writer = gguf.GGUFWriter(place, arch)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(tokens)])
    writer.add_array(f"{arch}.target_layers", [1, 2])
    writer.add_bool(f"{arch}.sample_from_anchor", True)
    for name in tensors:
        writer.add_tensor(name, np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return place


def arm_of(method: str, place: Path, drafter: str | None = None) -> Arm:
    checkpoint = Checkpoint(location=str(place))
    return Arm(
        method=method, drafter=drafter, needs_checkpoint=True, checkpoint=checkpoint, draft_budget=4, options={}, label=method
    )


def dflash2(place: Path) -> Arm:
    return arm_of("dflash", place, "drafters.dflash2.DFlash2Drafter")


def test_the_header_of_a_real_file_is_what_its_own_package_reads(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "d.gguf", 40, tensors=("fc.weight", "selector_hidden.weight"))
    theirs, ours = gguf.GGUFReader(file), read_header(file)
    assert ours.tokens == len(theirs.fields["tokenizer.ggml.tokens"].data) == 40
    assert ours.architecture == theirs.fields["general.architecture"].contents() == "dflash"
    assert ours.tensors == {tensor.name for tensor in theirs.tensors}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_that_is_cut_or_spoiled_is_refused_and_never_hangs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = gguf_file(tmp_path_factory.mktemp("gguf") / "d.gguf", 5)
    whole = file.read_bytes()
    header = whole[: whole.index(b"fc.weight") + 9 + 4 + 16 + 12]
    cut = data.draw(st.integers(0, len(header) - 1))
    file.write_bytes(header[:cut])
    if cut < len(header) - 12 - 16:  # shape, type and offset of a tensor are stepped over
        with pytest.raises(ValueError, match=r"d\.gguf|empty file"):
            read_header(file)
    spoiled = bytearray(header)
    spoiled[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(spoiled)
    assert isinstance(described(file), Described)


def test_what_is_no_checkpoint_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 1, 0, 0))
    assert described(None) == described(tmp_path) == described(tmp_path / "x.gguf") == described(tmp_path / "no") == Described()


def test_a_vocabulary_is_found_where_configs_keep_it(tmp_path: Path) -> None:
    plain, nested = folder(tmp_path / "a", vocab_size=64), folder(tmp_path / "b", text_config={"vocab_size": 65})
    assert (described(plain).tokens, described(nested).tokens) == (64, 65)
    assert [described(CPU / name).tokens for name in ("eagle3", "dflash2")] == [49152, 49152]


def test_padded_embeddings_of_one_tokenizer_fit_and_another_tokenizer_does_not(tmp_path: Path) -> None:
    target = folder(tmp_path / "t", vocab_size=152064)
    near, far = folder(tmp_path / "n", vocab_size=151936), folder(tmp_path / "f", vocab_size=128256)
    assert gaps_between(arm_of("draft_model", near), near, target) == []
    (gap,) = gaps_between(arm_of("draft_model", far), far, target)
    assert gap == (
        f"arm draft_model: {far} has a vocabulary of 128256 tokens, the target one of 152064; give a drafter that was made for "
        "this target"
    )
    assert gaps_between(arm_of("draft_model", far), far, None) == []


def test_a_dflash_in_the_place_of_a_dflash2_is_told_by_config_and_by_gguf(tmp_path: Path) -> None:
    old = folder(tmp_path / "old", "DFlashDraftModel", vocab_size=64)
    new = folder(tmp_path / "new", "DFlash2DraftModel", vocab_size=64)
    old_file = gguf_file(tmp_path / "old.gguf", 64)
    new_file = gguf_file(tmp_path / "new.gguf", 64, tensors=("fc.weight", "selector_hidden.weight"))
    for place in (old, old_file):
        assert (
            "is a DFlashDraftModel and would draft as dflash, without a selector"
            in gaps_between(dflash2(place), place, None)[0]
        )
    assert [gaps_between(dflash2(place), place, None) for place in (new, new_file)] == [[], []]
    assert gaps_between(arm_of("dflash", old), old, None) == []
    dspark = gguf_file(tmp_path / "dspark.gguf", 64, tensors=("markov_w1.weight",))
    assert "is a Qwen3DSparkModel" in gaps_between(dflash2(dspark), dspark, None)[0]


@pytest.mark.parametrize(
    ("rig", "missing"), [("cpu_smollm2_vllm", vllm_missing.missing), ("h200_qwen27b", sglang_missing.missing)]
)
def test_vllm_and_sglang_refuse_a_drafter_of_another_target(
    rig: str, missing: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compose_run(rig).run
    target = folder(tmp_path / "target", "LlamaForCausalLM", vocab_size=49152)
    monkeypatch.setattr("harness.engines.drafter_files.target_folder", lambda run, build: target)
    other = folder(tmp_path / "other", vocab_size=32000)
    gaps = missing(run, arm_of("eagle3", other))
    assert any("a vocabulary of 32000 tokens, the target one of 49152" in gap for gap in gaps)
    fits = missing(run, arm_of("eagle3", CPU / "eagle3"))
    assert not any("vocabulary" in gap for gap in fits)


def test_llama_cpp_refuses_a_file_of_another_target_and_a_dflash_for_a_dflash2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Run = compose_run("cpu_smollm2_llamacpp").run
    target = gguf_file(tmp_path / "target.gguf", 900, "llama", ("token_embd.weight",))
    monkeypatch.setattr(llama_cpp_plan, "gguf_path", lambda run: target)
    other, same = gguf_file(tmp_path / "other.gguf", 600), gguf_file(tmp_path / "same.gguf", 900)
    assert any("vocabulary of 600 tokens, the target one of 900" in gap for gap in llama_cpp_plan.missing(run, dflash2(other)))
    (gap,) = [gap for gap in llama_cpp_plan.missing(run, dflash2(same)) if "DFlash" in gap]
    assert "would draft as dflash, without a selector; give a DFlash 2" in gap
