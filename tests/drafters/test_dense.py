"""`DenseTarget` against transformers, on tiny random models of each family and on the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from drafters.dense import SCRATCH_ROWS, DenseTarget
from tests.drafters.conftest import FAMILIES

CPU = torch.device("cpu")
TOLERANCE = 1e-4


def dense(folder: Path, slots: int = 4, max_length: int = 128, dtype: torch.dtype = torch.float32) -> DenseTarget:
    return DenseTarget(folder, dtype, CPU, slots, max_length)


def text(rows: int, length: int, vocab: int = 160, seed: int = 0) -> Tensor:
    return torch.randint(2, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(checkpoint, family):
    folder, model = checkpoint(family)
    tokens = text(3, 100)
    out = dense(folder).forward([0, 1, 3], tokens, [100] * 3, last_only=False)
    assert apart(out.logits_RTV, model(tokens).logits) < TOLERANCE


def test_logits_of_the_embedded_model_equal_those_of_transformers(embedded_folder):
    model = AutoModelForCausalLM.from_pretrained(embedded_folder, dtype=torch.float32)
    tokens = text(2, 40, 49152)
    target = dense(embedded_folder, slots=2, max_length=64)
    prefill = target.forward([0, 1], tokens[:, :30], [30, 30], last_only=False)
    target.commit([0, 1], [30, 30])
    narrow = target.forward([0, 1], tokens[:, 30:], [10, 10], last_only=False)
    with torch.inference_mode():
        truth = model(tokens).logits
    assert apart(torch.cat((prefill.logits_RTV, narrow.logits_RTV), dim=1), truth) < 1e-4 * truth.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_any_pattern_of_commits_leaves_what_one_pass_over_the_committed_text_leaves(checkpoint, family):
    folder, model = checkpoint(family)
    target = dense(folder)
    random = torch.Generator().manual_seed(3)
    committed: dict[int, list[int]] = {0: [], 2: [], 3: []}
    for step in range(12):
        slots = [[0, 2], [3], [0, 2, 3], [2, 3]][step % 4]
        width = int(torch.randint(1, 7, (), generator=random))
        tokens = torch.randint(2, 160, (len(slots), width), generator=random)
        out = target.forward(slots, tokens, [width] * len(slots), last_only=False)
        for row, slot in enumerate(slots):
            whole = torch.tensor([[*committed[slot], *tokens[row].tolist()]])
            assert apart(out.logits_RTV[row], model(whole).logits[0, -width:]) < TOLERANCE
        kept = torch.randint(0, width + 1, (len(slots),), generator=random).tolist()
        target.commit(slots, kept)
        for row, slot in enumerate(slots):
            committed[slot] += tokens[row, : kept[row]].tolist()
            assert target.length(slot) == len(committed[slot])


def test_taps_are_the_outputs_of_layers_and_of_the_final_norm(checkpoint):
    folder, model = checkpoint("llama")
    tokens = text(2, 20)
    seen: list[Tensor] = []
    hook = model.model.layers[2].register_forward_hook(lambda module, args, out: seen.append(out))
    states = model(tokens, output_hidden_states=True).hidden_states
    hook.remove()
    out = dense(folder).forward([0, 1], tokens, [20, 20], last_only=False, taps=(0, 1, 2, "final"))
    assert out.hidden_RTM is not None
    first, second, third, final = out.hidden_RTM.chunk(4, dim=-1)
    assert apart(first, states[1]) < TOLERANCE
    assert apart(second, states[2]) < TOLERANCE
    assert apart(third, seen[0]) < TOLERANCE
    assert apart(final, states[3]) < TOLERANCE


def test_last_only_gives_the_logits_of_each_requests_last_real_row(checkpoint):
    folder, _ = checkpoint("qwen3")
    tokens = text(2, 9)
    target = dense(folder)
    every = target.forward([0, 1], tokens, [9, 5], last_only=False).logits_RTV
    last = target.forward([0, 1], tokens, [9, 5], last_only=True).logits_RTV
    assert last.shape[1] == 1
    assert apart(last[:, 0], torch.stack((every[0, 8], every[1, 4]))) < TOLERANCE


def test_padding_rows_change_nothing_for_anyone(checkpoint):
    folder, _ = checkpoint("llama")
    tokens = text(2, 8)
    alone = dense(folder).forward([0], tokens[:1, :3], [3], last_only=False).logits_RTV
    beside = dense(folder).forward([0, 1], tokens, [3, 8], last_only=False).logits_RTV
    assert apart(alone[0], beside[0, :3]) < TOLERANCE


def test_a_released_slot_starts_clean(checkpoint):
    folder, model = checkpoint("llama")
    target = dense(folder)
    target.forward([1], text(1, 30, seed=1), [30], last_only=False)
    target.commit([1], [30])
    target.release(1)
    tokens = text(1, 10, seed=2)
    assert apart(target.forward([1], tokens, [10], last_only=False).logits_RTV, model(tokens).logits) < TOLERANCE


def test_bfloat16_stays_near_float32(checkpoint):
    folder, model = checkpoint("qwen2")
    tokens = text(1, 50)
    logits = dense(folder, dtype=torch.bfloat16).forward([0], tokens, [50], last_only=False).logits_RTV.float()
    truth = model(tokens).logits
    assert apart(logits, truth) < 0.1 * truth.abs().max()


def test_a_slot_that_would_overflow_is_refused(checkpoint):
    folder, _ = checkpoint("llama")
    target = dense(folder, max_length=16)
    with pytest.raises(ValueError, match="slot overflow"):
        target.forward([0], text(1, 17 + SCRATCH_ROWS), [17 + SCRATCH_ROWS], last_only=False)


def test_memory_counts_each_parameter_once_and_a_packed_copy_of_the_tied_head(checkpoint):
    folder, model = checkpoint("llama")
    tied_folder, tied = checkpoint("llama_tied")
    assert dense(folder).memory()["weights"] == sum(p.nbytes for p in model.parameters())
    target = dense(tied_folder)
    copy = tied.lm_head.weight.nbytes if target.head.packed else 0
    assert target.memory()["weights"] == sum(p.nbytes for p in tied.parameters()) + copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not a dense family"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding windows"),
    ],
)
def test_a_config_that_is_not_dense_is_refused_with_the_way_out(checkpoint, tmp_path, change, message):
    folder, _ = checkpoint("llama")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=message) as caught:
        dense(tmp_path)
    assert "TransformersTarget" in str(caught.value)


def test_a_missing_tensor_is_named(checkpoint, tmp_path):
    folder, _ = checkpoint("llama")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"model\.layers\.3\.input_layernorm\.weight"):
        dense(tmp_path)
