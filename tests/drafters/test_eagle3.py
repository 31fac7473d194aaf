"""EAGLE-3 against naive recomputation built from transformers' Llama layers, its cache invariant, and what must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRotaryEmbedding

from drafters.drafter_checkpoint import DrafterWeights
from drafters.eagle3 import Eagle3Drafter, eagle3_taps, load_eagle3
from tests.drafters.serial_cases import (
    CPU,
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

OPTIONS = {"tap_numbering": "inputs"}
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "draft_vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}


def tensors_of(config: dict, seed: int = 0) -> dict[str, Tensor]:
    """Random weights in the names of SafeAILab's repository."""
    g = torch.Generator().manual_seed(seed)
    h, i, v = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    q, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "fc": (h, 3 * h),
        "midlayer.self_attn.q_proj": (q, 2 * h),
        "midlayer.self_attn.k_proj": (kv, 2 * h),
        "midlayer.self_attn.v_proj": (kv, 2 * h),
        "midlayer.self_attn.o_proj": (h, q),
        "midlayer.mlp.gate_proj": (i, h),
        "midlayer.mlp.up_proj": (i, h),
        "midlayer.mlp.down_proj": (h, i),
        "lm_head": (v, h),
    }
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
    made = {f"{name}.weight": torch.randn(shape, generator=g) * shape[1] ** -0.5 for name, shape in shapes.items()}
    made |= {f"{name}.weight": 1 + 0.3 * torch.randn(h, generator=g) for name in norms}
    ids = torch.randperm(VOCAB, generator=g)[:v].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[ids] = True
    return made | {"d2t": ids - torch.arange(v), "t2d": t2d}


def write(folder: Path, config: dict | None = None, tensors: dict[str, Tensor] | None = None) -> str:
    folder.mkdir(exist_ok=True)
    config = config or CONFIG
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors_of(config) if tensors is None else tensors, folder / "model.safetensors")
    return str(folder)


def llama_rows(config: dict, weights: dict[str, Tensor], norm_before_residual: bool = False):
    """A full causal pass of the layer with transformers' attention, widened as the published models do."""
    llama = LlamaConfig(**{k: v for k, v in config.items() if k in LlamaConfig().to_dict()}, attn_implementation="eager")
    attention, mlp, rotary = LlamaAttention(llama, 0).eval(), LlamaMLP(llama), LlamaRotaryEmbedding(llama)
    for x in "qkv":
        setattr(attention, f"{x}_proj", nn.Linear(1, 1, bias=False))
    for name, parameter in [*attention.named_parameters(prefix="self_attn"), *mlp.named_parameters(prefix="mlp")]:
        parameter.data = weights[f"midlayer.{name}"]

    def norm(name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weights[f"midlayer.{name}.weight"], config["rms_norm_eps"])

    @torch.no_grad()
    def rows(embedded: Tensor, features: Tensor) -> Tensor:
        count = len(embedded)
        normed = norm("hidden_norm", features)
        x = torch.cat((norm("input_layernorm", embedded), normed), dim=-1)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        out = attention(x, rotary(x, torch.arange(count)[None]), mask)[0][0]
        s = (normed if norm_before_residual else features) + out
        return s + mlp(norm("post_attention_layernorm", s))

    return rows


def oracle_of(model, folder: str, **variant: bool) -> Oracle:
    weights, config = load_file(Path(folder) / "model.safetensors"), json.loads((Path(folder) / "config.json").read_text())

    def fuse(taps: Tensor) -> Tensor:
        if "fc_norm.0.weight" in weights:
            parts = enumerate(taps.chunk(3, -1))
            taps = torch.cat([F.rms_norm(t, t.shape[-1:], weights[f"fc_norm.{i}.weight"], 1e-5) for i, t in parts], -1)
        return taps @ weights["fc.weight"].T

    def read(out: Tensor) -> tuple[Tensor, Tensor]:
        state = F.rms_norm(out, out.shape[-1:], weights["norm.weight"], 1e-5)
        return state, state if variant.get("norm_output") else out

    return Oracle(
        states=states_of(model, config["eagle_aux_hidden_state_layer_ids"]),
        embedding=weights.get("embed_tokens.weight", model.get_input_embeddings().weight.detach()),
        fuse=fuse,
        rows=llama_rows(config, weights, variant.get("norm_before_residual", False)),
        read=read,
        logits=lambda state: state @ weights["lm_head.weight"].T,
        ids=lambda draft_id: draft_id + weights["d2t"][draft_id],
    )


