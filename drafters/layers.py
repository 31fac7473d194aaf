"""The layers that targets and drafters share: packed linear maps, RMS norm, rotary positions, grouped attention over slots.

Shape legend: N rows of a batch flattened, R requests, T rows per request, S cached positions looked at, H hidden size,
D head size, Q query heads, J key/value heads, G = Q / J query heads per key/value head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.kernels import ProductLibrary, product_library

# oneDNN is asked to pack for this many rows: on AVX2, weights packed for 5 rows or more were as fast at one row as those packed
# for one, and faster between 2 and 40 rows, which is where verification lives (one pass over five shapes on a busy machine).
PACKED_FOR_ROWS = 8


class Linear:
    """`y = x W^T + b`, on a CPU over a weight that was reordered once, which halves the time of narrow products at least.

    `kind` says by what: `simd`, our own product (`drafters.kernels`), in which five rows cost about what one costs;
    `onednn-packed`, where that could not be compiled or the weight is bfloat16; `torch`, plain `F.linear`, elsewhere.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, pack: bool = True) -> None:
        self.bias_O = bias_O
        self.out_features, self.in_features = weight_OI.shape
        self.kind = best_kind(weight_OI) if pack else "torch"
        self._simd = product_library() if self.kind == "simd" else None
        self._weight = self._packed(weight_OI)
        self.bytes = weight_OI.nbytes + (0 if bias_O is None else bias_O.nbytes)  # what fills up the last block is left out

    def _packed(self, weight_OI: Tensor) -> Tensor:
        if self._simd is not None:
            return in_blocks(weight_OI, self._simd.columns)
        if self.kind == "onednn-packed":
            reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight_OI, PACKED_FOR_ROWS)
            return reordered
        return weight_OI

    @property
    def packed(self) -> bool:
        """Whether the weight is a reordered copy."""
        return self.kind != "torch"

    def __call__(self, x_NI: Tensor) -> Tensor:
        if self._simd is not None:
            return self._product(self._simd, x_NI)
        if self.kind == "onednn-packed":
            y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_NI, self._weight, self.bias_O, "none", [], "")
            return y
        return F.linear(x_NI, self._weight, self.bias_O)

    def _product(self, product: ProductLibrary, x_NI: Tensor) -> Tensor:
        if x_NI.dtype is not torch.float32 or x_NI.shape[-1] != self.in_features:  # the library would read past its end
            raise ValueError(
                f"product: {x_NI.dtype} rows of {x_NI.shape[-1]}, the weight takes float32 rows of {self.in_features}"
            )
        rows_NI = x_NI.reshape(-1, self.in_features).contiguous()
        y_NO = rows_NI.new_empty(len(rows_NI), self.out_features)
        product(self._weight, rows_NI, y_NO, torch.get_num_threads())
        if self.bias_O is not None:
            y_NO += self.bias_O
        return y_NO.view(*x_NI.shape[:-1], self.out_features)


def in_blocks(weight_OI: Tensor, columns: int) -> Tensor:
    """The weight as [blocks, I, columns]: `columns` outputs side by side, the last block filled up with noughts."""
    full_OI: Tensor = F.pad(weight_OI, (0, 0, 0, -weight_OI.shape[0] % columns))
    blocks: Tensor = full_OI.unflatten(0, (-1, columns)).transpose(1, 2).contiguous()
    return blocks


def best_kind(weight: Tensor) -> str:
    """The fastest way of `Linear.kind` that this weight, this torch and this machine have."""
    if weight.device.type != "cpu":
        return "torch"
    if weight.dtype is torch.float32 and product_library() is not None:
        return "simd"
    return "onednn-packed" if onednn_packs(weight) else "torch"


def onednn_packs(weight: Tensor) -> bool:
    """Whether oneDNN can hold this weight reordered: float32 (or bfloat16 where the CPU computes it), operators present.

    The operators are private to torch, so they may be absent one day.
    """
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


class RmsNorm:
    """Root-mean-square norm `w x / sqrt(mean(x^2) + eps)`, computed in float32 whatever the input.

    In float32 it is written as `w sqrt(H) x / hypot(|x|, sqrt(H eps))`: four operators instead of eight. What that saves at one
    row a step was not separated from the noise of the machine it was tried on.
    """

    def __init__(self, weight_H: Tensor, eps: float) -> None:
        self.weight_H, self.eps = weight_H, eps
        size = weight_H.numel()
        self._scaled_H = weight_H * math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * eps), dtype=torch.float32, device=weight_H.device)

    def __call__(self, x_NH: Tensor) -> Tensor:
        if x_NH.dtype is torch.float32:
            length = torch.linalg.vector_norm(x_NH, dim=-1, keepdim=True)
            return x_NH.div(torch.hypot(length, self._floor)).mul_(self._scaled_H)
        return self.weight_H * F.rms_norm(x_NH.float(), self.weight_H.shape, None, self.eps).to(x_NH.dtype)

    @property
    def bytes(self) -> int:
        return self.weight_H.nbytes


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

    def at(self, positions_N: Tensor, rotated: int, kept: int) -> tuple[Tensor, Tensor]:
        """Tables [N, X, D] for rows whose first `rotated` heads turn and whose last `kept` (the values) stay as they are."""
        cos_N1D, sin_N1D = self.cos_LD[positions_N].unsqueeze(1), self.sin_LD[positions_N].unsqueeze(1)
        ones, zeros = torch.ones_like(cos_N1D), torch.zeros_like(sin_N1D)
        cos = torch.cat((cos_N1D.expand(-1, rotated, -1), ones.expand(-1, kept, -1)), dim=1)
        return cos, torch.cat((sin_N1D.expand(-1, rotated, -1), zeros.expand(-1, kept, -1)), dim=1)

    def rotate(self, x_NXD: Tensor, cos_NXD: Tensor, sin_NXD: Tensor) -> Tensor:
        """Rotate every head of every row by its tables."""
        return torch.addcmul(x_NXD * cos_NXD, x_NXD.roll(self.half, dims=-1), sin_NXD)


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


def grouped_attention(q_RTQD: Tensor, k_RJSD: Tensor, v_RJSD: Tensor, mask_RGTS: Tensor | None) -> Tensor:
    """Attention of few query rows over many cached ones: [R, T, Q, D].

    The G query heads that share a key head are folded into its rows, so keys and values are read once, unexpanded.
    `mask_RGTS` is additive, shaped [R, 1, G * T, S].
    """
    requests, rows, heads, size = q_RTQD.shape
    shared = k_RJSD.shape[1]
    group = heads // shared
    q = q_RTQD.view(requests, rows, shared, group, size).permute(0, 2, 3, 1, 4).reshape(requests, shared, group * rows, size)
    out = F.scaled_dot_product_attention(q, k_RJSD, v_RJSD, attn_mask=mask_RGTS)
    return out.view(requests, shared, group, rows, size).permute(0, 3, 1, 2, 4).reshape(requests, rows, heads, size)


def causal_mask(lengths_R: Tensor, rows: int, span: int, group: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [R, 1, G * T, S]: row t of a request with `lengths` committed tokens sees positions up to `lengths + t`."""
    last_RT = lengths_R[:, None] + torch.arange(rows, device=lengths_R.device)
    hidden_RTS = torch.arange(span, device=lengths_R.device) > last_RT[:, :, None]
    mask = torch.zeros(hidden_RTS.shape, dtype=dtype, device=lengths_R.device).masked_fill_(hidden_RTS, float("-inf"))
    return mask.repeat(1, group, 1).unsqueeze(1)
