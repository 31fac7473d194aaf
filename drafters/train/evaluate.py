"""Held-out acceptance of a drafter, in the loop that serves it: greedy, chains of one budget, no step shortened by the end.

python -m drafters.train.evaluate RECIPE [key=value ..]     the exported drafter of a recipe, on all held-out prompts
python -m drafters.train.evaluate dflash out=training/dflash/out
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from drafters.contract import Drafter, Target
from drafters.loop import Job, Loop
from drafters.sampling import SamplingParams
from drafters.train.command import run_recipe_command
from drafters.train.recipe import read_recipe
from drafters.train.store import Answer

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepted drafts of every step of every prompt that had room for the budget, 0 where nothing was drafted.

    `classes[i]` is the content class of `steps[i]`.
    """

    budget: int
    classes: tuple[str, ...]
    steps: tuple[tuple[int, ...], ...]

    def of(self, content_class: str | None = None) -> Interval:
        """Pooled acceptance length: tokens per verification, the bonus included. The interval resamples prompts."""
        sums = self.tokens_and_steps(content_class)
        sums = sums[sums[:, 1] > 0]
        draw = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
        resampled = sums[draw].sum(1)
        low, high = np.quantile(resampled[:, 0] / resampled[:, 1], [0.025, 0.975])
        return Interval(float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high), len(sums), int(sums[:, 1].sum()))

    def tokens_and_steps(self, content_class: str | None = None) -> np.ndarray:
        """Tokens and steps of each prompt of the class, or of all, in the order of the prompts."""
        rows = [s for c, s in zip(self.classes, self.steps, strict=True) if content_class in (None, c)]
        return np.array([[sum(s) + len(s), len(s)] for s in rows], dtype=float)

    def positions(self) -> list[float]:
        """Share of steps that accept draft k, given that they accepted draft k - 1."""
        accepted = np.array([a for steps in self.steps for a in steps])
        reached = [int((accepted >= k).sum()) for k in range(self.budget + 1)]
        return [reached[k + 1] / reached[k] if reached[k] else float("nan") for k in range(self.budget)]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, its 95 % interval, and how many prompts and steps it comes from."""

    value: float
    low: float
    high: float
    prompts: int
    steps: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.prompts} prompts, {self.steps} steps)"


def held_out_acceptance(
    target: Target, drafter: Drafter, answers: Sequence[Answer], budget: int, max_tokens: int, stops: frozenset[int]
) -> Acceptance:
    """Decode the prompts of `answers` anew. The target must be free; steps that the end of a request cut short do not count."""
    loop = Loop(target, drafter, budget, "standard", target.max_length)
    for i, answer in enumerate(answers):
        loop.submit(Job(str(i), answer.prompt_ids, max_tokens, stops, SamplingParams(0.0, 1.0, 0, 0)))
    steps: Mapping[str, list[int]] = {str(i): [] for i in range(len(answers))}
    room = dict.fromkeys(steps, max_tokens)
    while loop.busy:
        for emission in loop.step():
            if emission.accepted is not None and room[emission.job_id] > budget:
                steps[emission.job_id].append(emission.accepted)
            room[emission.job_id] -= len(emission.tokens)
        loop.records.clear()
    classes = tuple(answer.asked.content_class for answer in answers)
    return Acceptance(budget, classes, tuple(tuple(s) for s in steps.values()))


def spread(answers: Sequence[Answer], count: int) -> list[Answer]:
    """The first of each content class in turn, `count` in all."""
    of_class: dict[str, list[Answer]] = {}
    for answer in answers:
        of_class.setdefault(answer.asked.content_class, []).append(answer)
    ranked = [(i, name, answer) for name, found in sorted(of_class.items()) for i, answer in enumerate(found)]
    return [answer for _, _, answer in sorted(ranked, key=lambda r: r[:2])][:count]


def main(arguments: list[str]) -> int:
    stopped = "stopped; nothing was evaluated"
    return run_recipe_command(__doc__ or "", arguments, lambda: evaluate(arguments[0], arguments[1:]), stopped)


def evaluate(name: str, overrides: list[str]) -> None:
    from drafters.train.fit import Training  # which imports this module

    recipe = read_recipe(name, overrides)
    torch.set_num_threads(recipe.threads)
    training = Training(recipe)
    print(training.summary(training.evaluate_export(final=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
