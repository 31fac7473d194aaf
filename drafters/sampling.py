"""Logits to probabilities to tokens: the one sampling convention of the reference engine, for targets and drafters alike.

Shape legend: N rows, V vocabulary, M candidates of a partial sort.

Order of the transforms, as in transformers' logits warpers: temperature, then top-k, then top-p over the renormalised top-k
distribution. Both cuts are thresholds on a value: tokens tied with the last one kept are kept too, so the result does not
depend on sort order, device or token numbering. (transformers does the same for top-k, and cuts ties of top-p arbitrarily.)

Probabilities are float32, or float64 where the logits are: at 50k to 250k tokens a row, memory traffic is the cost, and a
relative error of 1e-7 in one probability is far below what a test can see. What accumulates is float64: the nucleus mass, the
CDF, and the uniforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.random import Generator, Philox
from torch import Tensor

_FIRST_CANDIDATES = 64  # most rows keep fewer, and sorting all of 50k tokens costs fifty times as much


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float
    top_p: float
    top_k: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: {self.temperature} must be finite and at least 0 (0 is greedy)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p} must lie in (0, 1]; 1 is off")
        if self.top_k < 0:
            raise ValueError(f"top_k: {self.top_k} must be at least 0; 0 is off")
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} must be at least 0")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class RequestRandom:
    """The uniforms of one request: a Philox stream keyed by its seed.

    The n-th uniform depends on the seed and on n only: never on the batch, the slot or the neighbours of the request.
    """

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"seed: {seed} must be at least 0")
        self._generator = Generator(Philox(key=seed))

    def uniforms(self, count: int) -> list[float]:
        """The next `count` float64 uniforms of [0, 1)."""
        drawn: list[float] = self._generator.random(count).tolist()
        return drawn


def probabilities(logits_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The distribution each row is sampled from, [N, V], one `SamplingParams` per row.

    A greedy row is one-hot at its argmax (the first index of a tie). Rows sum to 1 up to rounding.
    """
    if logits_NV.dim() != 2 or logits_NV.shape[0] != len(params):
        raise ValueError(f"logits: shape {tuple(logits_NV.shape)} must be [{len(params)} rows of params, vocabulary]")
    z_NV = logits_NV if logits_NV.dtype in (torch.float32, torch.float64) else logits_NV.float()
    if any(p.temperature != 1 for p in params):
        z_NV = _temper(z_NV, params)
    cut = [n for n, p in enumerate(params) if not p.greedy and (p.top_k or p.top_p < 1)]
    if len(cut) == len(params):
        return _cut(z_NV, params)
    p_NV = z_NV.softmax(-1)
    if cut:
        rows_n = torch.tensor(cut, device=p_NV.device)
        p_NV[rows_n] = _cut(z_NV[rows_n], [params[n] for n in cut])
    return _one_hot_greedy_rows(p_NV, logits_NV, params)


def draw(probabilities_NV: Tensor, uniforms_N: Sequence[float]) -> Tensor:
    """One token per row by inverse CDF in float64: int64 [N]. Rows need not be normalised, only non-negative with a mass.

    The token is the first whose cumulative mass exceeds u times the total, so a token of probability 0 is never drawn.
    """
    if len(uniforms_N) != probabilities_NV.shape[0]:
        raise ValueError(f"uniforms: {len(uniforms_N)} given for {probabilities_NV.shape[0]} rows; give one per row")
    cdf_NV = probabilities_NV.cumsum(-1, dtype=torch.float64)
    total_N1 = cdf_NV[:, -1:]
    if not bool(((total_N1 > 0) & (total_N1 < float("inf"))).all()):
        raise ValueError("probabilities: a row has no finite positive mass; the logits behind it are not finite")
    u_N1 = torch.tensor(uniforms_N, dtype=torch.float64, device=cdf_NV.device).unsqueeze(1)
    tokens_N1 = torch.searchsorted(cdf_NV, u_N1 * total_N1, right=True).clamp_(max=cdf_NV.shape[1] - 1)
    # A parallel scan may round a CDF to be not quite monotone; what that could let through is caught here, once in never.
    possible_N1 = probabilities_NV.gather(1, tokens_N1) > 0
    if not bool(possible_N1.all()):
        tokens_N1 = torch.where(possible_N1, tokens_N1, probabilities_NV.argmax(-1, keepdim=True))
    return tokens_N1.squeeze(1)


