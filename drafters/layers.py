"""The layers that targets and drafters share: packed linear maps, RMS norm, rotary positions, grouped attention over slots.

Shape legend: N rows of a batch flattened, R requests, T rows per request, S cached positions looked at, H hidden size,
D head size, Q query heads, J key/value heads, G = Q / J query heads per key/value head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Packing is asked for this many rows: measured on AVX2, weights packed for 5 rows or more are as fast at one row as those
# packed for one, and two to four times faster between 2 and 40 rows, which is where verification lives.
PACKED_FOR_ROWS = 8


class Linear:
    """`y = x W^T + b`. On a CPU the float32 weight is reordered once for oneDNN, which halves the time of narrow products.

    The reorder operators are private to torch, so their absence falls back to `F.linear`. `packed` says which one runs.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, pack: bool = True) -> None:
        self.bias_O = bias_O
        self.out_features, self.in_features = weight_OI.shape
        self.bytes = weight_OI.nbytes + (0 if bias_O is None else bias_O.nbytes)
        self.packed = pack and can_pack(weight_OI)
        self._weight = torch.ops.mkldnn._reorder_linear_weight.default(weight_OI, PACKED_FOR_ROWS) if self.packed else weight_OI

    def __call__(self, x_NI: Tensor) -> Tensor:
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_NI, self._weight, self.bias_O, "none", [], "")
            return y
        return F.linear(x_NI, self._weight, self.bias_O)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can hold this weight reordered: float32 (or bfloat16 where the CPU computes it), operators present."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def rms_norm(x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, computed in float32 whatever the input."""
    if x_NH.dtype is torch.float32:
        return F.rms_norm(x_NH, weight_H.shape, weight_H, eps)
    return weight_H * F.rms_norm(x_NH.float(), weight_H.shape, None, eps).to(x_NH.dtype)


def swiglu(gate_up_NI: Tensor) -> Tensor:
    """`silu(gate) * up` of one fused product whose first half is the gate."""
    gate, up = gate_up_NI.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class Rotary:
    """Rotary position embedding, neox halves. Tables are computed in float32 once, for positions below `max_length`."""

    def __init__(self, inverse_frequencies: Tensor, scaling: float, max_length: int, dtype: torch.dtype) -> None:
        angles = torch.outer(torch.arange(max_length, device=inverse_frequencies.device).float(), inverse_frequencies)
        table = torch.cat((angles, angles), dim=-1)
        half = inverse_frequencies.numel()
        self.cos_LD = (table.cos() * scaling).to(dtype)
        # The sign of the rotated half is folded into the sine, so that applying it is one roll and two products.
        sign = torch.cat((-torch.ones(half), torch.ones(half))).to(table.device)
        self.sin_LD = (table.sin() * scaling * sign).to(dtype)
        self.half = half

    def at(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Tables for these positions, shaped [N, 1, D] to broadcast over heads."""
        return self.cos_LD[positions_N].unsqueeze(1), self.sin_LD[positions_N].unsqueeze(1)

    def rotate(self, x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
        """Rotate every head of every row."""
        return torch.addcmul(x_NXD * cos_N1D, x_NXD.roll(self.half, dims=-1), sin_N1D)


def inverse_frequencies(config: Mapping[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """Rotary frequencies [D/2] and attention scaling of a Hugging Face config, any rope type that transformers knows."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    if kind == "default":
        return 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim), 1.0
    return _scaled_frequencies(config, rope, kind, theta, head_dim)


def _scaled_frequencies(
    config: Mapping[str, Any], rope: dict[str, Any], kind: str, theta: float, head_dim: int
) -> tuple[Tensor, float]:
    # Imported here: transformers takes seconds to import and only scaled tables need it.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise ValueError(f"config.json: rope type '{kind}' is unknown; known are {sorted(ROPE_INIT_FUNCTIONS)}")
    typed = LlamaConfig(
        head_dim=head_dim,
        hidden_size=config["hidden_size"],
        num_attention_heads=config["num_attention_heads"],
        max_position_embeddings=config["max_position_embeddings"],
        rope_parameters={**rope, "rope_type": kind, "rope_theta": theta},
    )
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](typed, device=torch.device("cpu"))
    return frequencies, float(scaling)


def grouped_attention(q_RTQD: Tensor, k_RSJD: Tensor, v_RSJD: Tensor, mask_RGTS: Tensor | None) -> Tensor:
    """Attention of few query rows over many cached ones: [R, T, Q, D].

    The G query heads that share a key head are folded into its rows, so keys and values are read once, unexpanded.
    `mask_RGTS` is additive, shaped [R, 1, G * T, S].
    """
    requests, rows, heads, size = q_RTQD.shape
    shared = k_RSJD.shape[2]
    group = heads // shared
    q = q_RTQD.view(requests, rows, shared, group, size).permute(0, 2, 3, 1, 4).reshape(requests, shared, group * rows, size)
    out = F.scaled_dot_product_attention(q, k_RSJD.transpose(1, 2), v_RSJD.transpose(1, 2), attn_mask=mask_RGTS)
    return out.view(requests, shared, group, rows, size).permute(0, 3, 1, 2, 4).reshape(requests, rows, heads, size)


def causal_mask(lengths_R: Tensor, rows: int, span: int, group: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [R, 1, G * T, S]: row t of a request with `lengths` committed tokens sees positions up to `lengths + t`."""
    last_RT = lengths_R[:, None] + torch.arange(rows, device=lengths_R.device)
    hidden_RTS = torch.arange(span, device=lengths_R.device) > last_RT[:, :, None]
    mask = torch.zeros(hidden_RTS.shape, dtype=dtype, device=lengths_R.device).masked_fill_(hidden_RTS, float("-inf"))
    return mask.repeat(1, group, 1).unsqueeze(1)
