"""DFlash, both generations: what is drafted is what the published model drafts, and no text changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drafters.dense import DenseTarget
from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.dflash_config import DFlashConfig, default_taps
from drafters.serving import check_budget
from tests.drafters.dflash_cases import (
    RULES,
    TAPS,
    B,
    H,
    V,
    config_of,
    fake_target,
    naive_hidden,
    naive_logits,
    naive_walk,
    tensors_of,
    write,
)
from tests.drafters.loop_cases import generated, jobs, loop, prompts, run, tokens_of

CPU = torch.device("cpu")
CLASSES = {1: DFlashDrafter, 2: DFlash2Drafter}
# tokens behind the first, the anchor at their end; context [S, M]; drafts -> logits [K, V] and drafted tokens
Oracle = Callable[[list[int], Tensor, int], tuple[Tensor, list[int]]]
TRANSFORMED = {"input_embedding_scale": 1.7, "output_multiplier": 0.6, "final_logit_softcapping": 5.0}


def made(folder: Path, generation: int, config: dict[str, Any], target: Any = None) -> Any:
    location = write(folder, config, tensors_of(config))
    return CLASSES[generation](target or fake_target(), {}, location)


def naive_oracle(config: dict[str, Any], target: Any) -> Oracle:
    tensors = tensors_of(config)
    family = config["dflash_config"]

    def propose(text: list[int], taps_SM: Tensor, drafts: int) -> tuple[Tensor, list[int]]:
        ids = [text[-1], *[family["mask_token_id"]] * drafts]
        block = target.embedding[ids] * family.get("input_embedding_scale", 1.0)
        hidden = naive_hidden(config, tensors, taps_SM, block)[1:]
        logits = naive_logits(config, target.matrix, hidden)
        walked = (
            naive_walk(config, tensors, hidden, logits, text[-1]) if "selector_rank" in family else logits.argmax(-1).tolist()
        )
        return logits, walked

    return propose


def published_oracle(config: dict[str, Any], target: Any) -> Oracle:
    """z-lab's own model code, one request at a time and without its cache."""
    from dflash import model as model_code  # the environment installs it without its own pins
    from transformers import Qwen3Config

    second = "selector_rank" in config["dflash_config"]
    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    settings["use_sliding_window"] = "sliding_window" in config  # or transformers drops the window
    cls = model_code.DFlash2DraftModel if second else model_code.DFlashDraftModel
    model = cls(Qwen3Config(**settings)).eval()
    books = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
    model.load_state_dict({n + ".weight" * (n in books): t for n, t in tensors_of(config).items()}, strict=True)
    for layer, kind in zip(model.layers, config["layer_types"], strict=True):
        assert layer.self_attn.sliding_window == (config["sliding_window"] if kind == "sliding_attention" else None)

    def propose(text: list[int], taps_SM: Tensor, drafts: int) -> tuple[Tensor, list[int]]:
        ids = torch.tensor([[text[-1], *[config["dflash_config"]["mask_token_id"]] * drafts]])
        embedded = target.embedding[ids] * config["dflash_config"].get("input_embedding_scale", 1.0)
        positions = torch.arange(taps_SM.shape[0] + drafts + 1)[None]
        hidden = model(positions, noise_embedding=embedded, target_hidden=taps_SM[None])[:, -drafts:]
        logits = model.compute_logits(hidden, target.head)
        tokens = model.propose(hidden, ids[:, 0], target.head, 0.0)[0] if second else logits.argmax(-1)
        return logits[0], tokens[0].tolist()

    return propose


