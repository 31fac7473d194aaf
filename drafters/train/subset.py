"""A part of the training answers, for a learning curve over the amount of data."""

from __future__ import annotations

import random
from collections.abc import Sequence

from drafters.train.store import Answer


def subset(answers: Sequence[Answer], count: int | None, seed: int) -> list[Answer]:
    """`count` of the answers in their own order; all of them when it is null.

    Every content class has its share, within half as many answers as there are classes, and a smaller subset of the same seed
    lies in every larger one: each class is shuffled by itself, and the classes are merged by how much of each is used up.
    Raises ValueError when there are fewer answers than asked for.
    """
    if count is None:
        return list(answers)
    if count > len(answers):
        raise ValueError(f"answers: {count} asked for, the data has {len(answers)}; ask for fewer, or null for all")
    of_class: dict[str, list[int]] = {}
    for place, answer in enumerate(answers):
        of_class.setdefault(answer.asked.content_class, []).append(place)
    ranked: list[tuple[float, str, int]] = []
    for name, places in of_class.items():
        random.Random(f"{seed} {name}").shuffle(places)
        ranked += [((rank + 0.5) / len(places), name, place) for rank, place in enumerate(places)]
    return [answers[place] for place in sorted(place for _, _, place in sorted(ranked)[:count])]
