"""What llama.cpp calls the parts of a drafter: fields and tensor names of its architectures `eagle3` and `dflash`.

`dflash` also serves DFlash 2 and DSpark, told apart by the tensors that are there. A checkpoint with a tensor or a key for
which llama.cpp has no place is refused: leaving it out would not fail, it would only accept less. (ggml-org/llama.cpp, build
11434: src/models/eagle3.cpp, dflash.cpp, src/llama-arch.cpp. Its `draft-mtp` knows no layer for a Llama target.)

Shape legend: O output features, I input features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafters.dflash_config import DFlashConfig, value_of
from drafters.drafter_checkpoint import size_of
from drafters.eagle3 import eagle3_taps
from drafters.gguf_write import Tensor, Value

_COMMON = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
_EAGLE3_LAYER = {**_COMMON, "hidden_norm.weight": "attn_norm_2.weight"}
_EAGLE3 = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
}
_DFLASH_LAYER = {
    **_COMMON,
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
_DFLASH = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
}
_UNUSED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # copies of the target's, or derived from d2t
_LAYER = re.compile(r"(?:midlayer|layers\.(\d+))\.(.+)")


@dataclass(frozen=True, slots=True)
class TargetShape:
    """What a drafter's file says about its target."""

    layers: int
    hidden: int


@dataclass(frozen=True, slots=True)
class DrafterFile:
    """An architecture's name, its fields (`gguf_write.write_gguf`), and how its tensors are named and changed."""

    arch: str
    fields: Mapping[str, Value]
    heads: tuple[int, int]

    def check(self, names: Iterable[str]) -> None:
        """Raises ValueError that names the first tensor without a place."""
        for name in sorted(names):
            if name not in _UNUSED:
                self._name(name)

    def tensors(self, published: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Published tensors by llama.cpp's names. ValueError names the one that has no place."""
        for name, tensor in published.items():
            if name not in _UNUSED:
                yield self._name(name), self._value(name, tensor)

    def _name(self, name: str) -> str:
        inside, outside = (_EAGLE3_LAYER, _EAGLE3) if self.arch == "eagle3" else (_DFLASH_LAYER, _DFLASH)
        layer = _LAYER.fullmatch(name)
        found = inside.get(layer.group(2)) if layer else outside.get(name)
        if found is None:
            raise ValueError(f"tensor '{name}': llama.cpp's architecture '{self.arch}' has no place for it")
        return f"blk.{layer.group(1) or 0}.{found}" if layer else found

    def _value(self, name: str, tensor: Tensor) -> Tensor:
        """`d2t`: offsets in checkpoints, target ids in GGUF. Rotary pairs: neighbours in `eagle3`, halves in `dflash`."""
        if name == "d2t":
            return tensor.astype(np.int64) + np.arange(len(tensor))
        if self.arch == "eagle3" and name.endswith(("q_proj.weight", "k_proj.weight")):
            return halves_to_rotary_rows(tensor, self.heads[0 if "q_proj" in name else 1])
        return tensor


def halves_to_rotary_rows(weight_OI: Tensor, heads: int) -> Tensor:
    """Transformers' two halves of a head's rotary pairs, interleaved as llama.cpp's Llama family wants them."""
    halves = weight_OI.reshape(heads, 2, -1, weight_OI.shape[1])
    return halves.swapaxes(1, 2).reshape(weight_OI.shape)


def describe(config: Mapping[str, Any], target: TargetShape) -> DrafterFile:
    """The file of a drafter, from its flat config (`read_drafter_config`). ValueError where llama.cpp cannot serve it."""
    family = str((config.get("architectures") or ["?"])[0])
    if "eagle3" in family.lower():
        return _eagle3(config, target)
    if "dflash" in family.lower():
        return _dflash(config, target, {})
    if "dspark" in family.lower():
        return _dflash(config, target, _dspark_fields(config))
    raise ValueError(f"config.json: architecture '{family}': llama.cpp drafts with EAGLE-3, DFlash, DFlash 2 or DSpark")


def _eagle3(config: Mapping[str, Any], target: TargetShape) -> DrafterFile:
    for key in ("norm_output", "parallel_drafting"):
        if config.get(key):
            raise ValueError(f"config.json: {key}: llama.cpp's EAGLE-3 recycles the state before the last norm, one a pass")
    fields = _sizes(config) | {
        ".target_layers": [tap + 1 for tap in eagle3_taps(config, target.layers, "inputs")],
        ".target_hidden_size": target.hidden,
        ".norm_before_residual": bool(config.get("norm_before_residual", False)),
        ".norm_before_fc": bool(config.get("norm_before_fc", False)),
    }
    return DrafterFile("eagle3", fields, _heads(config))


def _dflash(config: Mapping[str, Any], target: TargetShape, more: Mapping[str, Value]) -> DrafterFile:
    """Layer numbers are counted by what enters a layer. All layers are causal or none is."""
    read = DFlashConfig.read(config, target.layers, anchor_first=bool(more), projector="dspark" if more else None)
    if len(set(read.causal)) > 1:
        raise ValueError("config.json: llama.cpp has one rule for all layers of a block, causal or not")
    fields: dict[str, Value] = _sizes(config) | {
        ".target_layers": [tap + 1 for tap in read.taps],
        ".block_size": read.block,
        ".attention.causal": read.causal[0],
        "tokenizer.ggml.mask_token_id": read.mask_token,
    }
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if (value := value_of(config, key)) is not None:
            fields[f".{key}"] = int(value)
    if read.embedding_scale != 1:
        fields[".embedding_scale"] = read.embedding_scale
    if read.output_multiplier != 1:
        fields[".logit_scale"] = read.output_multiplier
    if read.softcap > 0:
        fields[".final_logit_softcapping"] = read.softcap
    if window := next((w for w in read.windows if w is not None), None):
        fields |= {".attention.sliding_window": window}
        fields |= {".attention.sliding_window_pattern": [w is not None for w in read.windows]}
    return DrafterFile("dflash", {**fields, **more}, _heads(config))


def _dspark_fields(config: Mapping[str, Any]) -> dict[str, Value]:
    return {
        ".sample_from_anchor": bool(value_of(config, "sample_from_anchor", True)),
        ".has_confidence_head": bool(value_of(config, "enable_confidence_head", False)),
    }


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    heads = size_of(config, "num_attention_heads")
    return heads, size_of(config, "num_key_value_heads", heads)


def _sizes(config: Mapping[str, Any]) -> dict[str, Value]:
    """What every architecture states. Rotary scaling is not written, so a config that has it is refused."""
    hidden, (heads, kv_heads) = size_of(config, "hidden_size"), _heads(config)
    head_dim = size_of(config, "head_dim", hidden // heads)
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or config.get("partial_rotary_factor", 1) != 1:
        raise ValueError("config.json: scaled or partial rotary positions are not exported; use a checkpoint without them")
    theta = rope.get("rope_theta") or config.get("rope_theta")
    if theta is None:
        raise ValueError("config.json: rope_theta is missing")
    return {
        ".vocab_size": size_of(config, "vocab_size"),
        ".context_length": size_of(config, "max_position_embeddings"),
        ".block_count": size_of(config, "num_hidden_layers", 1),
        ".embedding_length": hidden,
        ".feed_forward_length": size_of(config, "intermediate_size"),
        ".attention.head_count": heads,
        ".attention.head_count_kv": kv_heads,
        ".attention.key_length": head_dim,
        ".attention.value_length": head_dim,
        ".attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        ".rope.dimension_count": head_dim,
        ".rope.freq_base": float(theta),
    }
