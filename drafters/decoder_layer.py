"""One decoder layer as a trainable module: what EAGLE-3 and MTP have between their input projection and their last norm.

Grouped attention with rotary positions (neox halves, whole heads or their first part), optional head norms, biases and output
gate, then SwiGLU. Which rows see which, and where keys and values are kept, is the caller's: the module hands rotated queries,
keys and values to `attend`. A drafter answers from its slots, training from a mask. So both run the very same weights.

Shape legend, leading dimensions free: H hidden, W input width, Q query heads, J key/value heads, D head size, E rotated part
of a head, C positions in the rotary table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.drafter_checkpoint import DrafterWeights, size_of
from drafters.layers import Rotary, inverse_frequencies

# Cosine and sine [.., 1, E] of the rows' positions; the sine carries the sign of the rotated half.
Rotation = tuple[Tensor, Tensor]
# attend(q [.., Q, D], k [.., J, D], v [.., J, D]) gives [.., Q, D].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# The rows whose output is wanted, taken out of [.., H] or [.., 1, E]; every row still gives its key and value.
Keep = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Sizes from `config.json`; biases, head norms and the gate from which tensors are there, because configs omit them."""

    hidden: int
    width: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Mapping[str, Any]
    qkv_bias: bool = False
    o_bias: bool = False
    head_norms: bool = False
    gated: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any], weights: DrafterWeights, prefix: str, width: int) -> LayerConfig:
        """`prefix` ends where `self_attn.` begins; `width` is the size of the attention's input."""
        hidden, heads = size_of(config, "hidden_size"), size_of(config, "num_attention_heads")
        head_dim = size_of(config, "head_dim", hidden // heads)
        if (act := config.get("hidden_act", "silu")) != "silu":
            raise ValueError(f"config.json: hidden_act '{act}' is not implemented; only silu is")
        if "sliding_attention" in (config.get("layer_types") or ())[-1:]:
            raise ValueError("config.json: layer_types has sliding_attention, which is not implemented in a serial drafter")
        at = prefix + "self_attn."
        return cls(
            hidden=hidden,
            width=width,
            intermediate=size_of(config, "intermediate_size"),
            heads=heads,
            kv_heads=size_of(config, "num_key_value_heads", heads),
            head_dim=head_dim,
            eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=config,
            qkv_bias=at + "q_proj.bias" in weights,
            o_bias=at + "o_proj.bias" in weights,
            head_norms=at + "q_norm.weight" in weights,
            gated=weights.take(at + "q_proj.weight", (None, width)).shape[0] == 2 * heads * head_dim,
        )

    @property
    def rotated(self) -> int:
        """Leading entries of a head that turn with position."""
        rope: Mapping[str, Any] = self.rope.get("rope_parameters") or self.rope.get("rope_scaling") or {}
        factor = float(rope.get("partial_rotary_factor") or self.rope.get("partial_rotary_factor") or 1.0)
        return int(self.head_dim * factor)

    def rotary(self, positions: int, dtype: torch.dtype, device: torch.device) -> Rotary:
        """Tables for positions 0 to `positions - 1`, [C, E]."""
        frequencies, scaling = inverse_frequencies(self.rope, self.rotated)
        return Rotary(frequencies.to(device), scaling, positions, dtype)


def every_row(x: Tensor) -> Tensor:
    """The `Keep` of a pass whose outputs are all wanted, as in training."""
    return x


def rotation_at(rotary: Rotary, positions: Tensor) -> Rotation:
    return rotary.cos_LD[positions].unsqueeze(-2), rotary.sin_LD[positions].unsqueeze(-2)


class Attention(nn.Module):
    """Projections, head norms, rotation and gate around `attend`."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        queries, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.width, 2 * queries if config.gated else queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.width, shared, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.width, shared, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden, bias=config.o_bias)
        if config.head_norms:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.eps)

    def forward(self, x_W: Tensor, rotation: Rotation, attend: Attend, keep: Keep) -> Tensor:
        q = self.q_proj(keep(x_W)).unflatten(-1, (self.config.heads, -1))
        k = self.k_proj(x_W).unflatten(-1, (self.config.kv_heads, -1))
        v = self.v_proj(x_W).unflatten(-1, (self.config.kv_heads, -1))
        gate = None
        if self.config.gated:  # each head's query is followed by its gate
            q, gate = q.chunk(2, dim=-1)
        if self.config.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = rotation
        out = attend(rotate(q, (keep(cos), keep(sin))), rotate(k, rotation), v)
        out = out if gate is None else out * gate.sigmoid()
        projected: Tensor = self.o_proj(out.flatten(-2))
        return projected


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x_H: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_H)) * self.up_proj(x_H))
        return out


def rotate(x_XD: Tensor, rotation: Rotation) -> Tensor:
    """Rotary positions on the first E entries of every head; the rest stays."""
    cos, sin = rotation
    turned, kept = x_XD[..., : cos.shape[-1]], x_XD[..., cos.shape[-1] :]
    turned = turned * cos + turned.roll(cos.shape[-1] // 2, dims=-1) * sin
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned
