"""What EAGLE-3 learns: `drafters.train.serial` over fused taps, with a frozen head over the frequent tokens.

The taps are divided by the scale of each channel while training, since two channels outweigh all others; the export folds the
division into `fc`, so the folder has the published format. The head's rows are the target's own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drafters.chain import ChainNetwork
from drafters.contract import Tap, Target
from drafters.decoder_layer import LayerConfig
from drafters.drafter_checkpoint import check_taps, size_of
from drafters.eagle3 import Eagle3Config, Eagle3Network
from drafters.train.objective import Example, Teacher, channel_scales, initialise
from drafters.train.serial import SerialObjective, Unrolling
from drafters.train.soft import Candidates


class Eagle3Objective(SerialObjective):
    """`config`: sizes by the keys of a `config.json`, `taps` as 0-based layer outputs. `options`: those of `Unrolling`."""

    network: Eagle3Network

    def __init__(
        self,
        target: Target,
        teacher: Teacher,
        examples: Sequence[Example],
        config: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self._config = config = {**config, "hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
        layer = layer_config(config, 2 * target.hidden_size)
        super().__init__(teacher, layer, Unrolling(**options))
        self.taps: tuple[Tap, ...] = tuple(config["taps"])
        check_taps(self.taps, target.num_layers, "config.taps")
        # Ascending ids, as published: then the map from draft id to token id rises too.
        self.vocabulary_F = teacher.frequent_V[: size_of(config, "draft_vocab_size")].sort().values
        self.sayable_V = torch.zeros(target.vocab_size, dtype=torch.bool)
        self.sayable_V[self.vocabulary_F] = True
        self.network = Eagle3Network(self._network_config(target, layer), lambda state: state)
        initialise(self.network)
        assert self.network.lm_head is not None
        self.network.lm_head.weight = nn.Parameter(teacher.head_VH[self.vocabulary_F], requires_grad=False)
        self.scale_M = channel_scales(examples)

    def _network_config(self, target: Target, layer: LayerConfig) -> Eagle3Config:
        return Eagle3Config(
            layer=layer,
            taps=tuple(tap for tap in self.taps if isinstance(tap, int)),
            target_hidden=target.hidden_size,
            vocab=len(self.vocabulary_F),
            own_head=True,
            norm_before_residual=False,
            norm_output=False,
            tap_norms=False,
            input_norm=False,
        )

    def chain(self) -> ChainNetwork:
        return self.network

    def features(self, taps_NM: Tensor) -> Tensor:
        return self.network.fuse(taps_NM / self.scale_M)

    def candidates(self, tokens: Tensor, draw: random.Random) -> Candidates:
        assert self.network.lm_head is not None
        return Candidates(self.network.lm_head.weight, torch.zeros(()))

    def learnable(self, tokens: Tensor) -> Tensor:
        return self.sayable_V[tokens]

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {name: value for name, value in self.network.state_dict().items() if name != "d2t"}
        tensors["fc.weight"] = tensors["fc.weight"] / self.scale_M
        tensors["d2t"] = self.vocabulary_F - torch.arange(len(self.vocabulary_F))
        tensors["t2d"] = self.sayable_V
        sizes = {key: value for key, value in self._config.items() if key != "taps"}
        return sizes | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "draft_vocab_size": len(self.vocabulary_F),
            # Published ids name what enters a layer.
            "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in self.taps if isinstance(tap, int)],
            "tie_word_embeddings": False,
        }, tensors


def layer_config(config: Mapping[str, Any], width: int) -> LayerConfig:
    """The plain decoder layer of a recipe's sizes."""
    return LayerConfig(
        hidden=size_of(config, "hidden_size"),
        width=width,
        intermediate=size_of(config, "intermediate_size"),
        heads=size_of(config, "num_attention_heads"),
        kv_heads=size_of(config, "num_key_value_heads"),
        head_dim=size_of(config, "head_dim"),
        eps=float(config["rms_norm_eps"]),
        rope=config,
    )
