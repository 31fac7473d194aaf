"""How much further one trained drafter gets than another on the same held-out prompts, with the interval of the difference.

python -m drafters.train.compare RECIPE OTHER [key=value ..]     two exported drafters; overrides are of both
python -m drafters.train.compare dflash2 dflash

The intervals of two cards hold the chance of prompts twice; here both meet the same prompts, and the resampling draws them
together. One training each: not the chance of seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from drafters.train.command import run_recipe_command
from drafters.train.evaluate import RESAMPLES, Acceptance, Interval
from drafters.train.recipe import read_recipe


def difference(one: Acceptance, other: Acceptance, content_class: str | None = None) -> Interval:
    """Pooled acceptance length of one less that of the other; the 95 % interval resamples prompts, the same for both.

    Raises ValueError unless both are of the same prompts at one budget.
    """
    if (one.budget, one.classes) != (other.budget, other.classes):
        raise ValueError("the two were measured on other prompts, or at another budget")
    ours, theirs = (found.tokens_and_steps(content_class) for found in (one, other))
    draw = np.random.default_rng(0).integers(0, len(ours), (RESAMPLES, len(ours)))
    resampled = _pooled(ours[draw].sum(1)) - _pooled(theirs[draw].sum(1))
    low, high = np.quantile(resampled, [0.025, 0.975])
    value = _pooled(ours.sum(0)) - _pooled(theirs.sum(0))
    return Interval(float(value), float(low), float(high), len(ours), int(ours[:, 1].sum()))


def _pooled(sums: np.ndarray) -> np.ndarray:
    pooled: np.ndarray = sums[..., 0] / sums[..., 1]
    return pooled


def lines(names: Sequence[str], found: Sequence[Acceptance]) -> list[str]:
    """Both acceptance lengths and their difference, over all prompts and by content class."""
    one, other = found
    told = [f"held-out acceptance length at budget {one.budget}: {names[0]}, {names[1]}, and the difference paired by prompt"]
    for content in (None, *sorted(set(one.classes))):
        gap = difference(one, other, content)
        both = " ".join(f"{each.of(content).value:.3f}" for each in found)
        told.append(
            f"  {content or 'all':<12} {both}  {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] (n={gap.prompts} prompts)"
        )
    return told


def main(arguments: list[str]) -> int:
    stopped = "stopped; nothing was compared"
    return run_recipe_command(__doc__ or "", arguments, lambda: compare(arguments[:2], arguments[2:]), stopped)


def compare(names: Sequence[str], overrides: list[str]) -> None:
    from drafters.train.fit import Training  # which imports `evaluate`

    if len(names) < 2 or "=" in names[1]:
        raise ValueError("two recipes are needed; give python -m drafters.train.compare dflash2 dflash")
    recipes = [read_recipe(name, overrides) for name in names]
    if recipes[0].out == recipes[1].out:
        raise ValueError(f"both are the drafter in {recipes[0].out}; name another recipe")
    found = []
    for recipe in recipes:
        torch.set_num_threads(recipe.threads)
        print(f"{recipe.name}: all held-out prompts, some minutes", file=sys.stderr, flush=True)
        found.append(Training(recipe).evaluate_export(final=True))
    print("\n".join(lines(names, found)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
