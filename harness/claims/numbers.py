"""Numbers as people print them: ranges, bounds, `1.391 vs DFlash`, lists by position. What cannot be read stays text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"(\d+(?:\.\d+)?)"
_RANGE = re.compile(rf"{_NUMBER}\s*[-\u2013]\s*{_NUMBER}")
_BOUNDS = (("up to ", "up to"), ("over ", "over"), (">", "over"), ("~", "about"))
# Several numbers in one cell that no low and high can stand for, and units that are not ours.
_UNREADABLE = re.compile(
    r"->|by position|by depth|pos0|unconditional|math /|on count|/GPU \(in\+out\)|below|TPS|prompts x|; .*/GPU"
)
_RELATIVE = re.compile(r"(?:\bvs\b|x over|\d over) (?P<over>.+)$", re.I)


@dataclass(frozen=True, slots=True)
class Read:
    """A printed number: `low` equals `high` for a single one. `over` is what a ratio is relative to, as printed."""

    low: float
    high: float
    bound: str | None = None
    over: str | None = None


def read_number(text: str) -> Read | None:
    """What a cell says, null when it is empty or holds something other than one number or one range.

    `1.391 vs DFlash` is 1.391 over DFlash; `55.6 / 210.0` is a range of two settings, a longer list (by position) is not read;
    words after a number are dropped.
    """
    text = text.strip()
    if not re.search(r"\d", text) or _UNREADABLE.search(text):
        return None
    relative = _RELATIVE.search(text)
    over = relative["over"].strip() if relative else None
    bound = next((name for mark, name in _BOUNDS if text.startswith(mark)), None)
    for mark, _ in _BOUNDS:
        text = text.removeprefix(mark)
    if found := re.match(rf"{_NUMBER}(?:\s*/\s*{_NUMBER})+", text):
        parts = [float(part) for part in re.findall(_NUMBER, found[0])]
        return Read(min(parts), max(parts), bound, over) if len(parts) == 2 else None
    if found := _RANGE.match(text):
        return Read(float(found[1]), float(found[2]), bound, over)
    single = re.match(_NUMBER, text)
    return Read(float(single[1]), float(single[1]), bound, over) if single else None


def read_gain(text: str) -> tuple[float, float] | None:
    """`recorded as +64%; 20 -> 54 ...`: the printed gain as a share, and the rate before; null for other text."""
    found = re.search(rf"\+{_NUMBER}\s*%;\s*{_NUMBER}\s*->", text)
    return (float(found[1]) / 100, float(found[2])) if found else None


def read_budget(text: str) -> int | None:
    """Drafts per step. `block B` counts the anchor; `7 (steps7 topk1 num_draft_tokens8)` is 7; a schedule is null."""
    text = text.strip()
    if re.fullmatch(r"\d+/\d+/\d+|\d+ vs \d+|\d+-\d+ .*|\d+ decode / .*|num_steps=.*|\d+-layer drafter", text):
        return None
    if found := re.match(r"block (\d+)$", text):
        return int(found[1]) - 1
    if found := re.search(r"(?:tree|length) (\d+)", text):
        return int(found[1])
    found = re.match(r"(\d+)(?: \(|$)", text)
    return int(found[1]) if found else None


def read_temperature(text: str) -> float | None:
    """A stated temperature; null for `not stated`, also where a default was assumed for it."""
    if "not stated" in text or "model default" in text:
        return None
    if text.strip() == "greedy":
        return 0.0
    found = re.match(_NUMBER, text.strip())
    return float(found[1]) if found else None


def read_count(text: str) -> int | None:
    """A whole number and nothing else; `24 client / 32 server` is null."""
    return int(text) if re.fullmatch(r"\d+", text.strip()) else None
