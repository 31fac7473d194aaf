"""Releases as people write them: which text is one, whether two are the same, whether a rig's range holds a command's."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

Numbers = tuple[int, ...]
BOUND = re.compile(r"(>=|<=|==|<|>)([\d.]+)")
NUMBERED = re.compile(r"v?\d+(?:\.\d+)+")
ANY = re.compile(r"v?(\d+(\.\w+)*([+.-]?\w+)*|b\d+)")  # also release candidates, local parts and llama.cpp's builds
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
    return all(NUMBERED.fullmatch(text) for text in (one, two)) and _numbers(one) == _numbers(two)


def stated(version: str | None) -> str | None:
    """`v0.33.0` is `0.33.0`. Raises ValueError for a text that can be no release of any engine."""
    if version is None:
        return None
    if not ANY.fullmatch(version.strip()):
        raise ValueError(f"release '{version}': is none; give one such as 0.33.0, 0.5.23 or b11434")
    return version.strip().lstrip("v")


def _numbers(release: str) -> Numbers:
    """`0.33.0` without its trailing zeros, so that it equals `0.33`; a local part after `+` does not count."""
    numbers = [int(part) for part in re.findall(r"\d+", release.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
