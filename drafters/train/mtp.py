"""What an MTP module learns: `drafters.train.serial` over the target's own final state, through the target's own head.

Norms start at the scale of the states that they meet: `hnorm` evens the channels out, and the last norm gives them the scale
that the head expects. The softmax of training samples the vocabulary (`drafters.train.soft`); drafting reads all of it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from drafters.chain import ChainNetwork
from drafters.contract import Tap, Target
from drafters.mtp import MtpNetwork
from drafters.train.eagle3 import layer_config
from drafters.train.objective import Example, Teacher, channel_scales, initialise
from drafters.train.serial import SerialObjective, Unrolling
from drafters.train.soft import CandidateHead, Candidates


class MtpObjective(SerialObjective):
    """`config`: sizes by the keys of a `config.json`, and `recycle` (`post_norm` or `pre_norm`), which the arm must repeat.

    `options`: `frequent` and `sampled` tokens of the softmax, and those of `Unrolling`.
    """

    network: MtpNetwork

    def __init__(
        self,
        target: Target,
        teacher: Teacher,
        examples: Sequence[Example],
        config: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        own = {"frequent", "sampled"}
        self._config = config = {**config, "hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
        layer = layer_config(config, target.hidden_size)
        super().__init__(teacher, layer, Unrolling(**{key: value for key, value in options.items() if key not in own}))
        self.taps: tuple[Tap, ...] = ("final",)
        self.head = CandidateHead(teacher, int(options["frequent"]), int(options["sampled"]))
        self.network = MtpNetwork(layer, config["recycle"] == "post_norm", lambda state: state)
        initialise(self.network)
        scale_H = channel_scales(examples)
        with torch.no_grad():
            self.network.hnorm.weight.copy_(scale_H.pow(2).mean().sqrt() / scale_H)
            self.network.shared_head.norm.weight.copy_(scale_H)
            even = teacher.embedding_VH.pow(2).mean(0).sqrt()
            self.network.enorm.weight.copy_(even.pow(2).mean().sqrt() / even)

    def chain(self) -> ChainNetwork:
        return self.network

    def features(self, taps_NM: Tensor) -> Tensor:
        return self.network.fuse(taps_NM)

    def candidates(self, tokens: Tensor, draw: random.Random) -> Candidates:
        return self.head.draw(tokens, draw)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        sizes = {key: value for key, value in self._config.items() if key != "recycle"}
        names = {"architectures": ["MtpModule"], "model_type": "llama", "num_hidden_layers": 1}
        return sizes | names, dict(self.network.state_dict())