def _temper(z_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Logits over temperature, shifted to a maximum of 0 first so that a tiny temperature cannot overflow."""
    temperature_N1 = torch.tensor([p.temperature or 1.0 for p in params], dtype=z_NV.dtype, device=z_NV.device).unsqueeze(1)
    return (z_NV - z_NV.amax(-1, keepdim=True)).div_(temperature_N1)


def _cut(z_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with top-k or top-p: softmax over what is kept, 0 elsewhere.

    Only the M most likely tokens of a row are sorted, and M grows for the rows that may keep more. A row is settled when its
    M-th token is not kept: then nothing behind it is, and the result is that of a full sort.
    """
    vocabulary = z_NV.shape[1]
    top_k_N1 = torch.tensor([p.top_k or vocabulary for p in params], device=z_NV.device).unsqueeze(1)
    top_p_N1 = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=z_NV.device).unsqueeze(1)
    mass_N1 = z_NV.logsumexp(-1, keepdim=True)
    p_NV = torch.zeros_like(z_NV)
    rows_N, candidates = torch.arange(len(params), device=z_NV.device), min(_FIRST_CANDIDATES, vocabulary)
    while len(rows_N):
        z_NM, tokens_NM = (z_NV if len(rows_N) == len(params) else z_NV[rows_N]).topk(candidates, dim=-1)
        likely_NM = _in_top_k(z_NM, top_k_N1[rows_N])
        kept_NM = likely_NM & _in_nucleus(z_NM, likely_NM, mass_N1[rows_N], top_k_N1[rows_N] < vocabulary, top_p_N1[rows_N])
        limit_NM = torch.where(top_k_N1[rows_N] < vocabulary, likely_NM, kept_NM)
        settled_N = ~limit_NM[:, -1] if candidates < vocabulary else torch.ones_like(rows_N, dtype=torch.bool)
        p_NM = z_NM.masked_fill(~kept_NM, float("-inf")).softmax(-1)
        p_NV[rows_N[settled_N].unsqueeze(1), tokens_NM[settled_N]] = p_NM[settled_N]
        rows_N, candidates = rows_N[~settled_N], min(8 * candidates, vocabulary)
    return p_NV


def _in_top_k(z_NM: Tensor, top_k_N1: Tensor) -> Tensor:
    """Which of the sorted candidates reach the k-th largest value."""
    return z_NM >= z_NM.gather(1, top_k_N1.clamp(max=z_NM.shape[1]) - 1)


def _in_nucleus(z_NM: Tensor, likely_NM: Tensor, mass_N1: Tensor, has_top_k_N1: Tensor, top_p_N1: Tensor) -> Tensor:
    """Which of the sorted candidates are in the nucleus: those with less than `top_p` of the mass before them, and their ties.

    The mass is that of the top-k where there is one, otherwise `mass_N1`, the row's log-sum-exp.
    """
    top_k_mass_N1 = z_NM.masked_fill(~likely_NM, float("-inf")).logsumexp(-1, keepdim=True)
    p_NM = (z_NM - torch.where(has_top_k_N1, top_k_mass_N1, mass_N1)).exp()
    before_NM = p_NM.cumsum(-1, dtype=torch.float64) - p_NM
    count_N1 = ((before_NM < top_p_N1) | (top_p_N1 >= 1)).sum(-1, keepdim=True).clamp_(min=1)
    return z_NM >= z_NM.gather(1, count_N1 - 1)


def _one_hot_greedy_rows(p_NV: Tensor, logits_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Writes the greedy rows of `p_NV` in place."""
    rows = [n for n, p in enumerate(params) if p.greedy]
    if rows:
        rows_n = torch.tensor(rows, device=p_NV.device)
        p_NV[rows_n] = 0.0
        p_NV[rows_n, logits_NV[rows_n].argmax(-1)] = 1.0
    return p_NV
