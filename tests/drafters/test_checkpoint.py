"""Where a target's weights come from, what is said when they are not there, and the hash that names them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from drafters.checkpoint import checkpoint_hash, is_pinned, missing_target, resolve_target

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NO_PACKAGE = ("package", "no-such-model==1", "x.gguf", None, "0" * 64)


def write_model(folder: Path, seed: int = 0, rows: int = 8) -> Path:
    folder.mkdir(parents=True)
    weights = np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)
    save_file({"model.embed_tokens.weight": weights}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache on a machine without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub" / "models--org--model" / "snapshots" / COMMIT


def test_a_folder_is_found_and_an_incomplete_one_names_what_it_lacks(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert resolve_target("folder", str(folder), None, None, None) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"target\.location: .*/model lacks model\.safetensors"):
        resolve_target("folder", str(folder), None, None, None)


def test_every_shard_of_an_index_is_needed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").touch()
    assert "lacks model-2.safetensors" in str(missing_target("folder", str(folder), None, None, None))
    (folder / "model-2.safetensors").touch()
    assert missing_target("folder", str(folder), None, None, None) is None


def test_a_cached_hub_snapshot_resolves_without_a_network(hub_cache: Path) -> None:
    write_model(hub_cache)
    assert resolve_target("hub", "org/model", None, COMMIT, None) == hub_cache
    assert missing_target("hub", "org/model", None, COMMIT, None) is None


def test_a_hub_target_that_is_not_here_is_one_line_that_says_what_to_run(hub_cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"hf download org/model --revision {COMMIT}; the hub") as error:
        resolve_target("hub", "org/model", None, COMMIT, None)
    assert "\n" not in str(error.value)
    assert "not in the local hub cache" in str(missing_target("hub", "org/model", None, COMMIT, None))


def test_a_half_downloaded_snapshot_is_missing(hub_cache: Path) -> None:
    write_model(hub_cache)
    (hub_cache / "model.safetensors").unlink()
    assert "cached without model.safetensors" in str(missing_target("hub", "org/model", None, COMMIT, None))


def test_a_branch_is_reported_before_anything_is_looked_up(hub_cache: Path) -> None:
    write_model(hub_cache)
    assert "'main' is not a commit hash" in str(missing_target("hub", "org/model", None, "main", None))
    assert [is_pinned(revision) for revision in (COMMIT, COMMIT[:-1], "main", None)] == [True, False, False, False]


def test_a_package_that_is_not_installed_is_missing_and_one_without_a_pin_is_wrong() -> None:
    assert "pip install --no-deps no-such-model==1" in str(missing_target(*NO_PACKAGE))
    assert "needs target.file and target.sha256" in str(missing_target("package", "a==1", None, None, None))


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target\.source: 'ftp' is none of"):
        resolve_target("ftp", "x", None, None, None)


def test_equal_folders_have_equal_hashes_wherever_they_are(tmp_path: Path) -> None:
    assert checkpoint_hash(write_model(tmp_path / "a")) == checkpoint_hash(write_model(tmp_path / "b"))


@pytest.mark.parametrize("change", ["weights", "config", "name", "cut"])
def test_a_change_changes_the_hash(tmp_path: Path, change: str) -> None:
    folder = write_model(tmp_path / "a")
    before = checkpoint_hash(folder)
    if change == "weights":
        write_model(tmp_path / "b", seed=1)
        os.replace(tmp_path / "b" / "model.safetensors", folder / "model.safetensors")
    elif change == "config":
        (folder / "config.json").write_text('{"model_type": "qwen3"}')
    elif change == "name":
        (folder / "tokenizer_config.json").rename(folder / "tokenizer.json")
    else:
        os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)
    assert checkpoint_hash(folder) != before


def test_two_trainings_too_large_to_be_read_whole_still_differ(tmp_path: Path) -> None:
    rows = 80_000  # 20 MB, above the size up to which a file is hashed whole
    one, other = (checkpoint_hash(write_model(tmp_path / str(seed), seed, rows)) for seed in (0, 1))
    assert one != other


def test_a_folder_with_another_hash_or_without_the_named_file_is_told_before_a_launch(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert missing_target("folder", str(folder), None, None, checkpoint_hash(folder)) is None
    assert missing_target("folder", str(folder), "config.json", None, None) is None
    wrong = str(missing_target("folder", str(folder), None, None, "0" * 64))
    assert wrong.startswith(f"target.sha256: {folder} has {checkpoint_hash(folder)} (checkpoint_hash), the rig pins 000")
    absent = str(missing_target("folder", str(folder), "model.gguf", None, None))
    assert absent == f"target.file: 'model.gguf' is not in {folder}; name a file of that folder, or set target.file=null"
