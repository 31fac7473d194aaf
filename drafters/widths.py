"""How long a target pass takes by rows per request: what a verification of K drafts costs beside one row of plain decoding.

Measured on the loop's own target after its requests are done, with real text in the slots. A pass commits nothing, so every one
of them starts from the same cache. The widths take turns within each round and each round starts elsewhere, so that a machine
that drifts slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drafters.contract import Target
from drafters.stopwatch import Stopwatch, stopwatch


@dataclass(frozen=True, slots=True)
class WidthTime:
    """One timed pass: requests in the batch, rows of each, committed tokens over the batch, round, ns in the target."""

    requests: int
    width: int
    context_tokens: int
    round: int
    verify_ns: int


@torch.inference_mode()
def sweep_widths(
    target: Target, texts: Sequence[Sequence[int]], widths: Sequence[int], rounds: int, chunk: int
) -> list[WidthTime]:
    """Time passes of every width over `len(texts)` requests, after one pass of each that is not kept.

    The last `max(widths)` tokens of each text are the rows, what stands before them is committed first, `chunk` tokens a pass.
    Raises ValueError when a text is too short or too long, or there are more texts than slots.
    """
    widest = max(widths)
    _check(target, texts, widest)
    slots = list(range(len(texts)))
    try:
        for slot, text in zip(slots, texts, strict=True):
            _fill(target, slot, text[:-widest], chunk)
        rows_RT = torch.tensor([list(text[-widest:]) for text in texts], device=target.device)
        context = sum(target.length(slot) for slot in slots)
        watch = stopwatch(target.device)
        for width in widths:
            _pass_ns(target, slots, rows_RT[:, :width], watch)
        return [
            WidthTime(len(texts), width, context, number, _pass_ns(target, slots, rows_RT[:, :width], watch))
            for number in range(rounds)
            for width in _rotated(widths, number)
        ]
    finally:
        for slot in slots:
            target.release(slot)


def _pass_ns(target: Target, slots: Sequence[int], rows_RT: torch.Tensor, watch: Stopwatch) -> int:
    with watch.phase("verify"):
        target.forward(slots, rows_RT, [rows_RT.shape[1]] * len(slots), False, ())
    return watch.read()["verify"]


def _fill(target: Target, slot: int, text: Sequence[int], chunk: int) -> None:
    for start in range(0, len(text), chunk):
        tokens = list(text[start : start + chunk])
        target.forward([slot], torch.tensor([tokens], device=target.device), [len(tokens)], True, ())
        target.commit([slot], [len(tokens)])


def _rotated(widths: Sequence[int], number: int) -> list[int]:
    """The widths from another start in every round; a third of the list apart, so that neighbours do not follow each other."""
    start = number * max(1, len(widths) // 3) % len(widths)
    return [*widths[start:], *widths[:start]]


def _check(target: Target, texts: Sequence[Sequence[int]], widest: int) -> None:
    if not 0 < len(texts) <= target.slots:
        raise ValueError(f"width sweep: {len(texts)} requests asked of {target.slots} slots")
    shortest, longest = min(map(len, texts)), max(map(len, texts))
    if shortest <= widest or longest > target.max_length:
        raise ValueError(
            f"width sweep: texts of {shortest} to {longest} tokens; {widest} rows behind a context need more than {widest} and"
            f" at most {target.max_length}"
        )
