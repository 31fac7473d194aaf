"""A tiny world to train block drafters in: a random target, its answers, its states, and the loop that serves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from drafters.dense import DenseTarget
from drafters.train.block_batch import blocks_of
from drafters.train.dflash import DFlashObjective
from drafters.train.objective import Example, Teacher
from tests.drafters.dflash_cases import CPU
from tests.drafters.loop_cases import generated, jobs, loop, prompts, run

VOCAB, LIMIT, BLOCK = 160, 30, 6
CONFIG: dict[str, Any] = {
    "taps": [0, 2],
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "max_position_embeddings": 512,
    "block_size": BLOCK,
    "is_causal": True,
    "dflash_config": {"mask_token_id": VOCAB - 1},
}
OPTIONS: dict[str, Any] = {
    "curriculum": [{"start": 0.0, "block": 2, "anchors": 16}, {"start": 0.3, "block": BLOCK, "anchors": 12}],
    "decay": 4.0,
    "hard": 0.0,
    "frequent": 120,
    "sampled": 20,
    "local": False,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}


class World:
    """A random target, what it answers to four prompts, and the states that it had meanwhile."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        folder, model = checkpoint("llama")
        self.target = DenseTarget(folder, torch.float32, CPU, slots=8, max_length=128)
        self.texts = prompts(4)
        answers = generated(model, self.texts, LIMIT, eos=None)
        self.examples = [self._seen([*t, *a], len(t)) for t, a in zip(self.texts, answers, strict=True)]
        counts = torch.bincount(torch.cat([e.tokens_S for e in self.examples]), minlength=VOCAB)
        self.teacher = Teacher.of(self.target, counts)

    def _seen(self, text: list[int], prompt: int) -> Example:
        out = self.target.forward([0], torch.tensor([text[:-1]]), [len(text) - 1], False, (0, 2, "final"))
        assert out.hidden_RTM is not None
        hidden_NM = out.hidden_RTM[0].clone()
        taps_NM, final_NH = hidden_NM.split((2 * self.target.hidden_size, self.target.hidden_size), dim=-1)
        return Example(torch.tensor(text), prompt, taps_NM.contiguous(), final_NH.contiguous())

    def objective(self, kind: Any = DFlashObjective, config: Any = None, options: Any = None) -> Any:
        torch.manual_seed(0)
        return kind(self.target, self.teacher, self.examples, CONFIG | (config or {}), OPTIONS | (options or {}))

    def train(self, objective: Any, steps: int, rate: float = 4e-3) -> list[float]:
        draw, losses = random.Random(1), []
        optimizer = torch.optim.AdamW(objective.network.parameters(), lr=rate, weight_decay=0.0)
        for step in range(steps):
            loss, _ = objective.loss(self.examples, step / steps, draw)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    def accepted(self, drafter: Any, budget: int = BLOCK - 1) -> float:
        """Accepted drafts per step of the trained texts through the loop."""
        for slot in range(self.target.slots):
            self.target.release(slot)
        engine = loop(self.target, drafter, budget)
        run(engine, jobs(self.texts, LIMIT), len(self.texts))
        return float(engine.totals.accepted / engine.totals.verify_steps)


def perturbed(objective: Any, seed: int = 5) -> None:
    """Every parameter moved a little, so that none can be lost on the way to serving unseen."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in objective.network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.1)


def packed_states(objective: Any, examples: Sequence[Example], width: int, count: int) -> tuple[Any, torch.Tensor]:
    blocks = blocks_of(examples, width, count, objective.config.mask_token, random.Random(3))
    return blocks, objective.packed.states(objective.network, blocks, objective.scale_M)
