"""A small EAGLE-3 of random weights, in the published names, for the target of `tiny_gguf`."""

import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from tiny_gguf import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS

DRAFT_VOCAB = 8
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "draft_vocab_size": DRAFT_VOCAB,
    "eagle_aux_hidden_state_layer_ids": [1, 1, LAYERS],
}


def checkpoint(folder: Path, vocab: int, seed: int = 0, **more: torch.Tensor) -> Path:
    sizes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        "norm.weight": (HIDDEN,),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "midlayer.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj.weight": (FFN, HIDDEN),
        "midlayer.mlp.up_proj.weight": (FFN, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, FFN),
    }
    noise = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(size, generator=noise) for name, size in sizes.items()}
    tensors["d2t"] = torch.arange(DRAFT_VOCAB) * 2  # draft id i is token 3 i
    folder.mkdir(exist_ok=True)
    save_file(tensors | more, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": vocab}))
    return folder


def vocabulary(target: Path) -> int:
    return len(gguf.GGUFReader(target).fields["tokenizer.ggml.tokens"].data)
