"""Tiny random checkpoints of the dense families, written once a session, and the transformers model of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, **SIZES)),
    "llama_tied": lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, tie_word_embeddings=True, **SIZES)),
    "llama_rope3": lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, rope_parameters=LLAMA3_ROPE, **SIZES)),
    "qwen2": lambda v: Qwen2ForCausalLM(Qwen2Config(vocab_size=v, **SIZES)),
    "qwen3": lambda v: Qwen3ForCausalLM(Qwen3Config(vocab_size=v, head_dim=16, **SIZES)),
}
Checkpoint = tuple[Path, PreTrainedModel]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny products gain nothing from a second thread and lose much on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Checkpoint]:
    """`checkpoint(family, vocab)`: a folder and the model in it, with fixed random weights."""
    made: dict[tuple[str, int], Checkpoint] = {}

    def make(family: str, vocab: int = 160) -> Checkpoint:
        if (family, vocab) not in made:
            torch.manual_seed(7)
            model = FAMILIES[family](vocab).eval()
            for name, bias in model.named_parameters():
                if name.endswith("bias"):  # initialised to zero, which would hide a lost bias
                    torch.nn.init.normal_(bias, std=0.3)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            made[family, vocab] = folder, model
        return made[family, vocab]

    return make
