"""Blocks for training DFlash: anchors in the answers of a batch, what each block reads, and what each of its rows should say.

Serving drafts behind every anchor that verification leaves, the answer's first token among them, so anchors are the first token
of the answer and a random choice of the others. Blocks of one text may overlap; none sees another. Near the end of a text a
block is as wide as in serving, and the rows behind the text have no label.

Shape legend: S tokens of a sequence, A anchors (of all sequences where they are joined), B block rows, L labelled rows, M taps
times H, H hidden size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.train.objective import Example


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a batch, sequence after sequence: `ends` has for each sequence the end of its anchors and of its context.

    `context_NM` joins the states that some block may see, `said_LH` the target's final states behind each labelled row's text:
    through the head, what that row should say. `row_L` counts rows over all blocks, `slot_L` from 1 within a block.
    """

    tokens_AB: Tensor
    positions_AB: Tensor
    context_NM: Tensor
    context_positions_N: Tensor
    sizes: list[tuple[int, int]]
    row_L: Tensor
    slot_L: Tensor
    token_L: Tensor
    before_L: Tensor
    said_LH: Tensor
    before_anchor_A: Tensor

    @property
    def width(self) -> int:
        return self.tokens_AB.shape[1]


def spread(example: Example, count: int, draw: random.Random) -> Tensor:
    """At most `count` anchors [A], ascending: the answer's first token and others of it that have a token behind them."""
    last = len(example.tokens_S) - 1
    if example.prompt >= last or count < 1:
        return torch.empty(0, dtype=torch.int64)
    others = range(example.prompt + 1, last)
    return torch.tensor([example.prompt, *sorted(draw.sample(others, min(count - 1, len(others))))])


def blocks_of(batch: Sequence[Example], width: int, count: int, mask_token: int, draw: random.Random) -> Blocks:
    """Blocks of `width` rows, the anchor first, at up to `count` anchors of every sequence."""
    anchors = [spread(example, count, draw) for example in batch]
    # Rows behind the last anchor are context of no block.
    spans = [int(anchors_A[-1]) if len(anchors_A) else 0 for anchors_A in anchors]
    positions_AB = torch.cat(anchors)[:, None] + torch.arange(width)
    tokens_AB = torch.full(positions_AB.shape, mask_token)
    tokens_AB[:, 0] = torch.cat([e.tokens_S[a] for e, a in zip(batch, anchors, strict=True)])
    lengths_A = torch.cat([torch.full((len(a),), len(e.tokens_S)) for e, a in zip(batch, anchors, strict=True)])
    labelled_AB = positions_AB < lengths_A[:, None]
    labelled_AB[:, 0] = False
    # Positions in the joined tokens, and in the joined states, which have one row less per sequence.
    starts_A = torch.cat([torch.full((len(a),), start) for a, start in zip(anchors, _starts(batch), strict=True)])
    sequence_A = torch.cat([torch.full((len(a),), i) for i, a in enumerate(anchors)])
    at_L = (positions_AB + starts_A[:, None])[labelled_AB]
    row_L = labelled_AB.flatten().nonzero().flatten()
    tokens = torch.cat([example.tokens_S for example in batch])
    final = torch.cat([example.final_NH for example in batch])
    return Blocks(
        tokens_AB,
        positions_AB,
        torch.cat([example.taps_NM[:span] for example, span in zip(batch, spans, strict=True)]),
        torch.cat([torch.arange(span) for span in spans]),
        [(len(anchors_A), span) for anchors_A, span in zip(anchors, spans, strict=True)],
        row_L,
        row_L % width,
        tokens[at_L],
        tokens[at_L - 1],
        final[at_L - 1 - sequence_A[row_L // width]],
        tokens[positions_AB[:, 0] + starts_A - 1],
    )


def _starts(batch: Sequence[Example]) -> list[int]:
    """Where each sequence begins in the joined tokens."""
    lengths = torch.tensor([0, *(len(example.tokens_S) for example in batch)])
    starts: list[int] = lengths.cumsum(0)[:-1].tolist()
    return starts
