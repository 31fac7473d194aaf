"""Drafters of llama.cpp: exported where due, never served stale, and refused before launch where llama.cpp has no place."""

import asyncio
import os
import sys
from pathlib import Path

import gguf
import pytest
import torch

from harness.config import Arm, Checkpoint
from harness.engines.base import EngineError
from harness.engines.gguf_header import read_header
from harness.engines.llama_cpp_drafter import drafter_path, export_if_due, export_of, missing_drafter, sized_by

sys.path.insert(0, str(Path(__file__).parents[2] / "drafters"))
from tiny_eagle3 import checkpoint, vocabulary
from tiny_gguf import HIDDEN, LAYERS, write_gguf


@pytest.fixture
def target(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "target.gguf")
    return tmp_path / "target.gguf"


def eagle3(location: Path) -> Arm:
    place = Checkpoint(location=str(location))
    return Arm(
        method="eagle3", drafter=None, needs_checkpoint=True, checkpoint=place, draft_budget=3, options={}, label="EAGLE-3"
    )


def is_due(arm: Arm) -> bool:
    export = export_of(arm)
    assert export is not None
    return export.is_due


def test_a_header_gives_sizes_and_text_as_the_package_reads_them(target: Path) -> None:
    header, reader = read_header(target), gguf.GGUFReader(target)
    assert (header.size("block_count"), header.size("embedding_length")) == (LAYERS, HIDDEN)
    assert header.architecture == reader.fields["general.architecture"].contents()
    assert header.tokens == len(reader.fields["tokenizer.ggml.tokens"].data)
    assert header.source is None


def test_a_checkpoint_is_exported_when_a_serving_begins_and_again_only_after_another_training(
    tmp_path: Path, target: Path
) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target))
    arm, file = eagle3(folder), tmp_path / "eagle3.gguf"
    assert missing_drafter(arm, target) == []
    assert (drafter_path(arm), sized_by(arm)) == (str(file), folder)
    asyncio.run(export_if_due(arm, target))
    assert sized_by(arm) == file
    written = file.stat().st_mtime_ns
    asyncio.run(export_if_due(arm, target))
    assert file.stat().st_mtime_ns == written
    checkpoint(folder, vocabulary(target), seed=1)
    assert is_due(arm)
    asyncio.run(export_if_due(arm, target))
    assert not is_due(arm)
    weights = {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}["fc.weight"]
    drawn = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)).half().numpy()
    assert (weights == drawn).all()


def test_a_tensor_without_a_place_is_told_before_launch(tmp_path: Path, target: Path) -> None:
    bias = {"midlayer.self_attn.q_proj.bias": torch.zeros(HIDDEN)}
    (gap,) = missing_drafter(eagle3(checkpoint(tmp_path / "eagle3", vocabulary(target), **bias)), target)
    assert "tensor 'midlayer.self_attn.q_proj.bias': llama.cpp's architecture 'eagle3' has no place for it" in gap


def test_a_file_beside_the_checkpoint_that_tells_no_source_is_neither_served_nor_overwritten(
    tmp_path: Path, target: Path
) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target))
    for content in (target.read_bytes(), b"GGUF", b""):
        (tmp_path / "eagle3.gguf").write_bytes(content)
        (gap,) = missing_drafter(eagle3(folder), target)
        assert "delete it to have it exported again, or give it as checkpoint.location" in gap
    (tmp_path / "eagle3.gguf").write_bytes(target.read_bytes())
    assert missing_drafter(eagle3(tmp_path / "eagle3.gguf"), target) == []


def test_a_file_inside_the_folder_is_the_users_own_and_is_served_as_it_is(tmp_path: Path, target: Path) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target))
    (folder / "converted.gguf").write_bytes(target.read_bytes())
    assert drafter_path(eagle3(folder)) == str(folder / "converted.gguf")
    assert export_of(eagle3(folder)) is None


def test_a_folder_that_cannot_be_written_is_told_before_launch(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "eagle3", vocabulary(target))
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (tmp_path, os.W_OK))  # root may write anywhere
    (gap,) = missing_drafter(eagle3(folder), target)
    assert "eagle3.gguf cannot be written; copy" in gap


def test_an_export_that_fails_ends_the_launch_with_the_exporters_line(tmp_path: Path, target: Path) -> None:
    folder = checkpoint(tmp_path / "eagle3", 12)
    with pytest.raises(EngineError, match=r"was not exported: .*target.gguf has \d+ tokens, the drafter 12"):
        asyncio.run(export_if_due(eagle3(folder), target))
    assert not (tmp_path / "eagle3.gguf").exists()
