"""Tiny random models of every kind that `TransformersTarget` serves, and a full pass without a cache to hold it against."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from drafters.hybrid import Rollback, TransformersTarget

VOCABULARY = 97
WINDOW = 8
TOLERANCE = 1e-4
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    # Wide enough for logits of a few units, so that 1e-4 means something; wider makes the delta rule itself ill-conditioned.
    "initializer_range": 0.1,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MAMBA = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
CONFIGS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SIZES, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=WINDOW)),
    "qwen3_next": (Qwen3NextForCausalLM, Qwen3NextConfig(**SIZES, **LINEAR, **EXPERTS)),
    "qwen3_5": (Qwen3_5ForConditionalGeneration, Qwen3_5Config(text_config={**SIZES, **LINEAR}, vision_config=VISION)),
    "falcon_h1": (FalconH1ForCausalLM, FalconH1Config(**SIZES, **MAMBA)),
    "lfm2": (Lfm2ForCausalLM, Lfm2Config(**SIZES, layer_types=["conv", "full_attention"] * 2)),
}
ATTENTION_ONLY = ("llama", "gemma3", "mistral")
RECURRENT = ("qwen3_next", "qwen3_5", "falcon_h1", "lfm2")
SLIDING = ("gemma3", "mistral")
CASES: list[tuple[str, Rollback]] = [(name, "replay") for name in CONFIGS]
CASES += [(name, "snapshot") for name in RECURRENT]


@cache
def model(name: str) -> Any:
    torch.manual_seed(0)
    kind, config = CONFIGS[name]
    return kind(config).eval()


def target(name: str, rollback: Rollback = "replay", slots: int = 3) -> TransformersTarget:
    return TransformersTarget.from_model(model(name), slots, 96, rollback)


def tokens(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=generator)


@torch.no_grad()
def full_logits(name: str, text: list[int], rows: int) -> Tensor:
    """Logits of the last `rows` tokens of a text, without any cache."""
    logits: Tensor = model(name)(input_ids=torch.tensor([text]), use_cache=False).logits
    return logits[0, -rows:]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def count_passes(subject: TransformersTarget, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The [batch, rows] shapes of all passes of the model from now on."""
    shapes: list[tuple[int, int]] = []
    real = subject._call

    def counted(held: Any, lengths: list[int], tokens_GT: Tensor, *rest: Any) -> Any:
        shapes.append(tuple(tokens_GT.shape))
        return real(held, lengths, tokens_GT, *rest)

    monkeypatch.setattr(subject, "_call", counted)
    return shapes
