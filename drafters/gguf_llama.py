"""A Llama-family GGUF file, dequantised to float32, as the folder that transformers would have saved.

Why not `from_pretrained(gguf_file=...)`: it refuses to save what it dequantised, and its tokenizer leaves out the digit
split of SmolLM2. Tensor legend: O output features, I input features, V vocabulary, H hidden size.
Source of the layout: the GGUF specification (ggml-org/ggml, docs/gguf.md) and its `llama` architecture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

Array = npt.NDArray[np.float32]

_CONTROL = 3  # gguf token type of a special token
_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufLlama:
    """An open GGUF file. Reading its header costs seconds (every token and merge is a field); tensors are mapped, not read."""

    path: Path
    reader: Any
    values: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> GgufLlama:
        """Raises ValueError when the file holds another architecture or another kind of tokenizer."""
        reader = gguf.GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
        arch, tokenizer = values.get("general.architecture"), values.get("tokenizer.ggml.model")
        if arch != "llama" or tokenizer != "gpt2":
            raise ValueError(f"{path}: architecture '{arch}' with tokenizer '{tokenizer}'; only llama with gpt2 is read here")
        return cls(path, reader, values)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Every tensor by its transformers name, dequantised to float32, q and k rows in transformers' rotary order."""
        heads, kv_heads = self.values["llama.attention.head_count"], self.values["llama.attention.head_count_kv"]
        for tensor in self.reader.tensors:
            weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            if ".attn_q." in tensor.name:
                weight = rotary_rows_to_halves(weight, heads)
            elif ".attn_k." in tensor.name:
                weight = rotary_rows_to_halves(weight, kv_heads)
            yield transformers_name(tensor.name), np.ascontiguousarray(weight)

    def config(self, tied: bool) -> dict[str, Any]:
        """`config.json` of the folder. Numbers come from the file; nothing is assumed but the activation (silu for llama)."""
        llama = {key.removeprefix("llama."): value for key, value in self.values.items() if key.startswith("llama.")}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "hidden_size": llama["embedding_length"],
            "num_hidden_layers": llama["block_count"],
            "num_attention_heads": llama["attention.head_count"],
            "num_key_value_heads": llama["attention.head_count_kv"],
            "head_dim": llama["rope.dimension_count"],
            "intermediate_size": llama["feed_forward_length"],
            "max_position_embeddings": llama["context_length"],
            "rms_norm_eps": _shortest(llama["attention.layer_norm_rms_epsilon"]),
            "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(llama["rope.freq_base"])},
            "vocab_size": llama["vocab_size"],
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": tied,
            **self._special_ids(),
        }

    def generation_config(self) -> dict[str, Any]:
        return {"_from_model_config": True, **self._special_ids()}

    def _special_ids(self) -> dict[str, int]:
        names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
        ids = {name: self.values.get(f"tokenizer.ggml.{key}") for name, key in names.items()}
        return {name: int(value) for name, value in ids.items() if value is not None}

    def tokenizer(self) -> Tokenizer:
        """Byte-level BPE. `pre` smollm isolates every digit before the GPT-2 split; other kinds are refused."""
        pre = self.values.get("tokenizer.ggml.pre")
        if pre != "smollm":
            raise ValueError(f"{self.path}: pre-tokenizer '{pre}'; only 'smollm' is read here")
        tokens, kinds = self.values["tokenizer.ggml.tokens"], self.values["tokenizer.ggml.token_type"]
        merges = [tuple(merge.split(" ", 1)) for merge in self.values["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = ByteLevelDecoder()
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
        return tokenizer

    def tokenizer_config(self) -> dict[str, Any]:
        """`tokenizer_config.json`; the chat template is the file's own, and no BOS is put in front of a prompt."""
        tokens = self.values["tokenizer.ggml.tokens"]
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {name: self.values.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.values["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": self.values["tokenizer.chat_template"],
            **{name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
        }


def rotary_rows_to_halves(weight_OI: Array, heads: int) -> Array:
    """Undo llama.cpp's row order: it interleaves the rotary pairs of a head, transformers keeps them in two halves."""
    pairs = weight_OI.reshape(heads, -1, 2, weight_OI.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight_OI.shape)


def transformers_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. ValueError on a tensor without a counterpart."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _IN_LAYER or parts[3] != "weight":
        raise ValueError(f"gguf tensor '{name}' has no counterpart in transformers' Llama")
    return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.weight"


def write_folder(source: Path, folder: Path, advance: Callable[[int, int], None] = lambda _done, _total: None) -> None:
    """Write `source` as a Hugging Face model folder; `advance(done, total)` is called after each dequantised tensor.

    Tied embeddings are stored once. Needs the float32 weights in memory (four bytes per parameter).
    """
    model = GgufLlama.open(source)
    weights: dict[str, Array] = {}
    for done, (name, weight) in enumerate(model.tensors(), start=1):
        weights[name] = weight
        advance(done, len(model.reader.tensors))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", model.tokenizer_config())
    _write_json(folder / "generation_config.json", model.generation_config())
    _write_json(folder / "config.json", model.config(tied="lm_head.weight" not in weights))


def _shortest(value: float) -> float:
    """A float32 of the file as the shortest decimal that names it: 9.999999747e-06 was written as 1e-05."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