@pytest.fixture
def llama(checkpoint):
    return checkpoint("llama")


@pytest.fixture
def make(llama, tmp_path) -> Callable[[], Eagle3Drafter]:
    folder = write(tmp_path / "eagle3")
    return lambda: Eagle3Drafter(target_of(llama[0]), OPTIONS, folder)


def test_logits_and_drafts_are_those_of_full_recomputation_over_cycles(llama, tmp_path):
    folder = write(tmp_path / "eagle3")
    target = target_of(llama[0])
    assert_cycles_match(target, Eagle3Drafter(target, OPTIONS, folder), oracle_of(llama[1], folder))


@pytest.mark.parametrize("variant", ["norm_before_residual", "norm_output"])
def test_variants_of_the_residual_and_the_recycled_state_follow_the_config(llama, tmp_path, variant):
    folder = write(tmp_path / "eagle3", {**CONFIG, variant: True})
    target = target_of(llama[0])
    drafter = Eagle3Drafter(target, OPTIONS, folder)
    assert_cycles_match(target, drafter, oracle_of(llama[1], folder, **{variant: True}), cycles=2)
    with pytest.raises(AssertionError):
        assert_cycles_match(target_of(llama[0]), Eagle3Drafter(target, OPTIONS, folder), oracle_of(llama[1], folder), cycles=1)


