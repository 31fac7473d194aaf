"""Prompts from templates: slots that are filled from word lists and number ranges, by a seeded stream.

`{city}` draws from the list `city`, `{city2}` another entry of it, `{a=3..20}` a number and `{a=10..90/5}` one in steps of 5.
The same slot has the same value wherever it stands. Other braces are text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_SLOT = re.compile(r"\{([a-z]+)(\d?)(?:=(\d+)\.\.(\d+)(?:/(\d+))?)?\}")
Lists = Mapping[str, Sequence[str]]


def read_source(path: Path) -> dict[str, Any]:
    source: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return source


def fill(template: str, lists: Lists, draw: random.Random) -> tuple[str, dict[str, str]]:
    """The template with its slots filled, and what each slot holds. Raises ValueError for a slot without list or range."""
    values: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        name, copy, low, high, step = match.groups()
        if (slot := name + copy) not in values:
            if low is not None:
                values[slot] = str(draw.randrange(int(low), int(high) + 1, int(step or 1)))
            elif name in lists:
                taken = {values.get(name + other) for other in ("", *"23456789")}
                values[slot] = draw.choice([entry for entry in lists[name] if entry not in taken])
            else:
                raise ValueError(
                    f"slot '{slot}' of '{template[:40]}' has no list '{name}'; add it to words.yaml or give a range"
                )
        return values[slot]

    return _SLOT.sub(value, template), values
