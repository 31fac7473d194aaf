"""DenseTarget: a slot-cached decoder for the Llama, Qwen2 and Qwen3 dense families.

Static where it counts: every pass is `[R, T]` rows over `[R, S]` cached positions, so that on a GPU the narrow passes can be
captured as CUDA graphs (`drafters.graphs`). Logits equal those of transformers to 1e-4 in float32.

Shape legend: R requests, T rows per request, N = R * T, S span of cached positions, H hidden, Q query heads, J key/value heads,
D head size, V vocabulary, M = taps * H.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.contract import Forward, Tap
from drafters.graphs import GraphPool
from drafters.layers import Linear, RmsNorm, Rotary, causal_mask, grouped_attention, inverse_frequencies, swiglu
from drafters.slots import SlotCache, slot_index
from drafters.weights import Weights, read_config

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

# Scratch rows behind the context limit of each slot, for drafts that will be rejected or cut. No arm may draft wider.
SCRATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """The sizes of a dense decoder, read from a Hugging Face config."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    tied: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> DenseConfig:
        if (family := config.get("model_type")) not in FAMILIES:
            raise ValueError(
                f"config.json: model_type '{family}' is not a dense family {FAMILIES}; use drafters.hybrid.TransformersTarget"
            )
        if config.get("use_sliding_window") or (family == "mistral" and config.get("sliding_window")):
            raise ValueError("config.json: sliding windows are not dense attention; use drafters.hybrid.TransformersTarget")
        heads = int(config["num_attention_heads"])
        return cls(
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab=int(config["vocab_size"]),
            eps=float(config["rms_norm_eps"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )


class DenseLayer:
    """One pre-norm decoder layer: grouped attention with rotary positions, then SwiGLU."""

    def __init__(self, config: DenseConfig, weights: Weights, index: int) -> None:
        self.config, self.index = config, index
        at = f"model.layers.{index}."
        self.input_norm = RmsNorm(weights[at + "input_layernorm.weight"], config.eps)
        self.post_norm = RmsNorm(weights[at + "post_attention_layernorm.weight"], config.eps)
        self.qkv = _fused(weights, [at + f"self_attn.{x}_proj" for x in "qkv"])
        self.o = _fused(weights, [at + "self_attn.o_proj"])
        self.gate_up = _fused(weights, [at + "mlp.gate_proj", at + "mlp.up_proj"])
        self.down = _fused(weights, [at + "mlp.down_proj"])
        head_norms = [weights.optional(at + f"self_attn.{x}_norm.weight") for x in "qk"]
        self.head_norms = [RmsNorm(weight_D, config.eps) for weight_D in head_norms if weight_D is not None]

    def __call__(self, x_NH: Tensor, batch: Batch, rotary: Rotary, cache: SlotCache) -> Tensor:
        x_NH = x_NH + self.o(self._attend(self.input_norm(x_NH), batch, rotary, cache))
        return x_NH + self.down(swiglu(self.gate_up(self.post_norm(x_NH))))

    def _attend(self, x_NH: Tensor, batch: Batch, rotary: Rotary, cache: SlotCache) -> Tensor:
        c = self.config
        qkv_NXD = self.qkv(x_NH).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        if self.head_norms:
            q, k, v = qkv_NXD.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
            qkv_NXD = torch.cat((self.head_norms[0](q), self.head_norms[1](k), v), dim=1)
        q, kv = rotary.rotate(qkv_NXD, batch.cos, batch.sin).split((c.heads, 2 * c.kv_heads), dim=1)
        cache.write(self.index, batch.rows, kv)
        keys, values = cache.read(self.index, batch.slots, batch.span)
        q_RTQD = q.reshape(batch.requests, batch.width, c.heads, c.head_dim)
        return grouped_attention(q_RTQD, keys, values, batch.mask).reshape(-1, c.heads * c.head_dim)

    @property
    def bytes(self) -> int:
        linears = (self.qkv, self.o, self.gate_up, self.down)
        norms = (self.input_norm, self.post_norm, *self.head_norms)
        return sum(linear.bytes for linear in linears) + sum(norm.bytes for norm in norms)


@dataclass(frozen=True, slots=True)
class Batch:
    """What every layer of one pass needs to know about its rows."""

    requests: int
    width: int
    span: int
    slots: slice | Tensor
    rows: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor | None


class DenseTarget:
    """The target protocol of `drafters.contract` over `DenseLayer`s. Float32 or bfloat16, CPU or CUDA."""

    def __init__(
        self,
        folder: Path | str,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
        max_length: int,
    ) -> None:
        raw = read_config(Path(folder))
        self.config = DenseConfig.read(raw)
        self.dtype, self.device = dtype, device
        self.hidden_size, self.num_layers, self.vocab_size = self.config.hidden, self.config.layers, self.config.vocab
        self.slots, self.max_length = slots, max_length
        self._load(Weights(Path(folder), dtype, device))
        frequencies, scaling = inverse_frequencies(raw, self.config.head_dim)
        self.rotary = Rotary(frequencies.to(device), scaling, max_length + SCRATCH_ROWS, dtype)
        c = self.config
        # One slot more than requests: padding rows of a captured batch are written there.
        self.cache = SlotCache(c.layers, slots + 1, max_length + SCRATCH_ROWS, c.kv_heads, c.head_dim, dtype, device)
        self.graphs = GraphPool(device)

    def _load(self, weights: Weights) -> None:
        self._embedding_VH = weights["model.embed_tokens.weight"]
        self.layers = [DenseLayer(self.config, weights, i) for i in range(self.config.layers)]
        self.final_norm = RmsNorm(weights["model.norm.weight"], self.config.eps)
        own_head = None if self.config.tied else weights.optional("lm_head.weight")
        self._head = Linear(self._embedding_VH if own_head is None else own_head)
        self.head_is_a_copy = own_head is not None or self._head.packed

    @torch.inference_mode()
    def forward(
        self, slots: Sequence[int], tokens_RT: Tensor, counts: Sequence[int], last_only: bool, taps: Sequence[Tap] = ()
    ) -> Forward:
        """See `Target.forward`. Raises ValueError when a slot would overflow its capacity."""
        requests, width = tokens_RT.shape
        lengths = [self.cache.lengths[slot] for slot in slots]
        if max(lengths) + width > self.cache.capacity:
            raise ValueError(f"slot overflow: {max(lengths)} + {width} rows in slots of {self.cache.capacity} tokens")
        if not last_only and (shape := self.graphs.padded(requests, width)):
            return self._captured(slots, lengths, tokens_RT, shape, tuple(taps))
        span = max(lengths) + width
        lengths_R = torch.tensor(lengths, device=self.device)
        where = slot_index(slots, self.device)
        slots_R = torch.tensor(slots, device=self.device)
        last_R = torch.tensor(counts, device=self.device) - 1 if last_only else None
        logits, hidden = self._pass(tokens_RT, lengths_R, slots_R, where, span, last_R, tuple(taps))
        return Forward(logits, hidden)

    def capture(self, batch_sizes: Sequence[int], widths: Sequence[int], taps: Sequence[Tap]) -> int:
        """Capture the decode passes of these request counts and row widths, over spans in powers of two, before any is timed.

        Returns the number of graphs. Off CUDA there is nothing to capture, and `forward` stays eager.
        """
        self.graphs.use(batch_sizes, widths)
        for size in self.graphs.batch_sizes:
            for width in self.graphs.widths:
                for span in self._spans():
                    tokens = torch.zeros((size, width), dtype=torch.int64, device=self.device)
                    self._replay(tokens, [self.slots] * size, [0] * size, span, tuple(taps))
        return len(self.graphs)

    def _captured(
        self, slots: Sequence[int], lengths: list[int], tokens_RT: Tensor, shape: tuple[int, int], taps: tuple[Tap, ...]
    ) -> Forward:
        """The same pass at a captured shape: padding requests live in the spare slot, padding rows are scratch."""
        requests, width = tokens_RT.shape
        spare = shape[0] - requests
        tokens = F.pad(tokens_RT, (0, shape[1] - width, 0, spare))
        needed = max(lengths) + shape[1]
        span = next(s for s in self._spans() if s >= needed)
        logits, hidden = self._replay(tokens, [*slots, *[self.slots] * spare], [*lengths, *[0] * spare], span, taps)
        return Forward(logits[:requests, :width], None if hidden is None else hidden[:requests, :width])

    def _replay(
        self, tokens_RT: Tensor, slots: list[int], lengths: list[int], span: int, taps: tuple[Tap, ...]
    ) -> tuple[Tensor, Tensor | None]:
        def run(tokens: Tensor, lengths: Tensor, slots: Tensor) -> tuple[Tensor, Tensor | None]:
            return self._pass(tokens, lengths, slots, slots, span, None, taps)

        inputs = (tokens_RT, torch.tensor(lengths, device=self.device), torch.tensor(slots, device=self.device))
        return self.graphs.run((*tokens_RT.shape, span, taps), run, inputs)

    def _spans(self) -> list[int]:
        """Lengths of cache that captured passes look at: powers of two up to the capacity."""
        powers = [1 << n for n in range(8, self.cache.capacity.bit_length())]
        return [*[p for p in powers if p < self.cache.capacity], self.cache.capacity]

    def _pass(
        self,
        tokens_RT: Tensor,
        lengths_R: Tensor,
        slots_R: Tensor,
        where: slice | Tensor,
        span: int,
        last_R: Tensor | None,
        taps: tuple[Tap, ...],
    ) -> tuple[Tensor, Tensor | None]:
        """Tensors in, tensors out, shapes fixed by the arguments' shapes and `span`: what a graph can capture."""
        batch = self._batch(tokens_RT, lengths_R, slots_R, where, span)
        x_NH = self._embedding_VH[tokens_RT.flatten()]
        tapped: dict[Tap, Tensor] = {}
        for i, layer in enumerate(self.layers):
            x_NH = layer(x_NH, batch, self.rotary, self.cache)
            if i in taps:
                tapped[i] = x_NH
        final_NH = self.final_norm(x_NH)
        tapped["final"] = final_NH
        shape = (batch.requests, batch.width)
        hidden = torch.cat([tapped[tap] for tap in taps], dim=-1).unflatten(0, shape) if taps else None
        if last_R is not None:
            final_NH = final_NH.unflatten(0, shape)[torch.arange(batch.requests, device=self.device), last_R]
        logits = self._head(final_NH).unflatten(0, (batch.requests, -1))
        return logits, hidden

    def _batch(self, tokens_RT: Tensor, lengths_R: Tensor, slots_R: Tensor, where: slice | Tensor, span: int) -> Batch:
        requests, width = tokens_RT.shape
        positions_RT = lengths_R[:, None] + torch.arange(width, device=self.device)
        rows = self.cache.rows(slots_R, positions_RT)
        c = self.config
        cos, sin = self.rotary.at(positions_RT.flatten(), c.heads + c.kv_heads, c.kv_heads)
        # One request with one row sees its whole span: no mask, and the kernel is faster without one.
        alone = requests == 1 and width == 1 and isinstance(where, slice)
        mask = None if alone else causal_mask(lengths_R, width, span, c.heads // c.kv_heads, self.dtype)
        return Batch(requests, width, span, where, rows, cos, sin, mask)

    def commit(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        self.cache.commit(slots, counts)

    @property
    def embedding(self) -> Tensor:
        return self._embedding_VH

    @property
    def head(self) -> Linear:
        return self._head

    def length(self, slot: int) -> int:
        return self.cache.lengths[slot]

    def release(self, slot: int) -> None:
        self.cache.release(slot)

    def memory(self) -> dict[str, int]:
        """Bytes of weights (a packed tied head is a second copy and counts) and of cache; `kv_tokens` that requests may use."""
        head = self._head.bytes if self.head_is_a_copy else 0
        weights = self._embedding_VH.nbytes + head + self.final_norm.bytes + sum(layer.bytes for layer in self.layers)
        return {"weights": weights, "kv": self.cache.bytes, "kv_tokens": self.slots * self.max_length}


def _fused(weights: Weights, names: list[str]) -> Linear:
    """Projections of the same input as one product; their biases, when there are any, likewise."""
    biases = [weights.optional(name + ".bias") for name in names]
    bias = torch.cat([b for b in biases if b is not None]) if all(b is not None for b in biases) else None
    return Linear(weights.stacked(*[name + ".weight" for name in names]), bias)
