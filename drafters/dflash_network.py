"""The DFlash network: a small decoder over a block [anchor, MASK, ..], with the target's states injected as keys and values.

    c = hidden_norm(fc [tap_1; ..; tap_K])                       one row per committed token, the same for every layer
    k = [k_norm(Wk c); k_norm(Wk u)],  v = [Wv c; Wv u]          u = input_layernorm(x), the block's own rows
    x = x + Wo attention(q_norm(Wq u), k, v);  x = x + mlp(post_attention_layernorm(x));  h = norm(x)

Context rows are never queries and `c` passes no layer norm, so keys and values of a token are computed once and kept. Where
they are kept, and which of them a row sees, is the caller's: the network hands queries, keys and values of the block to an
`Attend`. A drafter answers from its slots; training answers from a packed mask. (arXiv 2602.06036; names as published.)

Shape legend, leading dimensions free: B rows of a block, H hidden, Q query heads, J key/value heads, D head size, M taps times
H. Rotary tables are [.., B, 1, D].
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from drafters.dflash_config import DFlashConfig

Rotation = tuple[Tensor, Tensor]
# attend(layer, q [.., B, Q, D], k [.., B, J, D], v [.., B, J, D]) gives [.., B, Q, D]; q and k are rotated.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class DFlashAttention(nn.Module):
    """Projections, head norms and rotation. The same key and value maps serve the block and the injected context."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, queries, bias=config.bias)
        self.k_proj = nn.Linear(config.hidden, shared, bias=config.bias)
        self.v_proj = nn.Linear(config.hidden, shared, bias=config.bias)
        self.o_proj = nn.Linear(queries, config.hidden, bias=config.bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.eps)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [.., J, D] of block rows or of context rows."""
        k, v = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        return rotate(self.k_norm(k), rotation), v

    def forward(self, x: Tensor, rotation: Rotation, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        q = rotate(self.q_norm(self._heads(self.q_proj(x))), rotation)
        out: Tensor = self.o_proj(attend(q, *self.keys_values(x, rotation)).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads


class DFlashMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Bare(nn.Module):
    """What stands around a sublayer in DFlash: nothing. DFlash 2 puts a convolution here."""

    def forward(self, u: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return sublayer(u)


class DFlashLayer(nn.Module):
    """One pre-norm layer. `attention_conv` and `mlp_conv` wrap its sublayers."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.self_attn = DFlashAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.mlp = DFlashMlp(config)
        self.attention_conv: nn.Module = Bare()
        self.mlp_conv: nn.Module = Bare()

    def forward(self, x: Tensor, rotation: Rotation, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        x = x + self.attention_conv(self.input_layernorm(x), lambda u: self.self_attn(u, rotation, attend))
        out: Tensor = x + self.mlp_conv(self.post_attention_layernorm(x), self.mlp)
        return out


class DFlashNetwork(nn.Module):
    """Everything that a checkpoint holds. Embedding and head are the target's."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.taps) * config.hidden, config.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=config.eps)

    def context(self, taps_M: Tensor, rotation: Rotation) -> list[tuple[Tensor, Tensor]]:
        """Rotated keys and values [.., J, D] that committed tokens give to each layer, from their tapped states [.., M]."""
        c = self.hidden_norm(self.fc(taps_M))
        return [layer.self_attn.keys_values(c, rotation) for layer in self._layers()]

    def forward(self, x_BH: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Embedded blocks [.., B, H] to states after the final norm, for the head."""
        for i, layer in enumerate(self._layers()):
            x_BH = layer(x_BH, rotation, lambda q, k, v, i=i: attend(i, q, k, v))
        out: Tensor = self.norm(x_BH)
        return out

    def transform(self, logits: Tensor) -> Tensor:
        """The output multiplier and the soft cap, in this order, on what the head gave."""
        config = self.config
        logits = logits * config.output_multiplier if config.output_multiplier != 1 else logits
        return config.softcap * (logits / config.softcap).tanh() if config.softcap > 0 else logits

    def _layers(self) -> list[DFlashLayer]:
        return [layer for layer in self.layers if isinstance(layer, DFlashLayer)]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotary positions, neox halves, on heads [.., X, D]; the sine carries the sign of the rotated half."""
    cos, sin = rotation
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin
