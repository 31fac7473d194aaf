"""Whether two releases are one, or a range of them, as a rig states it, holds one, as a command states it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

Numbers = tuple[int, ...]
BOUND = re.compile(r"(>=|<=|==|<|>)([\d.]+)")
RELEASE = re.compile(r"v?\d+(?:\.\d+)+")
HOLDS: Mapping[str, Callable[[Numbers, Numbers], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def is_within(one: str, two: str) -> bool:
    """Whether one of the two is a range, `>=0.33,<0.34`, that holds the other. What is no range holds nothing."""
    for span, release in ((one, two), (two, one)):
        bounds = [BOUND.fullmatch(part.strip()) for part in span.split(",")]
        if all(bounds) and re.match(r"\d", release):
            return all(HOLDS[bound[1]](_numbers(release), _numbers(bound[2])) for bound in bounds if bound)
    return False


def is_same(one: str, two: str) -> bool:
    """Whether two texts name one release: `0.33` and `v0.33.0` do; what is no row of numbers must be equal as text."""
    if one == two:
        return True
    return all(RELEASE.fullmatch(text) for text in (one, two)) and _numbers(one) == _numbers(two)


def _numbers(release: str) -> Numbers:
    """`0.33.0` without its trailing zeros, so that it equals `0.33`; a local part after `+` does not count."""
    numbers = [int(part) for part in re.findall(r"\d+", release.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
