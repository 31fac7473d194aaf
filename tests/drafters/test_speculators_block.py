"""DFlash, DFlash 2, DSpark and xPress against `speculators`: its models, saved by itself, read and drafted with by us.

Its forward pass is that of training: blocks behind anchors in whole texts, with what was drafted before a slot given as text.
One anchor at the end of a text, and behind it what its own heads chose, gives what serving computes. Two things of training are
not of serving: its blocks are always whole, so its model is told here how many rows a draft has; and its sliding window counts
from the anchor for every row of the block (serving, z-lab's and vLLM's, from the row), so windows here are wider than texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.dspark import core as dspark_core
from speculators.models.xpress import XPressDraftModel, XPressSpeculatorConfig
from speculators.models.xpress import core as xpress_core
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from torch import Tensor, nn
from transformers import Qwen3Config

from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.dspark import DSparkDrafter
from drafters.xpress import XPressDrafter
from tests.drafters.dflash_cases import MLP, TAPS, THETA, B, D, H, J, Q, V, fake_target
from tests.drafters.test_dflash import Oracle, follow
from tests.drafters.test_speculators_serial import proposing, saved

RANK, PASSES = 6, 2
ROPE = {"rope_type": "default", "rope_theta": THETA}
FULL, MIXED = ["full_attention"] * 3, ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Kind:
    """A published kind: its two classes, ours, and the keys that it adds to a configuration."""

    config: type
    model: type
    drafter: type[DFlashDrafter]
    keys: dict[str, Any]


KINDS = {
    "dflash": Kind(DFlashSpeculatorConfig, DFlashDraftModel, DFlashDrafter, {}),
    "dflash2": Kind(DFlash2SpeculatorConfig, DFlash2DraftModel, DFlash2Drafter, {"selector_rank": RANK, "selector_top_k": 5}),
    "dspark": Kind(DSparkSpeculatorConfig, DSparkDraftModel, DSparkDrafter, {"markov_rank": RANK}),
    "xpress": Kind(
        XPressSpeculatorConfig,
        XPressDraftModel,
        XPressDrafter,
        {"xpress_rank": RANK, "xpress_mlp_ratio": 3, "num_jacobi_passes": PASSES},
    ),
}


# What changes drafts beside the attention and the MLP: without it, a comparison must fail.
HEADS = {
    "dflash": ["hidden_norm.weight"],
    "dflash2": ["candidate_selector.successor_codebook", "layers.0.attention_conv.kernel_projection.weight"],
    "dspark": ["markov_head.markov_w2.weight"],
    "xpress": ["refiner_head.readout.weight", "refiner_head.mix_l"],
}


def published(name: str, layer_types: list[str] = FULL, draft_vocab: int = V, **keys: Any) -> Any:
    """A model of that kind with random weights, the table and head of `fake_target`."""
    kind = KINDS[name]
    sizes = {"hidden_size": H, "intermediate_size": MLP, "num_attention_heads": Q, "num_key_value_heads": J, "head_dim": D}
    window = {"use_sliding_window": True, "sliding_window": 500} if layer_types != FULL else {}
    layers = {"num_hidden_layers": len(layer_types), "layer_types": layer_types, "vocab_size": V, "rope_parameters": ROPE}
    body = Qwen3Config(**sizes, **layers, **window, rms_norm_eps=1e-6, attn_implementation="eager")
    tapped = [tap + 1 for tap in TAPS]  # as it numbers them: by what enters a layer
    fixed = {"block_size": B, "mask_token_id": V - 1, "aux_hidden_state_layer_ids": tapped, "draft_vocab_size": draft_vocab}
    model = kind.model(
        kind.config(transformer_layer_config=body, speculators_config=proposing(name, B - 1), **fixed, **kind.keys, **keys)
    )
    _randomise(model)
    if draft_vocab != V:
        d2t, t2d = build_vocab_mappings_from_distribution({t: 1 + t * 7 % 13 for t in range(V)}, draft_vocab, V)
        model.load_vocab_mappings(t2d, d2t)
    return model


@torch.no_grad()
def _randomise(model: nn.Module) -> None:
    noise, target = torch.Generator().manual_seed(3), fake_target()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        drawn = torch.randn(parameter.shape, generator=noise)
        one_dimensional = parameter.dim() == 1 and "bias" not in name
        parameter.copy_(1 + 0.3 * drawn if one_dimensional else drawn * 1.2 / parameter.shape[-1] ** 0.5)
        if any(table in name for table in ("codebook", "markov_w", "token_embed", "readout")):
            parameter.copy_(drawn)
    model.embed_tokens.weight.copy_(target.embedding)
    if model.d2t is None:
        model.lm_head.weight.copy_(target.matrix)
    model.eval()


def inputs(text: list[int], taps_SM: Tensor, following: list[int], rows: int) -> dict[str, Any]:
    """A text with its anchor at the end, and behind it room for a block; the one place where an anchor is allowed."""
    # What stood before the first observed token was never told; ours takes that token in its place.
    ids = torch.tensor([[text[0], *text, *following, *[0] * (rows + 1 - len(following))]])
    hidden = torch.zeros(1, ids.shape[1], taps_SM.shape[1])
    hidden[0, : len(text)] = taps_SM
    allowed = torch.zeros_like(ids)
    allowed[0, len(text)] = 1
    shared = {"input_ids": ids, "loss_mask": allowed, "document_ids": torch.zeros_like(ids), "max_anchors": 1}
    return {"hidden_states": hidden, "verifier_last_hidden_states": torch.zeros(1, ids.shape[1], H), **shared}


@contextmanager
def rows_of(model: Any, rows: int) -> Iterator[None]:
    """The model with blocks of `rows` rows, as a shorter draft has; xPress mixes the rows that there are."""
    head = getattr(model, "refiner_head", None)
    whole = None if head is None else (head.mix_l, head.causal_tril)
    model.block_size = rows
    if head is not None:
        head.mix_l = nn.Parameter(head.mix_l[:, :rows, :rows], requires_grad=False)
        head.causal_tril = head.causal_tril[:rows, :rows]
    yield
    model.block_size = B
    if head is not None and whole is not None:
        head.mix_l, head.causal_tril = whole


def tokens_of(model: Any, rows: Tensor) -> list[int]:
    ids: Tensor = rows if model.d2t is None else rows + model.d2t[rows]
    return [int(token) for token in ids]


def recorded(core: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a forward pass hands to its loss, call by call."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(core, "compute_metrics", lambda *args, **_: (seen.append(args), (torch.zeros(()), {}))[1])
    return seen


def oracle_of(name: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    first = 0 if model.config.sample_from_anchor else 1
    seen = recorded(dspark_core if name == "dspark" else xpress_core, monkeypatch) if name in ("dspark", "xpress") else []

    def walked(hidden: Tensor, logits: Tensor, anchor: int) -> list[int]:
        path = [anchor]
        for k in range(hidden.shape[1]):
            ids, scores = model.candidate_selector.select(
                logits[:, k : k + 1], hidden[:, k : k + 1], torch.tensor([[path[-1]]])
            )
            path.append(int(ids[0, 0, scores[0, 0].argmax()]))
        return path[1:]

    def one_by_one(given: Callable[[list[int]], dict[str, Any]], drafts: int) -> list[int]:
        drafted: list[int] = []
        for k in range(drafts):
            model(**given(drafted))
            drafted += tokens_of(model, seen[-1][0][0, first + k].argmax(-1, keepdim=True))
        return drafted

    def propose(text: list[int], taps_SM: Tensor, drafts: int) -> tuple[Tensor, list[int]]:
        rows = drafts + first
        with rows_of(model, rows):
            hidden, logits, *_ = model._backbone_forward(**inputs(text, taps_SM, [], rows))
            hidden, logits = hidden[:, first:], logits[:, first:]
            if name == "dflash2":
                return logits[0], walked(hidden, logits, text[-1])
            if name == "dspark":
                return logits[0], one_by_one(lambda drafted: inputs(text, taps_SM, drafted, rows), drafts)
            if name == "xpress":
                model(**inputs(text, taps_SM, [], rows), consistency_passes=min(PASSES, drafts))
                return logits[0], tokens_of(model, seen[-1][1][-1][0, first:].argmax(-1))
            return logits[0], tokens_of(model, logits[0].argmax(-1))

    return propose


def followed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, cycles: int = 3, **keys: Any) -> None:
    model = published(name, **keys)
    drafter = KINDS[name].drafter(fake_target(), {}, saved(model, folder))
    follow(drafter, oracle_of(name, model, monkeypatch), cycles)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("layer_types", [FULL, MIXED], ids=["full", "mixed"])
@torch.inference_mode()
def test_what_speculators_saved_drafts_what_speculators_computes(name, layer_types, tmp_path, monkeypatch):
    followed(name, tmp_path, monkeypatch, 6, layer_types=layer_types)


@pytest.mark.parametrize("name", ["dflash", "dspark"])
@torch.inference_mode()
def test_a_reduced_vocabulary_is_that_of_speculators(name, tmp_path, monkeypatch):
    followed(name, tmp_path, monkeypatch, draft_vocab=V // 2)


@pytest.mark.parametrize(("name", "anchor"), [("dflash", True), ("dflash2", True), ("dspark", False)])
@torch.inference_mode()
def test_the_other_rule_for_the_anchors_row_is_that_of_speculators(name, anchor, tmp_path, monkeypatch):
    followed(name, tmp_path, monkeypatch, sample_from_anchor=anchor)


@torch.inference_mode()
def test_sliding_layers_are_causal_inside_a_block_or_not_as_speculators_says(tmp_path, monkeypatch):
    followed("dflash", tmp_path / "not", monkeypatch, layer_types=MIXED, sliding_window_non_causal=True)
    followed("dflash2", tmp_path / "causal", monkeypatch, layer_types=MIXED, sliding_window_non_causal=False)


@torch.inference_mode()
def test_a_draft_is_cut_where_the_confidence_of_speculators_says(tmp_path, monkeypatch):
    model, seen = published("dspark"), recorded(dspark_core, monkeypatch)
    taps, tokens = torch.randn(1, 9, H * len(TAPS)), torch.randint(0, V - 1, (1, 9))
    text, lengths = tokens[0].tolist(), set()
    folder = saved(model, tmp_path)
    full = DSparkDrafter(fake_target(), {}, folder)
    full.observe([0], taps, tokens, [9])
    drafted = full.propose([0], [B]).tokens_RK[0].tolist()
    model(**inputs(text, taps[0], drafted, B))
    survival = seen[-1][2][0].sigmoid().cumprod(0)
    for least in (0.01, float(survival[2]) - 1e-4, float(survival[2]) + 1e-4, 0.9):
        cut = DSparkDrafter(fake_target(), {"confidence": least}, folder)
        cut.observe([0], taps, tokens, [9])
        draft = cut.propose([0], [B])
        lengths.add(expected := int((survival >= least).sum()))
        assert (0 if draft is None else draft.lengths[0]) == expected
    assert len(lengths) > 2


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_the_comparison_notices_a_tap_of_another_position_and_a_head_that_does_nothing(name, tmp_path, monkeypatch):
    model = published(name)
    drafter = KINDS[name].drafter(fake_target(), {}, saved(model, tmp_path))
    oracle = oracle_of(name, model, monkeypatch)
    with pytest.raises(AssertionError):
        follow(drafter, lambda text, taps, drafts: oracle(text, taps.roll(1, 0), drafts), 2)
    for head in HEADS[name]:
        kept = model.get_parameter(head).clone()
        model.get_parameter(head).zero_()
        with pytest.raises(AssertionError):
            follow(KINDS[name].drafter(fake_target(), {}, str(tmp_path)), oracle, 4)
        model.get_parameter(head).copy_(kept)


def test_what_of_the_format_is_not_implemented_is_refused_by_its_key(tmp_path):
    gated = published("dspark", markov_head_type="gated")
    with pytest.raises(ValueError, match="markov_head_type 'gated' is not implemented"):
        DSparkDrafter(fake_target(), {}, saved(gated, tmp_path / "gated"))
    with pytest.raises(ValueError, match="draft_vocab_size 80: the refiner of xPress spans the whole vocabulary"):
        XPressDrafter(fake_target(), {}, saved(published("xpress", draft_vocab=80), tmp_path / "reduced"))
    with pytest.raises(ValueError, match="sample_from_anchor is true, and xPress fills in masks"):
        XPressDrafter(fake_target(), {}, saved(published("xpress", sample_from_anchor=True), tmp_path / "anchor"))
