"""MTP against naive recomputation with transformers' own decoder layers, in the names of every published family."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Glm4MoeConfig, LlamaConfig, Qwen2Config, Qwen3NextConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer, Glm4MoeRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer, Qwen3NextRotaryEmbedding

from drafters.mtp import MtpDrafter, load_mtp
from tests.drafters.serial_cases import (
    VOCAB,
    Cycles,
    Oracle,
    assert_batch_order_is_free,
    assert_cycles_match,
    assert_invariant,
    prompts,
    served,
    states_of,
    target_of,
)

OPTIONS = {"feature": "post_norm", "recycle": "post_norm", "zero_first_embedding": False, "modules": 1}
H = 48
SIZES = {
    "hidden_size": H,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


@dataclass
class Family:
    """A family as published: its config, layer, names of the four tensors around the layer, and its arithmetic."""

    config: object
    layer: type
    rotary: type
    prefix: str
    inner: str
    names: tuple[str, str, str, str]
    add_one: bool = False
    state_first: bool = False


DEEPSEEK_NAMES = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
FAMILIES = {
    "deepseek": Family(LlamaConfig(**SIZES), LlamaDecoderLayer, LlamaRotaryEmbedding, "model.layers.61.", "", DEEPSEEK_NAMES),
    "glm": Family(
        Glm4MoeConfig(**SIZES, attention_bias=True, use_qk_norm=True, first_k_dense_replace=1, rope_parameters=PARTIAL),
        Glm4MoeDecoderLayer,
        Glm4MoeRotaryEmbedding,
        "model.layers.46.",
        "",
        DEEPSEEK_NAMES,
    ),
    "qwen": Family(
        Qwen3NextConfig(**SIZES, num_experts=0, layer_types=["full_attention"], rope_parameters=PARTIAL),
        Qwen3NextDecoderLayer,
        Qwen3NextRotaryEmbedding,
        "mtp.",
        "layers.0.",
        ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
        add_one=True,
    ),
    "mimo": Family(
        Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"}),
        Qwen2DecoderLayer,
        Qwen2RotaryEmbedding,
        "model.mtp_layers.0.",
        "",
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
        state_first=True,
    ),
}


def module_of(family: Family, seed: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """transformers' layer with random weights, and the four tensors around it, by DeepSeek's names."""
    torch.manual_seed(seed)
    family.config._attn_implementation = "eager"
    layer = family.layer(family.config, 0).eval()
    for parameter in layer.parameters():
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
        if parameter.dim() == 1 and not family.add_one:
            parameter.data += 1
    around = {name: torch.randn(H) * 0.3 + (not family.add_one) for name in ("enorm", "hnorm", "shared_head.norm")}
    return layer, around | {"eh_proj": torch.randn(H, 2 * H) * (2 * H) ** -0.5}


def published(family: Family, layer: nn.Module, around: dict[str, Tensor], prefix: str | None = None) -> dict[str, Tensor]:
    at = family.prefix if prefix is None else prefix
    names = dict(zip(DEEPSEEK_NAMES, family.names, strict=True))
    tensors = {f"{at}{names[name]}.weight": tensor for name, tensor in around.items()}
    tensors |= {f"{at}{family.inner}{name}": tensor.detach().clone() for name, tensor in layer.named_parameters()}
    return tensors


def write(folder: Path, family: str = "deepseek", modules: int = 1, extra: dict[str, Tensor] | None = None, **keys) -> str:
    """A folder of its own with this family's module in it; keys are put on top of its config."""
    folder.mkdir(exist_ok=True)
    kind, tensors = FAMILIES[family], {}
    for m in range(modules):
        prefix = kind.prefix if m == 0 else f"model.layers.{61 + m}."
        tensors |= published(kind, *module_of(kind, m), prefix)
    (folder / "config.json").write_text(json.dumps({**kind.config.to_dict(), **keys}))
    tensors = {name: tensor for name, tensor in (tensors | (extra or {})).items() if tensor is not None}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def rows_of(family: Family, layer: nn.Module, around: dict[str, Tensor]):
    """A full causal pass by transformers' layer behind the published projection."""
    rotary = family.rotary(family.config)

    @torch.no_grad()
    def rows(embedded: Tensor, features: Tensor) -> Tensor:
        count = len(embedded)
        e, h = norm(family, around["enorm"], embedded), norm(family, around["hnorm"], features)
        z = (torch.cat((h, e) if family.state_first else (e, h), dim=-1) @ around["eh_proj"].T)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        out = layer(z, position_embeddings=rotary(z, torch.arange(count)[None]), attention_mask=mask)
        return (out[0] if isinstance(out, tuple) else out).reshape(count, H)

    return rows


