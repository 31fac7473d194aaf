"""Small Python exercises: a signature, a docstring and examples that were computed, from operations times conditions."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from drafters.train.stdlib import COMPLETE

Operation = Callable[[list[int]], Any]
WHICH: dict[str, Callable[[int], bool]] = {
    "": lambda _: True,
    "even ": lambda n: n % 2 == 0,
    "odd ": lambda n: n % 2 == 1,
    "positive ": lambda n: n > 0,
    "negative ": lambda n: n < 0,
    "two-digit ": lambda n: 10 <= abs(n) <= 99,
    "non-zero ": lambda n: n != 0,
    "multiples of three among the ": lambda n: n % 3 == 0,
    "multiples of five among the ": lambda n: n % 5 == 0,
    "small (below ten) ": lambda n: n < 10,
}
RESULT: dict[str, tuple[str, str, Operation]] = {
    "sum_of": ("int", "the sum of the {}numbers", sum),
    "count": ("int", "how many {}numbers there are", len),
    "largest": ("int | None", "the largest of the {}numbers, or None if there are none", lambda v: max(v, default=None)),
    "smallest": ("int | None", "the smallest of the {}numbers, or None if there are none", lambda v: min(v, default=None)),
    "squares": ("list[int]", "the squares of the {}numbers in their order", lambda v: [n * n for n in v]),
    "doubled": ("list[int]", "the {}numbers, each multiplied by two", lambda v: [2 * n for n in v]),
    "sorted_down": ("list[int]", "the {}numbers from the highest to the lowest", lambda v: sorted(v, reverse=True)),
    "unique": ("list[int]", "the {}numbers without repetitions, first occurrences first", lambda v: list(dict.fromkeys(v))),
    "backwards": ("list[int]", "the {}numbers in reverse order", lambda v: v[::-1]),
    "spread": (
        "int",
        "the difference of the largest and smallest of the {}numbers (0 if none)",
        lambda v: max(v) - min(v) if v else 0,
    ),
    "as_text": ("str", "the {}numbers joined by a comma", lambda v: ",".join(map(str, v))),
    "mean": ("float", "the mean of the {}numbers, or 0.0 if there are none", lambda v: sum(v) / len(v) if v else 0.0),
    "running_total": ("list[int]", "the running totals of the {}numbers", lambda v: [sum(v[: i + 1]) for i in range(len(v))]),
    "pairs": ("list[tuple[int, int]]", "all neighbouring pairs of the {}numbers", lambda v: list(pairwise(v))),
    "positions": ("dict[int, int]", "how often each of the {}numbers occurs", lambda v: {n: v.count(n) for n in v}),
    "alternating": (
        "int",
        "the {}numbers added and subtracted in turn, beginning with plus",
        lambda v: sum(v[::2]) - sum(v[1::2]),
    ),
}
_ARGUMENTS = ("numbers", "values", "data", "items", "xs")


def exercise(draw: random.Random) -> tuple[str, str]:
    """A prompt and its group, the operation with its condition."""
    operation, condition = draw.choice(list(RESULT)), draw.choice(list(WHICH))
    kind, says, compute = RESULT[operation]
    argument = draw.choice(_ARGUMENTS)
    name = "_".join([operation, *condition.replace("(", "").replace(")", "").replace("-", "_").split()][:3])
    typed = draw.random() < 0.6
    signature = f"def {name}({argument}: list[int]) -> {kind}:" if typed else f"def {name}({argument}):"
    examples = "\n".join(_example(name, compute, condition, draw) for _ in range(draw.randint(1, 3)))
    verb = draw.choice(("Return", "Compute", "Give back"))
    docstring = f'    """{verb} {says.format(condition)} in `{argument}`.\n\n{examples}\n    """'
    return f"{draw.choice(COMPLETE)}\n\n```python\n{signature}\n{docstring}\n```", f"{operation} {condition}"


def _example(name: str, compute: Operation, condition: str, draw: random.Random) -> str:
    numbers = [draw.randint(-20, 60) for _ in range(draw.randint(3, 6))]
    return f"    >>> {name}({numbers})\n    {compute([n for n in numbers if WHICH[condition](n)])!r}"
