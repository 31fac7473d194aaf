"""EAGLE-3: one decoder layer that reads fused features of three target layers, with a head over the frequent tokens.

    f_i   = fc [tap_low; tap_mid; tap_high]                 first pass of a cycle; each tap normed first in EAGLE-3.1 (fc_norm)
    u_i   = [input_layernorm(E x_{i+1}); hidden_norm(f_i)]  the embedding first
    s     = r + attention(u),  r = f_i, or hidden_norm(f_i) with norm_before_residual
    o     = s + mlp(post_attention_layernorm(s))
    token = d2t[argmax lm_head(norm(o))] + argmax           d2t holds offsets, not ids
    f     = o, or norm(o) with norm_output (EAGLE-3.1)      recycled to the next pass

Read are the checkpoints of SafeAILab and SpecForge (`midlayer.`), of vLLM (`layers.0.`), and of speculators. (arXiv 2503.01840,
2605.09992; tensor names as published. `logit_scale` is not applied: it does not change which token is likeliest.)

Shape legend, leading dimensions free: H draft width, M taps times target width, V draft vocabulary, U target vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from drafters.chain import Chain, SerialPasses
from drafters.contract import Draft, Tap, Target
from drafters.decoder_layer import Attend, Attention, Keep, LayerConfig, Mlp, Rotation, every_row
from drafters.drafter_checkpoint import (
    DrafterWeights,
    check_fits,
    check_options,
    check_taps,
    load_into,
    read_drafter_config,
    size_of,
    taps_from_layer_inputs,
)
from drafters.packing import pack

# Variants that share names with EAGLE-3 and are not implemented: running them as EAGLE-3 would only lower acceptance.
_UNSUPPORTED = ("parallel_drafting",)
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_LEGACY_NORMS = ("aux_norm_low", "aux_norm_mid", "aux_norm_high")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """What a checkpoint is. `taps` are 0-based outputs of target layers; `target_hidden` is the width of each."""

    layer: LayerConfig
    taps: tuple[int, ...]
    target_hidden: int
    vocab: int
    own_head: bool
    norm_before_residual: bool
    norm_output: bool
    tap_norms: bool
    input_norm: bool


class Eagle3Layer(nn.Module):
    """`midlayer`: the attention reads twice the width, and the residual is the feature."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.norm_before_residual = config.norm_before_residual
        hidden, eps = config.layer.hidden, config.layer.eps
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)
        self.self_attn = Attention(config.layer)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.mlp = Mlp(config.layer)

    def forward(self, embedded_H: Tensor, feature_H: Tensor, rotation: Rotation, attend: Attend, keep: Keep) -> Tensor:
        normed_H = self.hidden_norm(feature_H)
        residual_H = normed_H if self.norm_before_residual else feature_H
        u = torch.cat((self.input_layernorm(embedded_H), normed_H), dim=-1)
        s_H = keep(residual_H) + self.self_attn(u, rotation, attend, keep)
        out: Tensor = s_H + self.mlp(self.post_attention_layernorm(s_H))
        return out


