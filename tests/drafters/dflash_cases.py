"""Random tiny DFlash checkpoints by the published table of names and shapes, and a naive model of them: one request, no cache.

The naive model is written from the specification alone: it shares no code with `drafters`.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

H, MLP, Q, J, D, V, B = 48, 64, 4, 2, 12, 160, 8
THETA = 500.0
TAPS = [0, 2]
CPU = torch.device("cpu")

# Layer rules by name: each is (layer_types, is_causal) for three layers.
RULES: dict[str, dict[str, Any]] = {
    "full": {"layer_types": ["full_attention"] * 3},
    "legacy": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6},
    "windowed": {"layer_types": ["sliding_attention"] * 3, "sliding_window": 5, "is_causal": False},
    "causal": {"layer_types": ["full_attention"] * 3, "is_causal": True},
}


def config_of(generation: int, rule: str = "full", vocab: int = V, **inner: Any) -> dict[str, Any]:
    """A `config.json`; `inner` overrides keys of `dflash_config`."""
    family: dict[str, Any] = {"mask_token_id": vocab - 1, "target_layer_ids": TAPS}
    if generation == 2:
        family |= {"block_size": B, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 6, "selector_top_k": 5}
    sizes = {"hidden_size": H, "intermediate_size": MLP, "num_hidden_layers": 3, "num_attention_heads": Q}
    more = {"num_key_value_heads": J, "head_dim": D, "vocab_size": vocab, "rms_norm_eps": 1e-6, "attention_bias": False}
    rope = {"rope_theta": THETA, "max_position_embeddings": 512, "num_target_layers": 3}
    name = "DFlash2DraftModel" if generation == 2 else "DFlashDraftModel"
    top = {"architectures": [name], "model_type": "qwen3"} | ({} if generation == 2 else {"block_size": B})
    return {**top, **sizes, **more, **rope, **RULES[rule], "dflash_config": family | inner}


def tensors_of(config: dict[str, Any], seed: int = 3) -> dict[str, Tensor]:
    """Random tensors by the published table, large enough that every one of them matters."""
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random) * 1.2 / shape[-1] ** 0.5

    def norm(size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size, generator=random)

    family, vocab = config["dflash_config"], config["vocab_size"]
    t = {"fc.weight": matrix(H, len(family["target_layer_ids"]) * H), "hidden_norm.weight": norm(H), "norm.weight": norm(H)}
    for i in range(config["num_hidden_layers"]):
        at = f"layers.{i}."
        t |= {at + "input_layernorm.weight": norm(H), at + "post_attention_layernorm.weight": norm(H)}
        t |= {at + "self_attn.q_proj.weight": matrix(Q * D, H), at + "self_attn.o_proj.weight": matrix(H, Q * D)}
        t |= {at + f"self_attn.{x}_proj.weight": matrix(J * D, H) for x in "kv"}
        t |= {at + f"self_attn.{x}_norm.weight": norm(D) for x in "qk"}
        t |= {at + f"mlp.{x}_proj.weight": matrix(MLP, H) for x in ("gate", "up")} | {
            at + "mlp.down_proj.weight": matrix(H, MLP)
        }
        if "conv_kernel_size" in family:
            taps, groups = family["conv_kernel_size"], H // family["conv_group_size"]
            for conv in ("attention_conv", "mlp_conv"):
                t[at + conv + ".base_kernel"] = torch.randn((2, taps, H), generator=random) * 0.5
                t[at + conv + ".kernel_projection.weight"] = matrix(2 * taps * groups, H)
    if "selector_rank" in family:
        rank = family["selector_rank"]
        for book in ("predecessor", "successor"):
            t[f"candidate_selector.{book}_codebook"] = torch.randn((vocab, rank), generator=random)
        t["candidate_selector.hidden_projection.weight"] = matrix(rank, H)
    return t


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def fake_target(vocab: int = V, slots: int = 4) -> Any:
    """What a drafter asks of a target, with a random table and head and nothing behind them."""
    random = torch.Generator().manual_seed(11)
    table, head = torch.randn((vocab, H), generator=random), torch.randn((vocab, H), generator=random) / H**0.5
    sizes = {"hidden_size": H, "num_layers": 3, "vocab_size": vocab, "slots": slots, "max_length": 128}
    return SimpleNamespace(**sizes, dtype=torch.float32, device=CPU, embedding=table, head=lambda x: x @ head.T, matrix=head)


def naive_hidden(config: dict[str, Any], t: dict[str, Tensor], taps_SM: Tensor, block_BH: Tensor) -> Tensor:
    """States after the final norm [B, H] of an embedded block behind S context rows."""
    start, rows = taps_SM.shape[0], block_BH.shape[0]
    c_SH = _norm(taps_SM @ t["fc.weight"].T, t["hidden_norm.weight"])
    x_BH = block_BH
    for i in range(config["num_hidden_layers"]):
        w = {name[len(f"layers.{i}.") :]: tensor for name, tensor in t.items() if name.startswith(f"layers.{i}.")}
        seen = [[_sees(config, i, start, start + b, s) for s in range(start + rows)] for b in range(rows)]
        u_BH = _norm(x_BH, w["input_layernorm.weight"])
        x_BH = x_BH + _convolved(config, w, "attention_conv", u_BH, lambda u, w=w, s=seen: _attention(w, u, c_SH, s))
        u_BH = _norm(x_BH, w["post_attention_layernorm.weight"])
        x_BH = x_BH + _convolved(config, w, "mlp_conv", u_BH, lambda u, w=w: _mlp(w, u))
    return _norm(x_BH, t["norm.weight"])


def naive_logits(config: dict[str, Any], head_VH: Tensor, hidden_KH: Tensor) -> Tensor:
    family = config["dflash_config"]
    logits = hidden_KH @ head_VH.T * family.get("output_multiplier", 1.0)
    cap = family.get("final_logit_softcapping")
    return cap * torch.tanh(logits / cap) if cap else logits


def naive_walk(config: dict[str, Any], t: dict[str, Tensor], hidden_KH: Tensor, logits_KV: Tensor, anchor: int) -> list[int]:
    """The greedy walk, one slot after the other."""
    path = [anchor]
    for h_H, z_V in zip(hidden_KH, logits_KV, strict=True):
        gate = t["candidate_selector.hidden_projection.weight"] @ h_H
        before = t["candidate_selector.predecessor_codebook"][path[-1]]
        candidates = z_V.topk(config["dflash_config"]["selector_top_k"]).indices.tolist()
        score = {b: float(z_V[b] + (before * gate * t["candidate_selector.successor_codebook"][b]).sum()) for b in candidates}
        path.append(max(score, key=score.__getitem__))
    return path[1:]


def _sees(config: dict[str, Any], layer: int, start: int, query: int, key: int) -> bool:
    sliding = config["layer_types"][layer] == "sliding_attention"
    causal = config.get("is_causal", sliding)
    if causal and key > query:
        return False
    return not sliding or abs(query - key) < config["sliding_window"]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def _mlp(w: dict[str, Tensor], u: Tensor) -> Tensor:
    gate = u @ w["mlp.gate_proj.weight"].T
    return (gate * gate.sigmoid() * (u @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


def _convolved(config: dict[str, Any], w: dict[str, Tensor], name: str, u_BH: Tensor, sublayer: Any) -> Tensor:
    if name + ".base_kernel" not in w:
        return sublayer(u_BH)
    base, group = w[name + ".base_kernel"], config["dflash_config"]["conv_group_size"]
    made = (u_BH @ w[name + ".kernel_projection.weight"].T).view(len(u_BH), 2, base.shape[1], H // group)

    def convolve(side: int, z: Tensor) -> Tensor:
        out = torch.zeros_like(z)
        for b in range(len(z)):
            for tau in range(min(base.shape[1], b + 1)):
                out[b] += (base[side, tau] + made[b, side, tau, torch.arange(H) // group]) * z[b - tau]
        return out

    return convolve(1, sublayer(convolve(0, u_BH)))


def _attention(w: dict[str, Tensor], u_BH: Tensor, c_SH: Tensor, seen: list[list[bool]]) -> Tensor:
    start = len(c_SH)
    both = torch.cat((c_SH, u_BH))
    q = _norm((u_BH @ w["self_attn.q_proj.weight"].T).view(-1, Q, D), w["self_attn.q_norm.weight"])
    k = _norm((both @ w["self_attn.k_proj.weight"].T).view(-1, J, D), w["self_attn.k_norm.weight"])
    v = (both @ w["self_attn.v_proj.weight"].T).view(-1, J, D)
    out = torch.empty_like(q)
    for b in range(len(u_BH)):
        for h in range(Q):
            turned = _turn(q[b, h], start + b)
            scores = torch.stack([turned @ _turn(k[s, h * J // Q], s) / D**0.5 for s in range(len(both))])
            scores[~torch.tensor(seen[b])] = float("-inf")
            out[b, h] = scores.softmax(0) @ v[:, h * J // Q]
    return out.flatten(1) @ w["self_attn.o_proj.weight"].T


def _turn(x_D: Tensor, position: int) -> Tensor:
    angle = position / THETA ** (torch.arange(0, D, 2) / D)
    a, b = x_D[: D // 2], x_D[D // 2 :]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()))
