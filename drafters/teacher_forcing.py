"""A finished request once more, from its text alone: was every token the target's own choice, and what would be accepted?

The target reads prompt and answer in one pass, in chunks, without drafts, rejected rows or neighbours in the batch. The drafter
gets those states and proposes at every place where the serving had a step. Under greedy decoding, and for point-mass drafts
under any lossless rule (a refused point mass cannot be drawn again), a draft is accepted exactly where it equals the text. So
acceptance recomputed here equals the served one unless positions, taps, features or rollback went wrong in service.

Shape legend: N rows of the text (its last token has none), M taps times H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.contract import Draft, Drafter, Tap, Target

ANSWER_CHUNK = 64  # rows of logits held at once: a vocabulary each
SLOT = 0


@dataclass(frozen=True, slots=True)
class Text:
    """A request's prompt and the tokens that it was delivered, with the limit that it was sent with."""

    prompt: Sequence[int]
    answer: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Choices:
    """Per delivered token, by the target's logits in one pass: how far below the best it lies (0 when it is the best), and how
    far apart the two best are."""

    deficits: list[float]
    gaps: list[float]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The ledger that the drafter gives on this text: steps with and without a draft, drafted, accepted and delivered."""

    steps_with_draft: int
    steps_without_draft: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """`acceptance` is null without a drafter, and where drafts are drawn at random: they would not be drawn again."""

    choices: Choices
    acceptance: Acceptance | None


@torch.inference_mode()
def replay(target: Target, drafter: Drafter | None, budget: int, chunk: int, text: Text) -> Replayed:
    """Read a text again in slot 0, which must be free. Raises ValueError when prompt or answer is empty."""
    if not text.prompt or not text.answer:
        raise ValueError("replay: a text needs a prompt and an answer")
    try:
        choices, hidden_1NM = _read(target, drafter.taps if drafter else (), chunk, text)
        return Replayed(choices, None if drafter is None else _redraft(target.device, drafter, budget, hidden_1NM, text))
    finally:
        target.release(SLOT)
        if drafter is not None:
            drafter.release(SLOT)


def _read(target: Target, taps: Sequence[Tap], chunk: int, text: Text) -> tuple[Choices, Tensor | None]:
    """The whole text through the target: what it would choose at every answer token, and the tapped states of all rows."""
    tokens = [*text.prompt, *text.answer]
    first = len(text.prompt) - 1  # this row predicts the answer's first token
    deficits: list[float] = []
    gaps: list[float] = []
    states: list[Tensor] = []
    for start, end in [*_chunks(0, first, chunk), *_chunks(first, len(tokens) - 1, min(chunk, ANSWER_CHUNK))]:
        rows = torch.tensor([tokens[start:end]], device=target.device)
        out = target.forward([SLOT], rows, [end - start], start < first, taps)
        target.commit([SLOT], [end - start])
        if out.hidden_RTM is not None:
            states.append(out.hidden_RTM[:, : end - start].clone())
        if start >= first:
            logits_NV = out.logits_RTV[0, : end - start].float()
            best_N2 = logits_NV.topk(2).values
            chosen_N = logits_NV.gather(1, torch.tensor(tokens[start + 1 : end + 1], device=target.device)[:, None])[:, 0]
            deficits += (best_N2[:, 0] - chosen_N).tolist()
            gaps += (best_N2[:, 0] - best_N2[:, 1]).tolist()
    return Choices(deficits, gaps), torch.cat(states, 1) if states else None


def _chunks(start: int, end: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, end)) for at in range(start, end, size)]


def _redraft(device: torch.device, drafter: Drafter, budget: int, hidden_1NM: Tensor | None, text: Text) -> Acceptance | None:
    """The steps of the serving over: propose where it did, compare with the text, observe what was committed."""
    tokens, prompt = [*text.prompt, *text.answer], len(text.prompt)
    steps, draftless, drafted, accepted = 0, 0, 0, 0
    _observe(device, drafter, hidden_1NM, tokens, 0, prompt)
    done = 1  # prefill delivers the first token
    while done < len(text.answer):
        draft = drafter.propose([SLOT], [min(budget, text.max_tokens - done - 1)])
        if draft is not None and draft.probabilities_RKV is not None:
            return None
        offered = _offered(draft)
        kept = _common(offered, text.answer[done:])
        steps, draftless = steps + bool(offered), draftless + (not offered)
        drafted, accepted = drafted + len(offered), accepted + kept
        anchor = prompt + done - 1
        done += kept + 1
        if done < len(text.answer):
            _observe(device, drafter, hidden_1NM, tokens, anchor, prompt + done - 1)
    return Acceptance(steps, draftless, drafted, accepted)


def _observe(
    device: torch.device, drafter: Drafter, hidden_1NM: Tensor | None, tokens: list[int], start: int, end: int
) -> None:
    """Rows `start` to `end`, each with the token that follows it."""
    hidden = None if hidden_1NM is None else hidden_1NM[:, start:end]
    drafter.observe([SLOT], hidden, torch.tensor([tokens[start + 1 : end + 1]], device=device), [end - start])


def _offered(draft: Draft | None) -> list[int]:
    if draft is None or not draft.lengths[0]:
        return []
    drafted: list[int] = draft.tokens_RK[0, : draft.lengths[0]].tolist()
    return drafted


def _common(drafted: Sequence[int], text: Sequence[int]) -> int:
    return next((i for i, (d, t) in enumerate(zip(drafted, text, strict=False)) if d != t), min(len(drafted), len(text)))