class Eagle3Network(nn.Module):
    """Everything that a checkpoint holds but an embedding; its state dict has the published names. A `chain.ChainNetwork`.

    `lm_head` is null where the checkpoint has no head of its own and reads by `shared_head`, the target's. `d2t` is null for a
    full vocabulary.
    """

    def __init__(self, config: Eagle3Config, shared_head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.config = config
        width, eps = config.target_hidden, config.layer.eps
        self.fc_norm = nn.ModuleList(nn.RMSNorm(width, eps=eps) for _ in config.taps) if config.tap_norms else None
        self.input_norm = nn.RMSNorm(len(config.taps) * width, eps=eps) if config.input_norm else None
        self.fc = nn.Linear(len(config.taps) * width, config.layer.hidden, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = nn.RMSNorm(config.layer.hidden, eps=eps)
        self.lm_head = nn.Linear(config.layer.hidden, config.vocab, bias=False) if config.own_head else None
        self.d2t: Tensor | None
        self.register_buffer("d2t", None)
        # Behind a function, because it may be a module, and is the target's: not this network's to save or to pack.
        self.shared_head: Callable[[Tensor], Tensor] = lambda state_H: shared_head(state_H)

    def fuse(self, hidden_M: Tensor) -> Tensor:
        """Tapped states to the feature of a first pass."""
        if self.fc_norm is not None:
            taps = hidden_M.chunk(len(self.fc_norm), dim=-1)
            hidden_M = torch.cat([norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True)], dim=-1)
        if self.input_norm is not None:
            hidden_M = self.input_norm(hidden_M)
        feature_H: Tensor = self.fc(hidden_M)
        return feature_H

    def step(self, embedded_H: Tensor, feature_H: Tensor, rotation: Rotation, attend: Attend, keep: Keep = every_row) -> Tensor:
        output_H: Tensor = self.midlayer(embedded_H, feature_H, rotation, attend, keep)
        return output_H

    def read(self, output_H: Tensor) -> tuple[Tensor, Tensor]:
        state_H = self.norm(output_H)
        return state_H, state_H if self.config.norm_output else output_H

    def logits(self, state_H: Tensor) -> Tensor:
        """Over the draft vocabulary."""
        logits_V: Tensor = self.shared_head(state_H) if self.lm_head is None else self.lm_head(state_H)
        return logits_V

    def best(self, state_H: Tensor) -> Tensor:
        ids = self.logits(state_H).argmax(-1)
        return ids if self.d2t is None else ids + self.d2t[ids]


class Eagle3Drafter:
    """Option `tap_numbering`: whether explicit layer ids of the checkpoint name layer `inputs` (as published) or `outputs`."""

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        self.check_options(options)
        if checkpoint is None:
            raise ValueError("checkpoint: EAGLE-3 needs one; set checkpoint.location to its folder")
        weights = DrafterWeights(checkpoint, target.dtype, target.device)
        config = read_drafter_config(checkpoint)
        network, own_embedding = load_eagle3(weights, config, target, str(options["tap_numbering"]))
        self.taps: tuple[Tap, ...] = network.config.taps
        self.network = network
        embedding = target.embedding if own_embedding is None else own_embedding
        self._weight_bytes = pack(network) + (0 if own_embedding is None else own_embedding.nbytes)
        self.chain = Chain(network, SerialPasses(1, network.config.layer, embedding, target), target.slots)

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        check_options(options, {"tap_numbering": ("inputs", "outputs")}, "EAGLE-3")

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        self.chain.observe(slots, hidden_RTM, tokens_RT, counts)

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        return self.chain.propose(slots, budgets)

    def release(self, slot: int) -> None:
        self.chain.cache.release(slot)

    def memory(self) -> dict[str, int]:
        return {"weights": self._weight_bytes, "state": self.chain.bytes}


def load_eagle3(
    weights: DrafterWeights, config: Mapping[str, Any], target: Target, tap_numbering: str
) -> tuple[Eagle3Network, Tensor | None]:
    """The network filled from a checkpoint, unpacked, and the checkpoint's own embedding where it has one.

    Raises ValueError for whatever does not fit, naming the tensor or key.
    """
    layer_at = "layers.0." if "layers.0.self_attn.q_proj.weight" in weights else "midlayer."
    read = _read_config(weights, config, target, layer_at, tap_numbering)
    with torch.device("meta"):
        network = Eagle3Network(read, target.head)
    legacy = f"{_LEGACY_NORMS[0]}.weight" in weights
    load_into(network, weights, lambda name: _published(name, layer_at, legacy))
    full = read.vocab == size_of(config, "vocab_size", target.vocab_size)
    network.d2t = None if full and "d2t" not in weights else _offsets(weights, read.vocab, target.vocab_size)
    own_embedding = weights.optional("embed_tokens.weight", (None, read.layer.hidden))
    if own_embedding is not None and own_embedding.shape[0] < size_of(config, "vocab_size", target.vocab_size):
        raise ValueError(f"{weights.folder}: tensor 'embed_tokens.weight' has fewer rows than config.json's vocab_size")
    weights.finish()
    return network, own_embedding


def eagle3_taps(config: Mapping[str, Any], num_layers: int, tap_numbering: str) -> tuple[int, ...]:
    """0-based layer outputs: the config's own ids, else what enters layers 2, L // 2 and L - 3."""
    nested: Mapping[str, Any] = config.get("eagle_config") or {}
    ids = config.get(_LAYER_IDS) or nested.get(_LAYER_IDS)
    if ids is None:
        taps = taps_from_layer_inputs((2, num_layers // 2, num_layers - 3))
    else:
        taps = taps_from_layer_inputs(ids) if tap_numbering == "inputs" else tuple(ids)
    check_taps(taps, num_layers, f"config.json: {_LAYER_IDS}")
    return taps


def _read_config(
    weights: DrafterWeights, config: Mapping[str, Any], target: Target, layer_at: str, tap_numbering: str
) -> Eagle3Config:
    for key in _UNSUPPORTED:
        if config.get(key):
            raise ValueError(f"config.json: '{key}' is not implemented; use a checkpoint without it")
    if (layers := size_of(config, "num_hidden_layers", 1)) != 1:
        raise ValueError(f"config.json: num_hidden_layers {layers} is not implemented; EAGLE-3 has 1")
    check_fits(config, target, shares_embedding="embed_tokens.weight" not in weights)
    own_head, vocab = "lm_head.weight" in weights, size_of(config, "vocab_size", target.vocab_size)
    draft_vocab = size_of(config, "draft_vocab_size", vocab)
    hidden = size_of(config, "hidden_size")
    if not own_head and (draft_vocab != vocab or hidden != target.hidden_size):
        raise ValueError(f"{weights.folder}: tensor 'lm_head.weight' [{draft_vocab}, {hidden}] is missing; {_HEAD}")
    return Eagle3Config(
        layer=LayerConfig.read(config, weights, layer_at, 2 * hidden),
        taps=eagle3_taps(config, target.num_layers, tap_numbering),
        target_hidden=target.hidden_size,
        vocab=draft_vocab,
        own_head=own_head,
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_output=bool(config.get("norm_output", False)),
        tap_norms=any(f"{name}.weight" in weights for name in ("fc_norm.0", _LEGACY_NORMS[0])),
        input_norm="input_norm.weight" in weights,
    )


_HEAD = "only a drafter of the target's own width and vocabulary can share its head"


def _published(name: str, layer_at: str, legacy_norms: bool) -> str:
    """The checkpoint's name of a parameter of `Eagle3Network`."""
    if name.startswith("fc_norm.") and legacy_norms:
        return f"{_LEGACY_NORMS[int(name.split('.')[1])]}.weight"
    return name.replace("midlayer.", layer_at, 1)


def _offsets(weights: DrafterWeights, vocab: int, target_vocab: int) -> Tensor:
    """`d2t`, checked: every draft id must lead to a target token of its own, the one that `t2d` marks where that is there.

    Absolute ids in its place are what the check is for: they run, and accept almost nothing.
    """
    d2t_V = weights.take("d2t", (vocab,)).long()
    ids_V = torch.arange(vocab, device=d2t_V.device) + d2t_V
    if int(ids_V.min()) < 0 or int(ids_V.max()) >= target_vocab:
        raise ValueError(f"{weights.folder}: tensor 'd2t' leads outside the target's {target_vocab} tokens; {_OFFSETS}")
    if len(ids_V.unique()) != vocab:
        raise ValueError(f"{weights.folder}: tensor 'd2t' leads two draft ids to the same token; {_OFFSETS}")
    t2d_U = weights.optional("t2d", (None,))
    if t2d_U is not None and t2d_U.bool().nonzero().flatten().tolist() != sorted(ids_V.tolist()):
        raise ValueError(f"{weights.folder}: tensors 'd2t' and 't2d' name different tokens; {_OFFSETS}")
    return d2t_V


_OFFSETS = "it must hold offsets: target id = draft id + d2t[draft id]"
