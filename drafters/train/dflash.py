"""What DFlash learns: every slot of a block says what the target would say there. (arXiv 2602.06036, section on training)

Blocks at many anchors of each answer pass the network together (`block_pass`). Row k of a block is taught the target's
distribution over the token k places behind the anchor, given the true text before it, with weight exp(-(k - 1) / decay): a
draft counts only if all before it were right. Training begins with narrow blocks, `curriculum`: attention first has to find
the anchor and the last states before it. With `is_causal` a slot sees nothing of the slots behind it, so a wider block, or a
smaller draft budget in serving, changes nothing for it.

Tapped channels are divided by their scale, since two of them outweigh all others; the export folds the division into `fc`, so
serving computes what training computed. Position 0, an attention sink 50 to 170 times as long as the rest, is left in:
`hidden_norm` gives every context row the same length, in training as in serving.

Cost, by products and at two layers of 3.3 million weights: a block row costs 6 FLOPs a weight forward and backward, so 8 rows
320 MFLOP; a labelled row's softmax over 8k candidates 20 MFLOP, with the target's own 30, against 170 over all 49k tokens;
attention 3 % and a context row 14 MFLOP. So block rows are most of it, and anchors per text set the price of a text.

Shape legend: A anchors, B block rows, L labelled rows, C candidate tokens, M taps times H, H hidden size.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from drafters.contract import Tap, Target
from drafters.dflash_config import DFlashConfig
from drafters.dflash_network import DFlashNetwork
from drafters.drafter_checkpoint import DrafterWeights
from drafters.train.block_batch import Blocks, blocks_of
from drafters.train.block_init import start_local
from drafters.train.block_pass import PackedPass
from drafters.train.objective import Example, Teacher, channel_scales, initialise
from drafters.train.soft import CandidateHead, Candidates

CODE_STD = 0.3  # of maps of the embedding: codes of tokens are then about one in size where embeddings are about 0.13


@dataclass(frozen=True, slots=True)
class Stage:
    """From this share of training on, blocks have `block` rows, at `anchors` places of each text."""

    start: float
    block: int
    anchors: int


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """`hard` is the share of the text's own token in the label, the rest is the target's distribution. `frequent` and `sampled`
    are the candidates of the softmax (`soft.CandidateHead`). `local` starts attention near the anchor (`block_init`)."""

    curriculum: tuple[Stage, ...]
    decay: float
    hard: float
    frequent: int
    sampled: int
    local: bool

    @classmethod
    def read(cls, options: Mapping[str, Any], block: int) -> BlockOptions:
        """Raises ValueError for a curriculum that does not begin at 0, does not rise, or is wider than the block."""
        stages = tuple(Stage(**stage) for stage in options["curriculum"])
        starts = [stage.start for stage in stages]
        if not stages or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"options.curriculum: starts {starts} must begin at 0 and rise")
        if wrong := [stage.block for stage in stages if not 2 <= stage.block <= block]:
            raise ValueError(f"options.curriculum: block {wrong[0]} must be 2 to block_size {block} rows, anchor included")
        return cls(stages, *(options[key] for key in ("decay", "hard", "frequent", "sampled", "local")))

    def stage(self, progress: float) -> Stage:
        return [stage for stage in self.curriculum if stage.start <= progress][-1]


class DFlashObjective:
    """`config`: sizes by the keys of a `config.json`, `taps` as 0-based layer outputs, and `initial`, a folder to start from.

    A folder gives every tensor that it has; the rest starts as it does without one, so a bare DFlash starts any of the family.
    `options`: those of `BlockOptions`.
    """

    architecture: ClassVar[str] = "DFlashDraftModel"
    # Parameters that are published with a row per token, and learned as a map [H, ..] of the target's own table.
    over_embedding: ClassVar[str | None] = None
    over_head: ClassVar[str | None] = None
    network: DFlashNetwork
    taps: tuple[Tap, ...]

    def __init__(
        self,
        target: Target,
        teacher: Teacher,
        examples: Sequence[Example],
        config: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.teacher = teacher
        self.published = published_config(config, target, self.architecture)
        self.network = self.build(self.published, target)
        self.config = self.network.config
        self.taps = self.config.taps
        self.options = BlockOptions.read(options, self.config.block)
        self.packed = PackedPass(self.config, teacher.embedding_VH)
        self.candidates = CandidateHead(teacher, self.options.frequent, self.options.sampled)
        self.scale_M = channel_scales(examples)
        with torch.no_grad():
            self.initialise(examples)
            # The head expects channels of very different sizes.
            self.network.norm.weight.copy_(torch.cat([e.final_NH[1:] for e in examples]).pow(2).mean(0).sqrt())
        if (folder := config.get("initial")) is not None:
            self.start_from(folder)

    def build(self, published: Mapping[str, Any], target: Target) -> DFlashNetwork:
        return DFlashNetwork(DFlashConfig.read(published, target.num_layers))

    def initialise(self, examples: Sequence[Example]) -> None:
        """The start of every learner, and attention that looks near the anchor where `local` asks for it."""
        initialise(self.network)
        if self.options.local:
            taps_NM = torch.cat([example.taps_NM[1:] for example in examples]) / self.scale_M
            context_NH = self.network.hidden_norm(self.network.fc(taps_NM))
            start_local(self.network, self.teacher.embedding_VH, self.teacher.frequent_V, context_NH)

    def start_from(self, folder: str) -> None:
        """Take what the folder holds. ValueError for a tensor of another shape, or one that this network does not have."""
        weights = DrafterWeights(folder, torch.float32, torch.device("cpu"))
        state = self.network.state_dict()
        for name in sorted(weights.names & state.keys()):
            state[name] = weights.take(name, tuple(state[name].shape))
        weights.finish()
        state["fc.weight"] = state["fc.weight"] * self.scale_M
        self.network.load_state_dict(state)

    def loss(self, batch: Sequence[Example], progress: float, draw: random.Random) -> tuple[Tensor, dict[str, float]]:
        stage = self.options.stage(progress)
        blocks = blocks_of(batch, self.width(stage, draw), stage.anchors, self.config.mask_token, draw)
        states_ABH = self.packed.states(self.network, blocks, self.scale_M)
        said = self.say(blocks, self.spoken(blocks, states_ABH), draw)
        loss = weighted_mean(labelled_loss(said, self.options.hard), blocks.slot_L, self.options.decay)
        more, shown = self.further(blocks, states_ABH, said, progress)
        return loss + more, accuracies(said.right, blocks) | shown

    def width(self, stage: Stage, draw: random.Random) -> int:
        """Rows of the blocks of one update."""
        return stage.block

    def spoken(self, blocks: Blocks, states_ABH: Tensor) -> Tensor:
        """What the head reads for each labelled row, [L, H]."""
        return states_ABH.flatten(0, 1)[blocks.row_L]

    def further(self, blocks: Blocks, states_ABH: Tensor, said: Said, progress: float) -> tuple[Tensor, dict[str, float]]:
        """What a member of the family adds to the loss, and to what is shown."""
        return torch.zeros(()), {}

    def say(self, blocks: Blocks, state_LH: Tensor, draw: random.Random) -> Said:
        """Labelled rows through the head, over candidates."""
        candidates, transform = self.candidates.draw(blocks.token_L, draw), self.network.transform
        logits_LC = transform(state_LH @ candidates.head_CH.T)
        token_L = transform((state_LH * self.teacher.head_VH[blocks.token_L]).sum(-1))
        return Said(candidates, logits_LC, token_L, candidates.teacher(blocks.said_LH))

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        tensors["fc.weight"] = tensors["fc.weight"] / self.scale_M
        if self.over_embedding is not None:
            tensors[self.over_embedding] = self.teacher.embedding_VH @ tensors[self.over_embedding]
        if self.over_head is not None:
            tensors[self.over_head] = self.teacher.head_VH @ tensors[self.over_head]
        return dict(self.published), tensors


@dataclass(frozen=True, slots=True)
class Said:
    """Labelled rows through the head: logits of candidates and of the text's own token, and the target's probabilities.

    The logits are the network's own, before sampled candidates are raised; `teacher_LC` is after.
    """

    candidates: Candidates
    logits_LC: Tensor
    token_L: Tensor
    teacher_LC: Tensor

    @property
    def gold(self) -> Tensor:
        """Which candidate is the target's likeliest, [L]; a sampled one counts for itself only."""
        return (self.teacher_LC * (-self.candidates.raise_C).exp()).argmax(-1)

    @property
    def right(self) -> Tensor:
        """Whether the network's likeliest candidate is that one, [L]."""
        return self.logits_LC.detach().argmax(-1) == self.gold