def norm(family: Family, weight: Tensor, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight + family.add_one, family.config.rms_norm_eps)


def oracle_of(model, name: str, recycle: str = "post_norm", feature: str = "post_norm", zero_first: bool = False) -> Oracle:
    family = FAMILIES[name]
    layer, around = module_of(family)

    def read(out: Tensor) -> tuple[Tensor, Tensor]:
        state = norm(family, around["shared_head.norm"], out)
        return state, state if recycle == "post_norm" else out

    return Oracle(
        states=states_of(model, ["final" if feature == "post_norm" else "last"]),
        embedding=model.get_input_embeddings().weight.detach(),
        fuse=lambda state: state,
        rows=rows_of(family, layer, around),
        read=read,
        logits=lambda state: state @ model.lm_head.weight.detach().T,
        zero_first=zero_first,
    )


@pytest.fixture(scope="module")
def llama(checkpoint, tmp_path_factory):
    """A target whose final norm has random weights: with ones, a state before it and one behind it look the same to `hnorm`."""
    model, folder = deepcopy(checkpoint("llama")[1]), tmp_path_factory.mktemp("uneven")
    torch.manual_seed(1)
    model.model.norm.weight.data = 1 + 0.5 * torch.randn(H)
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recycle", ["post_norm", "pre_norm"])
def test_logits_and_drafts_are_those_of_full_recomputation_in_every_family(llama, tmp_path, family, recycle):
    target = target_of(llama[0])
    drafter = MtpDrafter(target, {**OPTIONS, "recycle": recycle}, write(tmp_path / family, family))
    assert_cycles_match(target, drafter, oracle_of(llama[1], family, recycle), cycles=3)


def test_the_state_before_the_final_norm_and_the_zeroed_first_embedding_are_options(llama, tmp_path):
    folder, target = write(tmp_path / "mimo", "mimo"), target_of(llama[0])
    options = {**OPTIONS, "feature": "pre_norm", "zero_first_embedding": True}
    drafter = MtpDrafter(target, options, folder)
    assert drafter.taps == (2,)
    assert_cycles_match(target, drafter, oracle_of(llama[1], "mimo", feature="pre_norm", zero_first=True), cycles=2)
    for wrong in ({"feature": "post_norm"}, {"feature": "pre_norm", "zero_first": False}):
        drafter = MtpDrafter(target_of(llama[0]), options, folder)
        with pytest.raises(AssertionError):
            assert_cycles_match(
                target_of(llama[0]), drafter, oracle_of(llama[1], "mimo", **{"zero_first": True, **wrong}), cycles=1
            )


def drafts_of(llama, folder: str, change: Callable[[MtpDrafter], None] = lambda _: None, budget: int = 4, **options) -> list:
    target = target_of(llama[0])
    drafter = MtpDrafter(target, {**OPTIONS, **options}, folder)
    change(drafter)
    run = Cycles(target, drafter, [0, 1])
    run.prefill([12, 20])
    return [run.cycle(budget)[0] for _ in range(3)]


