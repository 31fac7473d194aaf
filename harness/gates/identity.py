"""Greedy text against plain's: where it first differs, whether that is arithmetic or a fault, and how often plain differs too.

A token is a near tie when the target's own logit for it, in one pass over the arm's text, lies within `NEAR_TIE` of the best:
another order of summation may choose it. Any other token is none that the target would choose, and suspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from harness.metrics import Maybe, Missing, Row, Rows, prompt_key, succeeded
from harness.metrics.quality import text_ids

# In logits. `python -m perf.near_ties` measures what they rest on: the most by which the gap between two of the eight best
# tokens moved when a text went through the target in passes of 2 to 64 rows, or beside others, instead of in one row alone.
# SmolLM2-135M on a CPU (AVX2), 768 positions in each of 8 shapes; the worst shape counts:
#
#   dtype      median   99 %    largest   choices that differ
#   float32    2.9e-5   6.3e-5  9.3e-5    0
#   float16    0.031    0.062   0.086     at most 5 of 768
#   bfloat16   0.19     0.50    0.62      at most 8 of 768
#
# A limit is the largest and some room: 3.2, 1.7 and 1.6 times it. Room is cheap in float32, where a fault is off by tenths,
# and not in bfloat16. A larger model or another kernel may move more.
NEAR_TIE = {"float32": 3e-4, "float16": 0.15, "bfloat16": 1.0}

Kind = Literal["numeric", "suspect", "unclassified"]
Place = tuple[int, str, str]  # concurrency, prompt set, prompt


@dataclass(frozen=True, slots=True)
class Divergence:
    """A request of an arm that differs from plain's: the first position that does, and why. Position 0 is the first token."""

    block: int
    place: Place
    position: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Identity:
    """Requests compared with plain's of the same block, and those that differ. `floor` is the earliest position per prompt at
    which plain differs from itself between boots, null where it never does; empty with a single boot."""

    compared: int
    found: tuple[Divergence, ...]
    floor: Mapping[Place, int | None]

    @property
    def identical(self) -> int:
        return self.compared - len(self.found)

    def count(self, kind: Kind) -> int:
        return sum(d.kind == kind for d in self.found)

    @property
    def below_floor(self) -> int:
        """Differences that come earlier than any between two boots of plain on the same prompt."""
        return sum(self.floor.get(d.place) is None or d.position < (self.floor[d.place] or 0) for d in self.found)

    @property
    def median_position(self) -> Maybe:
        return float(np.median([d.position for d in self.found])) if self.found else Missing("no_pairs")

    @property
    def floor_identical(self) -> int:
        """Prompts on which plain never differs from itself."""
        return sum(position is None for position in self.floor.values())

    @property
    def verdict(self) -> Literal["identical", "numeric", "within the floor", "suspect", "differs"]:
        """`numeric`: all differences are near ties. `within the floor`: none comes earlier than plain's own. `differs`: some
        do, and nobody could say what the target would have chosen there."""
        if not self.found:
            return "identical"
        if self.count("suspect"):
            return "suspect"
        if self.count("numeric") == len(self.found):
            return "numeric"
        return "within the floor" if self.floor and not self.below_floor else "differs"


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Position of the first token that differs, the shorter length where one text ends early, null for equal texts."""
    differs = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return differs if differs is not None else None if len(one) == len(other) else min(len(one), len(other))


def compare_texts(arm: Rows, plain: Rows, twin: Rows, replays: Rows, greedy: bool, dtype: str) -> Identity | Missing:
    """Measured requests of an arm against plain's of the same block. `twin` is a second plain arm or nothing; `replays` are the
    replay rows of the run. Refused when decoding is sampled."""
    if not greedy:
        return Missing("not_greedy")
    named = {(int(row["block"]), place(row)): text_ids(row) for row in succeeded(plain)}
    theirs = {where: text for where, text in named.items() if not isinstance(text, Missing)}
    deficits = {str(row["request_id"]): row["deficits"] for row in replays}
    compared, found = 0, []
    for row in succeeded(arm):
        ours, other = text_ids(row), theirs.get((int(row["block"]), place(row)))
        if other is None or isinstance(ours, Missing):
            continue
        compared += 1
        position = first_difference(ours, other)
        if position is not None:
            kind = _kind(position, len(ours), deficits.get(str(row["request_id"])), NEAR_TIE[dtype])
            found.append(Divergence(int(row["block"]), place(row), position, kind))
    return Identity(compared, tuple(found), floor_of(plain, twin)) if compared else Missing("no_pairs")


def _kind(position: int, length: int, deficits: Iterable[float] | None, limit: float) -> Kind:
    if position >= length:
        return "suspect"  # it ended where plain went on, and no stop token told it to: that would have differed itself
    if deficits is None:
        return "unclassified"
    return "numeric" if list(deficits)[position] <= limit else "suspect"


def floor_of(plain: Rows, twin: Rows) -> dict[Place, int | None]:
    """Per prompt the earliest difference between boots of plain, in order of blocks, and between plain and its twin in a block.

    Prompts that were asked in one boot only are not in it.
    """
    texts: dict[Place, list[list[int]]] = {}
    for row in sorted(succeeded([*plain, *twin]), key=lambda r: int(r["block"])):
        if not isinstance(text := text_ids(row), Missing):
            texts.setdefault(place(row), []).append(text)
    floor: dict[Place, int | None] = {}
    for where, boots in texts.items():
        if len(boots) > 1:
            positions = [p for one, other in pairwise(boots) if (p := first_difference(one, other)) is not None]
            floor[where] = min(positions, default=None)
    return floor


def place(row: Row) -> Place:
    """What a text is compared at: concurrency, prompt set, prompt."""
    return int(row["concurrency"]), *prompt_key(row)
