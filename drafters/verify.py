"""Acceptance of drafts: the only place that decides it. Lossless rules only.

Shape legend: R requests, T rows per request (anchor, d_1 .. d_K), K drafts, V vocabulary; N real rows of the sampled requests
in one run, D those of them that judge a draft, S one row per sampled request.

Row i of a request predicts the token after d_i, so row i judges d_{i+1} (row 0 is the anchor's). With p_i, q_i the target's and
the drafter's probability of d_i, and u uniform on [0, 1):

greedy    accept while d_i is the argmax (first index of a tie); then the argmax of the row behind the last accepted.
standard  accept d_i if u_i q_i < p_i; at the first refusal draw from max(p - q, 0). (Leviathan et al. 2211.17192)
block     w_0 = 1, w_i = min(w_{i-1} p_i / q_i, 1); m_i = sum_x max(w_i p_{i+1}(x) - q_{i+1}(x), 0); h_i = m_i / (m_i + 1 - w_i)
          for i < K, h_K = w_K; accept the largest i with u_i < h_i; draw from max(w_i p_{i+1} - q_{i+1}, 0).
          (Sun et al. 2403.10444)
both      when every draft is accepted, draw from p behind the last; a draft without probabilities has q one-hot.

A sampled request with k drafts takes k + 1 uniforms of its stream whatever happens: k for acceptance, then one for the draw. So
with no draft it takes one, as plain decoding does. A greedy request takes none, and its draft's probabilities play no role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drafters.contract import Draft
from drafters.sampling import RequestRandom, SamplingParams, draw, probabilities

Rule = Literal["standard", "block"]
_Lists = list[list[int]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Per request: how many drafts were accepted, and the token that follows them (bonus or correction)."""

    accepted: list[int]
    next_tokens: list[int]


class _Judged(NamedTuple):
    """The probabilities of a request's own drafts under the target and under the drafter (1 where the draft is one-hot)."""

    p: list[float]
    q: list[float]


def verify(
    logits_RTV: Tensor,
    draft: Draft | None,
    params: Sequence[SamplingParams],
    randoms: Sequence[RequestRandom],
    rule: Rule,
) -> Verdict:
    """Judges every request of a batch. Logits cover rows [anchor, d_1 .. d_K], padded; padding is never read as a value.

    A `ValueError` when a verdict rests on logits that are not finite, and when a draft has proposal probability 0: it cannot
    have been drawn from that q, and verifying it against that q would not be lossless.
    """
    requests = len(params)
    lengths = draft.lengths if draft is not None else [0] * requests
    _check(logits_RTV, draft, lengths, requests, len(randoms), rule)
    accepted, next_tokens = [0] * requests, [0] * requests
    greedy = [r for r in range(requests) if params[r].greedy]
    sampled = [r for r in range(requests) if not params[r].greedy]
    if greedy:
        best, drafted = _argmax_and_drafts(logits_RTV, draft, lengths, greedy)
        for r in greedy:
            accepted[r] = _common_prefix(drafted[r][: lengths[r]], best[r])
            next_tokens[r] = best[r][accepted[r]]
    if sampled:
        verdict = _sampled(logits_RTV, draft, lengths, sampled, params, randoms, rule)
        for r, a, token in zip(sampled, verdict.accepted, verdict.next_tokens, strict=True):
            accepted[r], next_tokens[r] = a, token
    return Verdict(accepted, next_tokens)


def _common_prefix(drafted: list[int], best: list[int]) -> int:
    return next((i for i, (d, b) in enumerate(zip(drafted, best, strict=False)) if d != b), len(drafted))