def test_a_module_inside_the_targets_own_checkpoint_is_found_there(llama, tmp_path):
    """DeepSeek's and Qwen's place: behind the target's layers, among its tensors, which are left alone."""
    alone = write(tmp_path / "alone", **{})
    kind = FAMILIES["deepseek"]
    inside = tmp_path / "inside"
    inside.mkdir()
    copies = {
        "model.layers.3.embed_tokens.weight": torch.zeros(VOCAB, H),
        "model.layers.3.shared_head.head.weight": torch.zeros(VOCAB, H),
    }
    tensors = load_file(llama[0] / "model.safetensors") | published(kind, *module_of(kind), "model.layers.3.") | copies
    save_file(tensors, inside / "model.safetensors")
    (inside / "config.json").write_text((Path(alone) / "config.json").read_text())
    assert drafts_of(llama, str(inside)) == drafts_of(llama, alone)
    save_file(tensors | {"model.layers.3.extra": torch.ones(2)}, inside / "model.safetensors")
    with pytest.raises(ValueError, match=r"'model\.layers\.3\.extra' is not used"):
        drafts_of(llama, str(inside))


def test_sizes_nested_in_text_config_are_read(llama, tmp_path):
    folder = write(tmp_path / "a", "qwen")
    truth = drafts_of(llama, folder)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": config}))
    assert drafts_of(llama, folder) == truth


def test_training_saves_a_module_by_its_state_dict_and_it_drafts_the_same(llama, tmp_path):
    folder = write(tmp_path / "qwen", "qwen")
    [network] = load_mtp(folder, target_of(llama[0]), 1, recycle_normed=True)
    own = tmp_path / "own"
    own.mkdir()
    save_file(network.state_dict(), own / "model.safetensors")
    (own / "config.json").write_text((Path(folder) / "config.json").read_text())
    assert set(network.state_dict()) > {"enorm.weight", "eh_proj.weight", "self_attn.q_proj.weight", "shared_head.norm.weight"}
    assert drafts_of(llama, str(own)) == drafts_of(llama, folder)


def makers(llama, tmp_path) -> dict[int, Callable[[], MtpDrafter]]:
    folder = write(tmp_path / "several", modules=7)
    return {m: lambda m=m: MtpDrafter(target_of(llama[0]), {**OPTIONS, "modules": m}, folder) for m in (1, 5, 7)}


@pytest.mark.parametrize("modules", [1, 5])
def test_after_any_accept_pattern_the_draft_cache_is_that_of_one_pass(llama, tmp_path, modules):
    assert_invariant(target_of(llama[0]), makers(llama, tmp_path)[modules])


@pytest.mark.parametrize("modules", [1, 5])
def test_neighbours_slots_and_order_change_no_draft(llama, tmp_path, modules):
    assert_batch_order_is_free(target_of(llama[0]), makers(llama, tmp_path)[modules])


@pytest.mark.parametrize("modules", [1, 7])
@pytest.mark.parametrize("budget", [1, 3, 7])
@pytest.mark.parametrize("at_once", [1, 8])
def test_greedy_output_is_that_of_plain(llama, tmp_path, budget, at_once, modules):
    texts = prompts(9 if at_once > 1 else 2)
    truth, _ = served(target_of(llama[0]), None, 0, 1, texts)
    out, loop = served(target_of(llama[0]), makers(llama, tmp_path)[modules](), budget, at_once, texts)
    assert out == truth
    assert loop.totals.drafted > 0


def test_several_modules_draft_what_each_makes_of_the_one_before(llama, tmp_path):
    """Naively, over the whole text: module m reads module m - 1's row i and the token x_{i+1+m}, true or drafted."""
    folder, kind, target = write(tmp_path / "three", modules=3), FAMILIES["deepseek"], target_of(llama[0])
    drafter = MtpDrafter(target, {**OPTIONS, "modules": 3}, folder)
    layers = [module_of(kind, m) for m in range(3)]
    first = oracle_of(llama[1], "deepseek")

    @torch.no_grad()
    def naive(text: list[int]) -> list[int]:
        tokens, feature = list(text), first.states(text[:-1])
        for m in range(3):
            out = rows_of(kind, *layers[m])(first.embedding[tokens[1 + m :]], feature)
            feature = norm(kind, layers[m][1]["shared_head.norm"], out)
            tokens.append(int(first.logits(feature[-1]).argmax()))
        return tokens[-3:]

    run = Cycles(target, drafter, [0, 2, 1])
    run.prefill([11, 1, 2])
    for _ in range(6):
        texts = [list(text) for text in run.texts]
        assert run.cycle(3)[0] == [naive(text) for text in texts]