def follow(drafter: Any, oracle: Oracle, cycles: int, seed: int = 0) -> None:
    """Three requests over several cycles with random accept lengths; every draft and every logit against the oracle."""
    random, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    slots = [2, 0, 3]
    contexts = [torch.empty(0, H * len(TAPS)) for _ in slots]
    texts: list[list[int]] = [[] for _ in slots]

    def observe(counts: list[int]) -> None:
        hidden = torch.randn((len(slots), max(counts), H * len(TAPS)), generator=noise)
        tokens = torch.from_numpy(random.integers(0, V, (len(slots), max(counts))))
        drafter.observe(slots, hidden, tokens, counts)
        for r, count in enumerate(counts):
            contexts[r] = torch.cat((contexts[r], hidden[r, :count]))
            texts[r] += tokens[r, :count].tolist()

    observe(random.integers(1, 12, 3).tolist())
    for _ in range(cycles):
        budgets = random.integers(1, B, 3).tolist()
        states = drafter.states(slots, torch.tensor([text[-1] for text in texts]), budgets)
        logits = drafter.logits(drafter.predicting(states))
        draft = drafter.propose(slots, budgets)
        assert draft.lengths == budgets
        for r, budget in enumerate(budgets):
            expected, tokens = oracle(texts[r], contexts[r], budget)
            torch.testing.assert_close(logits[r, :budget], expected, rtol=1e-4, atol=1e-4)
            assert draft.tokens_RK[r, :budget].tolist() == tokens
        observe([int(random.integers(0, budget + 1)) + 1 for budget in budgets])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("generation", [1, 2])
@torch.inference_mode()
def test_logits_and_drafts_are_those_of_the_published_model_over_cycles_of_random_acceptance(tmp_path, generation, rule):
    config, target = config_of(generation, rule, **TRANSFORMED), fake_target()
    follow(made(tmp_path, generation, config, target), published_oracle(config, target), 8)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("generation", [1, 2])
@torch.inference_mode()
def test_logits_and_drafts_are_those_of_a_naive_model_written_from_the_specification(tmp_path, generation, rule):
    config, target = config_of(generation, rule, **TRANSFORMED), fake_target()
    follow(made(tmp_path, generation, config, target), naive_oracle(config, target), 1)


def rows(count: int, width: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    hidden = torch.randn((count, width, H * len(TAPS)), generator=noise)
    return hidden, torch.randint(V, (count, width), generator=noise)


def proposal(drafter: Any, slots: Sequence[int], budgets: Sequence[int]) -> list[list[int]]:
    draft = drafter.propose(slots, budgets)
    return [row[:n] for row, n in zip(draft.tokens_RK.tolist(), draft.lengths, strict=True)]


@torch.inference_mode()
def test_a_request_without_a_budget_drafts_nothing_and_moves_no_other(tmp_path):
    drafter = made(tmp_path, 1, config_of(1))
    hidden, tokens = rows(2, 6)
    drafter.observe([0, 1], hidden, tokens, [6, 6])
    assert drafter.propose([0, 1], [0, -1]) is None
    assert proposal(drafter, [0, 1], [0, 4]) == [[], proposal(drafter, [1], [4])[0]]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_budget_above_the_trained_block_is_refused_in_one_line_and_below_it_is_served(tmp_path, generation):
    drafter = made(tmp_path, generation, config_of(generation))
    drafter.observe([0], *rows(1, 4), [4])
    with pytest.raises(ValueError, match=r"draft_budget: 8 drafts .* set draft_budget to 7 or less") as refusal:
        drafter.propose([0], [B])
    assert "\n" not in str(refusal.value)
    check_budget(drafter, B - 1)
    with pytest.raises(ValueError, match="set draft_budget to 7 or less"):  # at launch, before any request
        check_budget(drafter, B)
    assert [len(proposal(drafter, [0], [n])[0]) for n in range(1, B)] == list(range(1, B))


@pytest.fixture
def target(checkpoint) -> DenseTarget:
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=8, max_length=128)


@pytest.mark.parametrize("limit", [1, 2, 3, 6])
def test_a_limit_or_a_stop_token_inside_a_block_ends_the_text_there(checkpoint, target, tmp_path, limit):
    text = prompts(1)[0]
    truth = generated(checkpoint("llama")[1], [text], 20, eos=None)[0]
    drafter = made(tmp_path, 2, config_of(2), target)
    assert tokens_of(run(loop(target, drafter, 7), jobs([text], limit), 1)["0"]) == truth[:limit]
    stopped = run(loop(target, drafter, 7), jobs([text], 20, [truth[limit]]), 1)["0"]
    assert tokens_of(stopped) == truth[: truth.index(truth[limit]) + 1]
    assert drafter.cache.length(0) == 0


