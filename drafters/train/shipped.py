"""A drafter trained again beside the shipped one of its name: does its held-out acceptance lie inside the shipped interval?"""

from __future__ import annotations

import re
from pathlib import Path

from drafters.train.learning_curve import Point, read_card
from drafters.train.prompts import ROOT
from drafters.train.recipe import Recipe, read_recipe

_MEASURED = re.compile(r"greedy, (budget \d+, up to \d+ new tokens)")


def beside_shipped(recipe: Recipe) -> str | None:
    """One line for a trained recipe, or null where it is the shipped folder itself or nothing of its name is shipped.

    Raises ValueError for a card that `card.write_card` did not write.
    """
    ours, theirs = (ROOT / out / "README.md" for out in (recipe.out, read_recipe(recipe.name, []).out))
    if ours.resolve() == theirs.resolve() or not theirs.is_file():
        return None
    return compared(recipe.name, ours, theirs)


def compared(name: str, ours: Path, theirs: Path) -> str:
    """What two cards say of all held-out prompts. The intervals are of prompts: 95 %, and not of seeds."""
    if measured(ours) != measured(theirs):
        return f"the shipped {name} was measured with {measured(theirs)}, this one with {measured(ours)}: not compared"
    own, shipped = (next(point for point in read_card(card) if point.content == "all") for card in (ours, theirs))
    where = "inside" if shipped.low <= own.acceptance_length <= shipped.high else "outside"
    overlap = "overlap" if own.low <= shipped.high and shipped.low <= own.high else "do not overlap"
    line = f"held-out acceptance length {shown(own)} is {where} the interval of the shipped {name}, {shown(shipped)}"
    return f"{line}; the two intervals {overlap}{other_amount(own, shipped)}"


def measured(card: Path) -> str | None:
    """Budget and length of the held-out evaluation: lengths of acceptance at two budgets say nothing of each other."""
    found = _MEASURED.search(card.read_text(encoding="utf-8"))
    return found and found[1]


def shown(point: Point) -> str:
    return f"{point.acceptance_length:.3f} [{point.low:.3f}, {point.high:.3f}]"


def other_amount(own: Point, shipped: Point) -> str:
    if (own.updates, own.sequences) == (shipped.updates, shipped.sequences):
        return ""
    return (
        f" ({own.updates} updates on {own.sequences} sequences; the shipped one had {shipped.updates} on {shipped.sequences})"
    )