def labelled_loss(said: Said, hard: float) -> Tensor:
    """Cross-entropy of each row against `hard` of the text's token and the rest of the target's distribution, [L]."""
    logits_LC = said.logits_LC + said.candidates.raise_C
    soft_L = (said.teacher_LC * logits_LC).sum(-1)
    return torch.logsumexp(logits_LC, -1) - torch.lerp(soft_L, said.token_L, hard)


def weighted_mean(loss_L: Tensor, slot_L: Tensor, decay: float) -> Tensor:
    """Slot k weighs exp(-(k - 1) / decay)."""
    weight_L = torch.exp((1 - slot_L) / decay)
    return (loss_L * weight_L).sum() / weight_L.sum().clamp_min(1e-6)


def accuracies(right_L: Tensor, blocks: Blocks) -> dict[str, float]:
    """Share of right rows of every slot, and `length`: the mean run of right slots from the first, the bonus included."""
    right_AB = torch.zeros(blocks.tokens_AB.shape)
    there_AB = torch.zeros(blocks.tokens_AB.shape)
    right_AB.view(-1)[blocks.row_L] = right_L.float()
    there_AB.view(-1)[blocks.row_L] = 1.0
    shares = right_AB.sum(0) / there_AB.sum(0).clamp_min(1)
    run = right_AB[:, 1:].cumprod(1).sum(1).mean() if len(right_AB) else torch.zeros(())
    return {f"accuracy_{k}": float(shares[k]) for k in range(1, blocks.width)} | {"length": 1 + float(run)}


def published_config(config: Mapping[str, Any], target: Target, architecture: str) -> dict[str, Any]:
    """A recipe's sizes as the published `config.json`: what is the target's is filled in, taps become `target_layer_ids`."""
    family = {"target_layer_ids": list(config["taps"]), **config.get("dflash_config", {})}
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        **{key: value for key, value in config.items() if key not in ("taps", "initial", "dflash_config")},
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "num_target_layers": target.num_layers,
        "dflash_config": family,
    }
