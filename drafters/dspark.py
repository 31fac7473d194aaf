"""DSpark: DFlash's block with a low-rank bigram bias, which makes the slots one text, and a confidence that sets the length.

    U_1 .. U_K    logits of one block pass, anchor first: the row of the anchor predicts the token behind it
    logits_k = U_k + W2 W1[x_{k-1}],  x_0 the anchor;  x_k is the argmax, or drawn
    c_k = sigmoid(w [h_k; W1[x_{k-1}]] + b)    the chance that x_k is accepted when all before it are

With `confidence`, a draft ends before the first token whose survival c_1 .. c_k falls below it. c_k does not depend on x_k,
only on what precedes it, so a cut draft stays a draw from its own distribution and verification stays lossless.
(DeepSeek's DeepSpec; h_k after the final norm, in the Qwen3 body that this reads.)

Shape legend: R requests, B block rows, K drafts, H hidden, N rank, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drafters.contract import Draft, Target
from drafters.dflash import DFlashDrafter
from drafters.dflash_config import DFlashConfig, family_size, value_of
from drafters.dflash_network import DFlashNetwork
from drafters.draft_sampling import OPTIONS, DraftSampling
from drafters.drafter_checkpoint import size_of
from drafters.sampling import draw


class MarkovHead(nn.Module):
    """The bigram bias. `markov_w1` is indexed by token id; `markov_w2` has a row for each row of the head."""

    def __init__(self, vocabulary: int, head_rows: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, head_rows, bias=False)


class ConfidenceHead(nn.Module):
    """One logit from a state and the embedding of the token before."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        chance: Tensor = self.proj(inputs).squeeze(-1).float().sigmoid()
        return chance


class DSparkNetwork(DFlashNetwork):
    """The DFlash network, the bigram bias, and the confidence head where the checkpoint has one."""

    def __init__(self, config: DFlashConfig, vocabulary: int, head_rows: int, rank: int, confidence: bool) -> None:
        super().__init__(config)
        self.markov_head = MarkovHead(vocabulary, head_rows, rank)
        self.confidence_head = ConfidenceHead(config.hidden + rank) if confidence else None


class DSparkDrafter(DFlashDrafter):
    """Options of `DraftSampling`, and `confidence`: the least survival worth verifying, in [0, 1), or null to draft in full."""

    options: ClassVar[frozenset[str]] = OPTIONS | {"confidence"}
    anchor_first: ClassVar[bool] = True
    network: DSparkNetwork

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        super().__init__(target, options, checkpoint)
        self.sampling = DraftSampling(options)
        self.least = _least_survival(options)
        if self.least is not None and self.network.confidence_head is None:
            raise ValueError("options.confidence: this checkpoint has no confidence head; set it to null")

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        super().check_options(options)
        DraftSampling(options)
        _least_survival(options)

    def build(self, raw: Mapping[str, Any], target_layers: int) -> DSparkNetwork:
        if (kind := value_of(raw, "markov_head_type", "vanilla")) != "vanilla":
            raise ValueError(f"config.json: markov_head_type '{kind}' is not implemented; use a checkpoint with 'vanilla'")
        confidence = bool(value_of(raw, "enable_confidence_head", False))
        if confidence and not value_of(raw, "confidence_head_with_markov", True):
            raise ValueError("config.json: confidence_head_with_markov false is not implemented; it must be true")
        config = DFlashConfig.read(raw, target_layers, self.anchor_first, projector="dspark")
        vocabulary = size_of(raw, "vocab_size")
        rows = size_of(raw, "draft_vocab_size", vocabulary)
        return DSparkNetwork(config, vocabulary, rows, family_size(raw, "markov_rank"), confidence)

    def choose(self, slots: Sequence[int], hidden_RBH: Tensor, anchors_R: Tensor, lengths: list[int]) -> Draft | None:
        hidden_RKH = self.predicting(hidden_RBH)
        base_RKV = self.logits(hidden_RKH)
        uniforms = self.sampling.uniforms(slots, lengths)
        before_R, survival_R = anchors_R, torch.ones(len(slots), device=anchors_R.device)
        tokens, chances, survivals = [], [], []
        for k in range(max(lengths)):
            code_RN = self.network.markov_head.markov_w1(before_R)
            logits_RV = base_RKV[:, k] + self.network.markov_head.markov_w2(code_RN)
            if uniforms is None:
                rows_R = logits_RV.argmax(-1)
            else:
                chances.append((logits_RV.float() / self.sampling.temperature).softmax(-1))
                rows_R = draw(chances[-1], uniforms[k])
            if self.least is not None and self.network.confidence_head is not None:
                survival_R = survival_R * self.network.confidence_head(torch.cat((hidden_RKH[:, k], code_RN), dim=-1))
                survivals.append(survival_R)
            before_R = self.vocabulary.tokens(rows_R)
            tokens.append(before_R)
        kept = self._kept(survivals, lengths)
        width = max(kept)
        if width == 0:
            return None
        q_RKV = self._over_tokens(torch.stack(chances[:width], dim=1)) if chances else None
        return Draft(torch.stack(tokens[:width], dim=1), kept, q_RKV)

    def _kept(self, survivals: list[Tensor], lengths: list[int]) -> list[int]:
        """How many drafts of each request are worth verifying."""
        if self.least is None:
            return lengths
        worth = (torch.stack(survivals, dim=1) >= self.least).sum(-1).tolist()
        return [min(length, int(n)) for length, n in zip(lengths, worth, strict=True)]

    def _over_tokens(self, q_RKV: Tensor) -> Tensor:
        """Probabilities of head rows as probabilities of token ids."""
        ids_V = self.vocabulary.ids_V
        if ids_V is None:
            return q_RKV
        zeros = q_RKV.new_zeros((*q_RKV.shape[:2], len(self.vocabulary.embedding_VH)))
        return zeros.index_copy_(-1, ids_V, q_RKV)

    def release(self, slot: int) -> None:
        super().release(slot)
        self.sampling.release(slot)


def _least_survival(options: Mapping[str, object]) -> float | None:
    least = options.get("confidence")
    if least is None:
        return None
    if not isinstance(least, int | float) or isinstance(least, bool) or not 0 <= least < 1:
        raise ValueError(f"options.confidence: {least!r} must lie in [0, 1), or be null to draft in full")
    return float(least)
