"""Overrides of one entry of a list, such as `workload.sets.0.set=chat`: which entries there are where a key names none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.config_errors import ConfigError


def no_such_entry(config: Mapping[str, Any], keys: Iterable[str]) -> ConfigError | None:
    """The error of the first key that goes into a list of `config` by a number it does not have; null when none does."""
    return next(filter(None, (_wrong_entry(config, key) for key in keys)), None)


def _wrong_entry(config: Any, key: str) -> ConfigError | None:
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if isinstance(config, Mapping):
            config = config.get(part)
        elif isinstance(config, Sequence) and not isinstance(config, str):
            if not part.isdecimal() or int(part) >= len(config):
                return ConfigError(f"{key}: {_entries('.'.join(parts[:depth]), config)}")
            config = config[int(part)]
        else:
            return None
    return None


def _entries(where: str, entries: Sequence[Any]) -> str:
    """How many entries a list has, their numbers and what they are, and what to do."""
    whole = f"give the whole list with {where}=[...]"
    if not entries:
        return f"{where} is an empty list; {whole}"
    told = ", ".join(f"{number} {_short(entry)}" for number, entry in enumerate(entries))
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    return f"{where} has {count}: {told}; name one by its number, or {whole}"


def _short(entry: Any) -> str:
    """A prompt set by its name, anything else as it is."""
    return str(entry.get("set", next(iter(entry.values()), ""))) if isinstance(entry, Mapping) else str(entry)
