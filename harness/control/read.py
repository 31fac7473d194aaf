"""What an engine's own documents say about the canonical factors: the `read` column of the table, carried out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from harness.control.factors import is_draft, table

Document = Mapping[str, Any] | str
Scalar = str | int | float | bool | None
NONE = "none"
NOT_SET = "not set"
_PATH = re.compile(r"(?P<negated>not )?(?P<path>\S+)(?: - (?P<less>\d+))?(?: \? (?P<yes>\S+) else (?P<no>\S+))?")


def read_factors(engine: str, documents: Mapping[str, Document]) -> dict[str, Scalar]:
    """Every factor that these documents tell of a serving. JSON documents are mappings; a log and a command line are text.

    A factor of the drafter is left out where the serving has none; any other that is not found is null: it could not be read.
    An engine's own null ("no limit", "off") is `none`, a flag or variable that nobody set is `not set`; lists come as JSON.
    """
    found: dict[str, Scalar] = {}
    for name, factor in table().items():
        document, _, where = (factor.source(engine) or "").partition(" ")
        if not factor.is_told_by(engine) or document not in documents:
            continue
        value = _value(document, documents[document], where)
        if value is not None or not is_draft(name):
            found[name] = value
    return found


def _value(name: str, document: Document, where: str) -> Scalar:
    if isinstance(document, str):
        return _flag(document, where) if name == "command" else _logged(document, where)
    if name == "env":
        return str(document.get(where, NOT_SET))
    return _at(document, where)


def _logged(text: str, pattern: str) -> Scalar:
    """The group of the pattern's last match: what an engine says last is what it does. Null when it says nothing."""
    matches = re.findall(pattern, text)
    return str(matches[-1]) if matches else None


def _flag(command: str, flag: str) -> Scalar:
    """The value of the last `--flag value` or `--flag=value`; true for a flag that stands alone."""
    words, found = shlex.split(command), NOT_SET
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == flag:
            found = "true" if after.startswith("--") else after
    return found


def _at(document: Mapping[str, Any], where: str) -> Scalar:
    """The value at a path, or null where the path ends early. Raises ValueError for a source that is none."""
    match = _PATH.fullmatch(where)
    if match is None:
        raise ValueError(f"read: '{where}' is no path; write a.b.c, `not a.b`, `a.b - 1` or `a.b ? yes else no`")
    value: Any = document
    for key in match["path"].split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            return None
    return NONE if value is None else _changed(value, match)


def _changed(value: Any, match: re.Match[str]) -> Scalar:
    """What the words around a path make of its value."""
    if match["negated"]:
        return not value
    if match["less"]:
        return int(value) - int(match["less"])
    if match["yes"]:
        return match["yes"] if value else match["no"]
    return value if isinstance(value, str | int | float) else json.dumps(value)