def broken(tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None], generation: int = 1) -> str:
    """The one line in which a changed checkpoint is refused."""
    config = config_of(generation)
    tensors = tensors_of(config)
    change(config, tensors)
    location = write(tmp_path, config, tensors)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (every caller checks the text)
        CLASSES[generation](fake_target(), {}, location)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    family = "dflash_config"
    assert "layers.1.mlp.up_proj.weight" in broken(tmp_path, lambda c, t: t.pop("layers.1.mlp.up_proj.weight"))
    assert "'extra'" in broken(tmp_path, lambda c, t: t.update(extra=torch.ones(1)))
    assert "'fc.weight'" in broken(tmp_path, lambda c, t: t.update({"fc.weight": torch.ones(H, H)}))
    assert "target_layer_ids" in broken(tmp_path, lambda c, t: c[family].update(target_layer_ids=[0, 3]))
    assert "mask_token_id" in broken(tmp_path, lambda c, t: c[family].pop("mask_token_id"))
    assert "mask_token_id 160" in broken(tmp_path, lambda c, t: c[family].update(mask_token_id=V))
    assert "projector_type" in broken(tmp_path, lambda c, t: c[family].update(projector_type="domino"))
    assert "sliding_window" in broken(tmp_path, lambda c, t: c.update(layer_types=["sliding_attention"] * 3))
    assert "hidden_size" in broken(tmp_path, lambda c, t: c.update(hidden_size=64))
    assert "vocab_size" in broken(tmp_path, lambda c, t: c.update(vocab_size=1000))
    assert "conv_group_size" in broken(tmp_path, lambda c, t: c[family].pop("conv_group_size"), 2)
    assert "conv_group_size 10" in broken(tmp_path, lambda c, t: c[family].update(conv_group_size=10), 2)
    assert "successor_codebook" in broken(tmp_path, lambda c, t: t.pop("candidate_selector.successor_codebook"), 2)
    with pytest.raises(ValueError, match="checkpoint: DFlashDrafter needs trained weights"):
        DFlashDrafter(fake_target(), {}, None)
    with pytest.raises(ValueError, match=r"options\.sample: DFlashDrafter has no such option"):
        DFlashDrafter(fake_target(), {"sample": True}, str(tmp_path))


@torch.inference_mode()
def test_the_speculators_format_reads_to_the_same_drafter(tmp_path):
    """Nested decoder keys, ids of layer inputs, and a reduced head of its own whose rows are tokens by offset."""
    plain = config_of(1, "legacy")
    family, body = plain.pop("dflash_config"), dict(plain)
    named = {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [i + 1 for i in TAPS], "block_size": B}
    nested = {"transformer_layer_config": body, "mask_token_id": family["mask_token_id"], "draft_vocab_size": V // 2}
    config, target = config_of(1, "legacy"), fake_target()
    kept = torch.arange(0, V, 2)
    own = {"lm_head.weight": target.matrix[kept], "d2t": kept - torch.arange(V // 2), "t2d": torch.arange(V) % 2 == 0}
    reduced = DFlashDrafter(target, {}, write(tmp_path / "reduced", named | nested, tensors_of(config) | own))
    whole = made(tmp_path / "whole", 1, config, target)
    for drafter in (reduced, whole):
        drafter.observe([0], *rows(1, 9), [9])
    even = whole.logits(whole.states([0], torch.tensor([whole.anchors[0]]), [7])[:, 1:])[..., ::2].argmax(-1) * 2
    assert proposal(reduced, [0], [7]) == even.tolist()
    assert reduced.taps == whole.taps == tuple(TAPS)


def test_default_taps_are_spread_as_the_published_ones():
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(64, 5) == (1, 16, 31, 46, 61)
    assert default_taps(24, 5) == (1, 6, 11, 16, 21)
    assert default_taps(30, 1) == (15,)


@pytest.mark.parametrize(
    ("stated", "causal"),
    [
        ({}, (True, False, True)),
        ({"is_causal": False}, (False, False, False)),
        ({"is_causal": True}, (True, True, True)),
        ({"dflash_config": {"causal": False}}, (False, False, False)),
        ({"is_causal": True, "dflash_config": {"causal": False}}, (True, True, True)),
        ({"sliding_window_non_causal": True}, (False, False, False)),
    ],
)
def test_is_causal_goes_before_the_inner_key_and_that_before_the_layer_type(stated, causal):
    raw = config_of(1, "legacy")
    family = raw["dflash_config"] | stated.get("dflash_config", {})
    config = DFlashConfig.read(raw | stated | {"dflash_config": family}, 3)
    assert config.causal == causal
    assert config.windows == (6, None, 6)