def test_shifting_states_or_positions_by_one_changes_the_drafts(llama, tmp_path):
    folder = write(tmp_path / "a")
    truth = drafts_of(llama, folder)

    def another_tap(drafter: MtpDrafter) -> None:
        drafter.taps = (1,)

    def shift_while_drafting(drafter: MtpDrafter) -> None:
        run = drafter.chain.passes.run
        drafter.chain.passes.run = lambda m, net, slots, starts, tokens, *more: run(
            m, net, slots, [s + (tokens.shape[1] == 1) for s in starts], tokens, *more
        )

    assert drafts_of(llama, folder, another_tap) != truth
    assert drafts_of(llama, folder, shift_while_drafting) != truth
    assert drafts_of(llama, folder) == truth


BROKEN = [
    ({"model.layers.61.eh_proj.weight": None}, {}, "has no MTP module"),
    ({"model.layers.61.hnorm.weight": None}, {}, r"tensor 'model\.layers\.61\.hnorm\.weight' \[48\] is missing"),
    ({"model.layers.61.eh_proj.weight": torch.ones(48, 48)}, {}, r"has shape \[48, 48\] and must have \[48, 96\]"),
    ({"stray.weight": torch.ones(1)}, {}, "tensor 'stray.weight' is not used"),
    ({"model.layers.61.mlp.experts.0.up_proj.weight": torch.ones(1)}, {}, "mixture of experts; only dense"),
    ({"model.layers.61.self_attn.kv_b_proj.weight": torch.ones(1)}, {}, "latent attention; only dense"),
    ({}, {"hidden_size": 64}, "hidden_size 64"),
    ({}, {"vocab_size": 500}, "vocab_size 500"),
]


@pytest.mark.parametrize(("changed", "keys", "line"), BROKEN)
def test_what_does_not_fit_is_refused_in_one_line(llama, tmp_path, changed, keys, line):
    folder = write(tmp_path / "broken", extra=changed, **keys)
    with pytest.raises(ValueError, match=line) as caught:
        MtpDrafter(target_of(llama[0]), OPTIONS, folder)
    assert "\n" not in str(caught.value)


WRONG = [
    ({"modules": 2}, "options.modules: 2 asked for and 1"),
    ({"modules": 0}, "options.modules: 0"),
    ({"recycle": "none"}, "options.recycle: 'none' must be one of post_norm, pre_norm"),
    ({"sample": True}, "options.sample: MTP has no such option"),
]


@pytest.mark.parametrize(("changed", "line"), WRONG)
def test_a_wrong_option_is_refused_in_one_line(llama, tmp_path, changed, line):
    with pytest.raises(ValueError, match=line):
        MtpDrafter(target_of(llama[0]), OPTIONS | changed, write(tmp_path / "a"))


def test_the_checkpoint_is_required_and_a_budget_beyond_the_modules_is_refused(llama, tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint\.location"):
        MtpDrafter(target_of(llama[0]), OPTIONS, None)
    with pytest.raises(ValueError, match=r"draft_budget: 3 exceeds the 2 MTP modules .*options\.modules=1"):
        drafts_of(llama, write(tmp_path / "two", modules=2), budget=3, modules=2)
    assert drafts_of(llama, write(tmp_path / "two", modules=2), modules=1) == drafts_of(llama, write(tmp_path / "one"))