def test_the_norms_of_eagle_3_1_are_applied_per_tap_under_both_of_their_names(llama, tmp_path):
    norms = [1 + 0.5 * torch.randn(48, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    new = {f"fc_norm.{i}.weight": norm for i, norm in enumerate(norms)}
    old = {f"aux_norm_{x}.weight": norm for x, norm in zip(("low", "mid", "high"), norms, strict=True)}
    config = {**CONFIG, "norm_output": True}
    folder = write(tmp_path / "new", config, tensors_of(CONFIG) | new)
    target = target_of(llama[0])
    assert_cycles_match(target, Eagle3Drafter(target, OPTIONS, folder), oracle_of(llama[1], folder, norm_output=True), cycles=2)
    legacy = write(tmp_path / "old", config, tensors_of(CONFIG) | old)
    assert drafts_of(target_of(llama[0]), legacy) == drafts_of(target_of(llama[0]), folder)


def drafts_of(target, folder: str, options=OPTIONS, change: Callable[[Eagle3Drafter], None] = lambda _: None) -> list:
    drafter = Eagle3Drafter(target, options, folder)
    change(drafter)
    run = Cycles(target, drafter, [0, 1])
    run.prefill([12, 20])
    return [run.cycle(4)[0] for _ in range(3)]


def test_published_renamings_and_the_speculators_format_are_the_same_drafter(llama, tmp_path):
    plain, renamed = tensors_of(CONFIG), {}
    for name, tensor in plain.items():
        renamed[name.replace("midlayer.", "layers.0.")] = tensor
    truth = drafts_of(target_of(llama[0]), write(tmp_path / "a"))
    assert drafts_of(target_of(llama[0]), write(tmp_path / "b", CONFIG, renamed)) == truth
    top = {"draft_vocab_size": 64, "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "speculators_model_type": "eagle3"}
    nested = {**top, "transformer_layer_config": {k: v for k, v in CONFIG.items() if k not in top}}
    embedding = {"embed_tokens.weight": llama[1].get_input_embeddings().weight.detach().clone()}
    assert drafts_of(target_of(llama[0]), write(tmp_path / "c", nested, renamed | embedding)) == truth
    other = {"embed_tokens.weight": embedding["embed_tokens.weight"].flip(0)}
    assert drafts_of(target_of(llama[0]), write(tmp_path / "d", nested, renamed | other)) != truth


def test_a_full_vocabulary_needs_no_offsets_and_a_missing_head_is_the_targets(llama, tmp_path):
    config = {k: v for k, v in CONFIG.items() if k != "draft_vocab_size"}
    tensors = {k: v for k, v in tensors_of(CONFIG).items() if k not in ("d2t", "t2d", "lm_head.weight")}
    shared = drafts_of(target_of(llama[0]), write(tmp_path / "shared", config, tensors))
    head = {"lm_head.weight": llama[1].lm_head.weight.detach().clone()}
    assert drafts_of(target_of(llama[0]), write(tmp_path / "own", config, tensors | head)) == shared
    unpadded = write(tmp_path / "unpadded", config | {"vocab_size": 150}, tensors | {"lm_head.weight": torch.randn(150, 48)})
    assert max(t for cycle in drafts_of(target_of(llama[0]), unpadded) for row in cycle for t in row) < 150


def test_attention_biases_and_a_narrower_drafter_with_its_own_embedding_are_read(llama, tmp_path):
    g = torch.Generator().manual_seed(4)
    bias = {f"midlayer.self_attn.{x}_proj.bias": torch.randn(n, generator=g) for x, n in [("q", 64), ("k", 32), ("v", 32)]}
    config = {**CONFIG, "hidden_size": 32, "target_hidden_size": 48}
    tensors = tensors_of({**CONFIG, "hidden_size": 32}) | bias
    tensors |= {
        "fc.weight": torch.randn(32, 144, generator=g) * 0.1,
        "embed_tokens.weight": torch.randn(VOCAB, 32, generator=g),
    }
    with_bias = drafts_of(target_of(llama[0]), write(tmp_path / "bias", config, tensors))
    without = {k: v for k, v in tensors.items() if not k.endswith("bias")}
    assert drafts_of(target_of(llama[0]), write(tmp_path / "none", config, without)) != with_bias


def test_after_any_accept_pattern_the_draft_cache_is_that_of_one_pass(llama, make):
    assert_invariant(target_of(llama[0]), make)


def test_neighbours_slots_and_order_change_no_draft(llama, make):
    assert_batch_order_is_free(target_of(llama[0]), make)


@pytest.mark.parametrize("budget", [1, 3, 7])
@pytest.mark.parametrize("at_once", [1, 8])
def test_greedy_output_is_that_of_plain(llama, make, budget, at_once):
    texts = prompts(9 if at_once > 1 else 2)
    truth, _ = served(target_of(llama[0]), None, 0, 1, texts)
    out, loop = served(target_of(llama[0]), make(), budget, at_once, texts)
    assert out == truth
    assert loop.totals.drafted > 0


def test_offsets_read_as_ids_would_be_caught(llama, tmp_path):
    """`d2t` holds offsets: a folder that holds ids instead is refused, and a drafter that used them as ids drafts otherwise."""
    good = tensors_of(CONFIG)
    ids = torch.arange(64) + good["d2t"]
    with pytest.raises(ValueError, match=r"'d2t'.*offsets"):
        Eagle3Drafter(target_of(llama[0]), OPTIONS, write(tmp_path / "ids", CONFIG, good | {"d2t": ids}))

    def misread(drafter: Eagle3Drafter) -> None:
        assert drafter.network.d2t is not None
        drafter.network.d2t -= torch.arange(64)

    folder = write(tmp_path / "good")
    allowed = set(ids.tolist())
    truth = drafts_of(target_of(llama[0]), folder)
    assert {t for cycle in truth for row in cycle for t in row} <= allowed
    assert drafts_of(target_of(llama[0]), folder, change=misread) != truth


def test_shifting_taps_or_positions_by_one_changes_the_drafts(llama, tmp_path):
    folder = write(tmp_path / "eagle3")
    truth = drafts_of(target_of(llama[0]), folder)
    shifted = {**CONFIG, "eagle_aux_hidden_state_layer_ids": [1, 1, 2]}
    assert drafts_of(target_of(llama[0]), write(tmp_path / "taps", shifted)) != truth
    outputs = {**CONFIG, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    by_output = write(tmp_path / "outputs", outputs)
    assert drafts_of(target_of(llama[0]), by_output, {"tap_numbering": "outputs"}) == truth

    def shift_while_drafting(drafter: Eagle3Drafter) -> None:
        run = drafter.chain.passes.run
        drafter.chain.passes.run = lambda m, net, slots, starts, tokens, *more: run(
            m, net, slots, [s + (tokens.shape[1] == 1) for s in starts], tokens, *more
        )

    assert drafts_of(target_of(llama[0]), folder, change=shift_while_drafting) != truth


def test_layer_ids_default_to_what_enters_the_second_the_middle_and_the_third_last_layer():
    assert eagle3_taps({}, 30, "inputs") == (1, 14, 26)
    assert eagle3_taps({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5]}}, 30, "inputs") == (2, 4)
    assert eagle3_taps({"eagle_aux_hidden_state_layer_ids": [3, 5]}, 30, "outputs") == (3, 5)
    with pytest.raises(ValueError, match="eagle_aux_hidden_state_layer_ids: tap -1"):
        eagle3_taps({}, 3, "inputs")


def test_the_state_dict_of_a_loaded_network_is_the_checkpoint(llama, tmp_path):
    """So that training writes the published names by saving the module."""
    folder = write(tmp_path / "eagle3")
    network, _ = load_eagle3(DrafterWeights(folder, torch.float32, CPU), CONFIG, target_of(llama[0]), "inputs")
    published = load_file(Path(folder) / "model.safetensors")
    assert set(network.state_dict()) | {"t2d"} == set(published)
    assert all(torch.equal(tensor, published[name]) for name, tensor in network.state_dict().items())


def test_memory_counts_weights_and_slots(llama, make):
    drafter = make()
    numbers = sum(t.nbytes for name, t in tensors_of(CONFIG).items() if name != "t2d")
    assert drafter.memory()["weights"] == numbers
    assert drafter.memory()["state"] > 2 * 8 * 128 * 2 * 16 * 4


GOOD = tensors_of(CONFIG)
BROKEN = [
    ({}, {"fc.weight": None}, "tensor 'fc.weight' .* is missing"),
    ({}, {"midlayer.hidden_norm.weight": None}, "tensor 'midlayer.hidden_norm.weight' .* is missing"),
    ({}, {"fc.weight": torch.ones(48, 96)}, r"'fc.weight' has shape \[48, 96\] and must have \[48, 144\]"),
    ({}, {"mask_hidden": torch.ones(1, 144)}, "tensor 'mask_hidden' is not used"),
    ({}, {"d2t": None}, "tensor 'd2t' .* is missing"),
    ({}, {"d2t": torch.zeros(63, dtype=torch.int64)}, r"'d2t' has shape \[63\]"),
    ({}, {"d2t": torch.full((64,), 200)}, "'d2t' leads outside"),
    ({}, {"d2t": -torch.arange(64)}, "two draft ids"),
    ({}, {"d2t": torch.zeros(64, dtype=torch.int64)}, "'d2t' and 't2d' name different"),
    ({}, {"lm_head.weight": None}, "tensor 'lm_head.weight' .* is missing"),
    ({}, {"embed_tokens.weight": torch.ones(100, 48)}, "'embed_tokens.weight' has fewer rows"),
    ({"hidden_size": 64}, {}, "hidden_size 64"),
    ({"vocab_size": 200}, {}, "vocab_size 200"),
    ({"num_hidden_layers": 2}, {}, "num_hidden_layers 2"),
    ({"hidden_act": "gelu"}, {}, "hidden_act 'gelu'"),
    ({"layer_types": ["sliding_attention"]}, {}, "layer_types has sliding_attention"),
    ({"parallel_drafting": True}, {}, "parallel_drafting"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, {}, "eagle_aux_hidden_state_layer_ids: tap 3"),
    ({"intermediate_size": None}, {}, "intermediate_size is None"),
]


@pytest.mark.parametrize(("keys", "changed", "line"), BROKEN)
def test_what_does_not_fit_is_refused_in_one_line(llama, tmp_path, keys, changed, line):
    tensors = {name: tensor for name, tensor in (GOOD | changed).items() if tensor is not None}
    folder = write(tmp_path / "broken", CONFIG | keys, tensors)
    with pytest.raises(ValueError, match=line) as caught:
        Eagle3Drafter(target_of(llama[0]), OPTIONS, folder)
    assert "\n" not in str(caught.value)


def test_options_and_the_checkpoint_are_required(llama, tmp_path):
    target = target_of(llama[0])
    folder = write(tmp_path / "eagle3")
    for options, line in [({}, "needs it"), ({"tap_numbering": "x"}, "one of"), ({**OPTIONS, "k": 1}, r"options\.k")]:
        with pytest.raises(ValueError, match=line):
            Eagle3Drafter(target, options, folder)
    with pytest.raises(ValueError, match=r"checkpoint\.location"):
        Eagle3Drafter(target, OPTIONS, None)


def test_a_budget_beyond_the_scratch_rows_is_refused(llama, make):
    drafter = make()
    run = Cycles(target_of(llama[0]), drafter, [0])
    run.prefill([3])
    with pytest.raises(ValueError, match="draft_budget: 65"):
        drafter.propose([0], [65])
    assert drafter.propose([0], [0]) is None
