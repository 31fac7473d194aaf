"""The candidate path selector of DFlash 2: slots are marginals, and a walk through their likeliest tokens makes them one text.

Of each slot's logits the largest few are candidates. A low-rank bilinear term says how well candidate b of slot j follows a:

    S_j(a, b) = U_j(b) + sum_r A[a]_r g_j,r B[b]_r     U_j the logits, g_j = W_hp h_j, a a candidate of slot j - 1 or the anchor

The walk goes left to right and takes the best b, or draws it from softmax_b(S_j / T). It is neither Viterbi nor a beam: what is
chosen never depends on later slots, so the drawn path has the probabilities that its steps had. All scores are computed first,
in one product over the lattice; the walk then only looks up. (https://inco.ai/blog/dflash2/)

Shape legend: R requests, K drafts, C candidates of a slot, P those of the slot before (also C), H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drafters.sampling import draw


@dataclass(frozen=True, slots=True)
class Lattice:
    """`tokens_RKC` are ids of candidates, `scores_RKPC` their S behind each predecessor. At slot 1 all P are the anchor."""

    tokens_RKC: Tensor
    scores_RKPC: Tensor


@dataclass(frozen=True, slots=True)
class Path:
    """The tokens walked, and in `probabilities_RKC` what each candidate's chance was at its step; null for the greedy walk."""

    tokens_RK: Tensor
    probabilities_RKC: Tensor | None


class CandidateSelector(nn.Module):
    """The tables of the bilinear term. Their names carry no `.weight`, as published."""

    def __init__(self, vocabulary: int, hidden: int, rank: int, candidates: int) -> None:
        super().__init__()
        self.candidates = min(candidates, vocabulary)
        self.predecessor_codebook = nn.Parameter(torch.empty(vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocabulary, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def lattice(self, hidden_RKH: Tensor, logits_RKV: Tensor, anchors_R: Tensor) -> Lattice:
        """Candidates and scores of every slot, from its state and its transformed logits."""
        top = logits_RKV.topk(self.candidates, dim=-1)
        tokens_RKC = top.indices
        anchors_R1C = anchors_R[:, None, None].expand(-1, 1, self.candidates)
        before_RKP = torch.cat((anchors_R1C, tokens_RKC[:, :-1]), dim=1)
        return Lattice(tokens_RKC, top.values[:, :, None, :] + self.bilinear(hidden_RKH, before_RKP, tokens_RKC))

    def bilinear(self, hidden_RKH: Tensor, before_RKP: Tensor, tokens_RKC: Tensor) -> Tensor:
        """How well each of some tokens follows each of some predecessors at a slot, [.., P, C]."""
        gate = self.hidden_projection(hidden_RKH).unsqueeze(-2)
        followed: Tensor = (self.predecessor_codebook[before_RKP] * gate) @ self.successor_codebook[tokens_RKC].mT
        return followed


def walk(lattice: Lattice, temperature: float, uniforms_KR: list[list[float]] | None) -> Path:
    """Left to right through the lattice: the best candidate of each slot, or with uniforms a draw at this temperature."""
    requests, drafts, _ = lattice.tokens_RKC.shape
    rows_R = torch.arange(requests, device=lattice.tokens_RKC.device)
    at_R = torch.zeros_like(rows_R)
    tokens, chances = [], []
    for j in range(drafts):
        scores_RC = lattice.scores_RKPC[rows_R, j, at_R]
        if uniforms_KR is None:
            at_R = scores_RC.argmax(-1)
        else:
            chances.append((scores_RC.float() / temperature).softmax(-1))
            at_R = draw(chances[-1], uniforms_KR[j])
        tokens.append(lattice.tokens_RKC[rows_R, j, at_R])
    return Path(torch.stack(tokens, dim=1), torch.stack(chances, dim=1) if chances else None)


def scattered(path: Path, tokens_RKC: Tensor, vocabulary: int) -> Tensor | None:
    """The walk's realised probabilities over the whole vocabulary, [R, K, V]."""
    if path.probabilities_RKC is None:
        return None
    shape = (*tokens_RKC.shape[:2], vocabulary)
    zeros = torch.zeros(shape, dtype=path.probabilities_RKC.dtype, device=tokens_RKC.device)
    return zeros.scatter_(-1, tokens_RKC, path.probabilities_RKC)