def _argmax_and_drafts(
    logits_RTV: Tensor, draft: Draft | None, lengths: list[int], rows: list[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Argmax of the real rows and the drafted tokens, on the host, without a softmax. Rows of other requests are undefined."""
    tokens_RK = (
        draft.tokens_RK if draft is not None else torch.empty(len(lengths), 0, dtype=torch.int64, device=logits_RTV.device)
    )
    read = _read_in_place if logits_RTV.device.type == "cpu" else _read_packed
    best, bad, drafted = read(logits_RTV, tokens_RK, lengths, rows)
    for r in rows:
        if any(bad[r][: lengths[r] + 1]):
            raise ValueError(f"logits: request {r} of the batch has NaN in a row to verify; the target's pass is broken")
    return best, drafted


def _read_packed(logits_RTV: Tensor, tokens_RK: Tensor, lengths: list[int], rows: list[int]) -> tuple[_Lists, _Lists, _Lists]:
    """Argmax, whether it is NaN, and drafts, in one small transfer. `max` like `argmax` takes the first index of a tie."""
    width = logits_RTV.shape[1]
    values_RT, best_RT = logits_RTV.max(-1)
    packed: _Lists = torch.cat([best_RT, values_RT.isnan().long(), tokens_RK], dim=1).tolist()
    return [row[:width] for row in packed], [row[width : 2 * width] for row in packed], [row[2 * width :] for row in packed]


def _read_in_place(logits_RTV: Tensor, tokens_RK: Tensor, lengths: list[int], rows: list[int]) -> tuple[_Lists, _Lists, _Lists]:
    """The same on a CPU: numpy's argmax reads the logits where they are, real rows only, several times faster than torch's.

    It takes the first index of a tie and stops at the first NaN, as torch does.
    """
    exact = logits_RTV if logits_RTV.dtype in (torch.float32, torch.float64) else logits_RTV.float()
    z_RTV = exact.detach().numpy()
    best_RT: NDArray[np.int64] = np.zeros(z_RTV.shape[:2], dtype=np.int64)
    if len(rows) == len(lengths) and min(lengths) + 1 == z_RTV.shape[1]:
        z_RTV.argmax(-1, out=best_RT)
    else:
        for r in rows:
            z_RTV[r, : lengths[r] + 1].argmax(-1, out=best_RT[r, : lengths[r] + 1])
    bad_RT = np.isnan(np.take_along_axis(z_RTV, best_RT[..., None], axis=-1)[..., 0])
    return best_RT.tolist(), bad_RT.tolist(), tokens_RK.tolist()


def _sampled(
    logits_RTV: Tensor,
    draft: Draft | None,
    lengths: list[int],
    rows: list[int],
    params: Sequence[SamplingParams],
    randoms: Sequence[RequestRandom],
    rule: Rule,
) -> Verdict:
    """The requests `rows` of the batch, none greedy. Decisions are made on the host in float64, sums over V on the device."""
    counts = [lengths[r] + 1 for r in rows]
    starts = list(accumulate(counts, initial=0))[:-1]
    p_NV = probabilities(_real_rows(logits_RTV, rows, counts), [params[r] for r in rows for _ in range(lengths[r] + 1)])
    judged = _judge(p_NV, draft, lengths, rows, starts)
    uniforms = [randoms[r].uniforms(lengths[r] + 1) for r in rows]
    if rule == "standard":
        accepted = [_standard(request, u) for request, u in zip(judged, uniforms, strict=True)]
        weights = [1.0] * len(rows)
    else:
        paths = [_path_weights(request) for request in judged]
        excess = _excess(p_NV, draft, rows, starts, judged, paths)
        accepted = [_block(w, m, u) for w, m, u in zip(paths, excess, uniforms, strict=True)]
        weights = [w[a] for w, a in zip(paths, accepted, strict=True)]
    target_SV = p_NV[_index([start + a for start, a in zip(starts, accepted, strict=True)], p_NV)]
    residual_SV = _residual(target_SV, draft, lengths, rows, accepted, weights)
    return Verdict(accepted, draw(residual_SV, [u[-1] for u in uniforms]).tolist())


def _real_rows(logits_RTV: Tensor, rows: list[int], counts: list[int]) -> Tensor:
    """The rows to judge, [N, V]: a view where no row is padding, because a copy costs as much as a softmax."""
    requests, width = logits_RTV.shape[:2]
    logits_NV = logits_RTV.flatten(0, 1)
    if sum(counts) == requests * width:
        return logits_NV
    return logits_NV[_index([r * width + i for r, count in zip(rows, counts, strict=True) for i in range(count)], logits_NV)]


def _judge(p_NV: Tensor, draft: Draft | None, lengths: list[int], rows: list[int], starts: list[int]) -> list[_Judged]:
    """p and q of every drafted token, read to the host at once."""
    if draft is None or not any(lengths[r] for r in rows):
        return [_Judged([], []) for _ in rows]
    at = [(start + i, r, i) for start, r in zip(starts, rows, strict=True) for i in range(lengths[r])]
    row_D, request_D, step_D = _index(at, p_NV).unbind(-1)
    token_D = draft.tokens_RK[request_D, step_D]
    if not bool(((token_D >= 0) & (token_D < p_NV.shape[1])).all()):
        raise ValueError(f"draft: a drafted token lies outside the target's vocabulary of {p_NV.shape[1]}")
    p_D = p_NV[row_D, token_D].double()
    q_RKV = draft.probabilities_RKV
    q_D = torch.ones_like(p_D) if q_RKV is None else q_RKV[request_D, step_D, token_D].double()
    p, q = torch.stack([p_D, q_D]).tolist()
    for (_, r, i), q_i in zip(at, q, strict=True):
        if not q_i > 0:
            raise ValueError(
                f"draft: token {i + 1} of request {r} has proposal probability {q_i}; q must be what it was drawn from"
            )
    ends = list(accumulate(lengths[r] for r in rows))
    return [_Judged(p[end - lengths[r] : end], q[end - lengths[r] : end]) for r, end in zip(rows, ends, strict=True)]


def _standard(judged: _Judged, uniforms: list[float]) -> int:
    """Drafts accepted one by one until the first refusal. A draft of target probability 0 is always refused."""
    for i, (p, q) in enumerate(zip(judged.p, judged.q, strict=True)):
        if not uniforms[i] * q < p:
            return i
    return len(judged.p)


def _path_weights(judged: _Judged) -> list[float]:
    """w_0 .. w_K of block verification."""
    weights = [1.0]
    for p, q in zip(judged.p, judged.q, strict=True):
        weights.append(min(weights[-1] * p / q, 1.0))
    return weights


def _block(weights: list[float], excess: list[float], uniforms: list[float]) -> int:
    """The largest i whose uniform lies below h_i. `excess[i]` is m_i for i < K; m_0 is not used."""
    last = len(weights) - 1
    for i in range(last, 0, -1):
        slack = 1.0 - weights[i]
        # Where p equals q at weight 1, m and the slack are both 0: accepting is then free, and a longer prefix will be taken.
        chance = weights[i] if i == last else excess[i] / (excess[i] + slack) if excess[i] + slack > 0 else 1.0
        if uniforms[i - 1] < chance:
            return i
    return 0


def _excess(
    p_NV: Tensor, draft: Draft | None, rows: list[int], starts: list[int], judged: list[_Judged], weights: list[list[float]]
) -> list[list[float]]:
    """m_i of block verification for 0 < i < K, and 0 in place of m_0; all on the host."""
    q_RKV = draft.probabilities_RKV if draft is not None else None
    if q_RKV is None:
        return [
            [w_i * (1.0 - p) for w_i, p in zip(w, request.p, strict=False)] for w, request in zip(weights, judged, strict=True)
        ]
    excess = [[0.0] * len(request.p) for request in judged]
    at = [(s, i) for s, request in enumerate(judged) for i in range(1, len(request.p))]
    if at:
        row_D, request_D, step_D = _index([(starts[s] + i, rows[s], i) for s, i in at], p_NV).unbind(-1)
        w_D1 = torch.tensor([[weights[s][i]] for s, i in at], dtype=p_NV.dtype, device=p_NV.device)
        m_D = (w_D1 * p_NV[row_D] - q_RKV[request_D, step_D]).clamp_(min=0).sum(-1)
        for (s, i), m in zip(at, m_D.tolist(), strict=True):
            excess[s][i] = m
    return excess


def _residual(
    target_SV: Tensor, draft: Draft | None, lengths: list[int], rows: list[int], accepted: list[int], weights: list[float]
) -> Tensor:
    """What the next token is drawn from: p, or where a draft was refused max(w p - q, 0). Unnormalised; writes in place.

    A residual without mass (p and q equal up to rounding) falls back to p.
    """
    refused = [s for s, r in enumerate(rows) if accepted[s] < lengths[r]]
    if draft is None or not refused:
        return target_SV
    row_S, request_S, step_S = _index([(s, rows[s], accepted[s]) for s in refused], target_SV).unbind(-1)
    p_SV = target_SV[row_S]
    if draft.probabilities_RKV is None:
        residual_SV = p_SV.scatter(1, draft.tokens_RK[request_S, step_S].unsqueeze(1), 0.0)
    else:
        w_S1 = torch.tensor([[weights[s]] for s in refused], dtype=p_SV.dtype, device=p_SV.device)
        residual_SV = (w_S1 * p_SV - draft.probabilities_RKV[request_S, step_S]).clamp_(min=0)
    empty_S1 = residual_SV.sum(-1, keepdim=True) <= 0
    target_SV[row_S] = torch.where(empty_S1, p_SV, residual_SV.to(p_SV.dtype))
    return target_SV


def _index(values: Sequence[int] | Sequence[tuple[int, ...]], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _check(logits_RTV: Tensor, draft: Draft | None, lengths: list[int], requests: int, randoms: int, rule: str) -> None:
    """Shapes and the rule, each refused with one line."""
    if rule not in get_args(Rule):
        raise ValueError(f"rule: '{rule}' is not a lossless acceptance rule; use one of {', '.join(get_args(Rule))}")
    if not requests == randoms == len(lengths) == logits_RTV.shape[0]:
        got = f"{logits_RTV.shape[0]} logits, {requests} params, {randoms} randoms, {len(lengths)} draft lengths"
        raise ValueError(f"verify: one of each per request is needed, got {got}")
    widest = max(lengths, default=0)
    if min(lengths, default=0) < 0:
        raise ValueError(f"draft.lengths: {min(lengths)} is negative; a request without a draft has length 0")
    if logits_RTV.shape[1] <= widest:
        raise ValueError(f"logits: {logits_RTV.shape[1]} rows per request cannot judge {widest} drafts; give drafts + 1 rows")
    if draft is None:
        return
    if draft.tokens_RK.shape[0] != requests or draft.tokens_RK.shape[1] < widest:
        raise ValueError(f"draft.tokens_RK: shape {tuple(draft.tokens_RK.shape)} must be at least [{requests}, {widest}]")
    expected = (*draft.tokens_RK.shape, logits_RTV.shape[2])
    if draft.probabilities_RKV is not None and draft.probabilities_RKV.shape != expected:
        raise ValueError(f"draft.probabilities_RKV: shape {tuple(draft.probabilities_RKV.shape)} must be {expected}")
