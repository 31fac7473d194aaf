"""Words of a launch command to flags, by the flag table of one engine release (`engines/<engine>-<version>.yaml`).

Each engine splits its words in its own way; the table says what follows a flag, `Style` says how. A flag that the table does
not have is kept and marked; a word that belongs to no flag is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from harness.config import Model

FOLDER = Path(__file__).with_name("engines")
Scalar = str | int | float | bool | None
Kind = Literal["value", "store", "switch", "list", "optional", "two", "unknown"]


class FlagTable(Model):
    """What one release of an engine declares. Names are without dashes; `aliases` and `negated` are spelt with them.

    `methods` are drafting methods as the engine calls them, `speculation_keys` what vLLM's `--speculative-config` holds.
    """

    engine: str
    version: str
    value: tuple[str, ...]
    store: tuple[str, ...] = ()
    switch: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    two: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    aliases: dict[str, str] = Field({})
    negated: dict[str, str] = Field({})
    env: dict[str, str] = Field({})
    defaults: dict[str, Any] = Field({})
    methods: tuple[str, ...] = ()
    speculation_keys: tuple[str, ...] = ()

    def off_env(self) -> dict[str, str]:
        """Variables that switch a flag off by being set at all, as llama.cpp reads them: LLAMA_ARG_NO_... of a negated flag."""
        off = set(self.negated.values())
        return {name.replace("ARG_", "ARG_NO_", 1): flag for name, flag in self.env.items() if flag in off}

    def kinds(self) -> dict[str, Kind]:
        names: tuple[Kind, ...] = ("value", "store", "switch", "list", "optional", "two")
        return {name: kind for kind in names for name in getattr(self, kind)}


@dataclass(frozen=True, slots=True)
class Style:
    """How an engine splits words: `=`, unique beginnings, dotted JSON keys, `_` for `-`, values that begin with a dash."""

    equals: bool
    prefixes: bool
    dotted: bool
    underscores: bool
    dash_values: bool


STYLES = {
    "vllm": Style(equals=True, prefixes=True, dotted=True, underscores=True, dash_values=False),
    "sglang": Style(equals=True, prefixes=True, dotted=False, underscores=False, dash_values=False),
    "llama_cpp": Style(equals=False, prefixes=False, dotted=False, underscores=True, dash_values=True),
}


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as given. `value` is a text, several texts, or true or false for a switch; `token` is what the command says."""

    name: str
    value: str | tuple[str, ...] | bool
    token: str
    known: bool = True

    def known_head(self, kinds: Mapping[str, Kind]) -> bool:
        """Whether the part before the first dot is a flag, so that the rest are keys of its JSON."""
        return self.name.partition(".")[0] in kinds


@cache
def flag_table(engine: str) -> FlagTable:
    """The table of the release that was read for an engine. Raises ValueError when there is none."""
    found = sorted(FOLDER.glob(f"{engine}-*.yaml"))
    if not found:
        raise ValueError(f"engine '{engine}': no flag table; known: {', '.join(sorted(STYLES))}")
    return FlagTable.model_validate(yaml.safe_load(found[-1].read_text("utf-8")))


def split_flags(engine: str, words: Sequence[str], others: Mapping[str, Kind]) -> tuple[list[Given], list[str]]:
    """Flags in the order given, and the words before the first flag (a positional model). Raises ValueError on a stray word.

    `others` are flags of other releases, by what follows them.
    """
    splitter = _Splitter(flag_table(engine), STYLES[engine], list(words), others)
    return splitter.flags(), splitter.positional


class _Splitter:
    def __init__(self, table: FlagTable, style: Style, words: list[str], others: Mapping[str, Kind]) -> None:
        self.table, self.style, self.words = table, style, words
        self.kinds = {**others, **table.kinds()}
        self.positional: list[str] = []

    def flags(self) -> list[Given]:
        found: list[Given] = []
        while self.words:
            word = self.words.pop(0)
            if self._is_flag(word):
                found.append(self._flag(word))
            elif not found:
                self.positional.append(word)
            else:
                raise ValueError(f"'{word}' belongs to no flag, {found[-1].token} before it takes no more; {hint(word)}")
        return found

    def _is_flag(self, word: str) -> bool:
        return len(word) > 1 and word[0] == "-" and not _is_number(word) and not word.startswith(("-$", "- "))

    def _flag(self, word: str) -> Given:
        spelling, equals, inline = word.partition("=") if self.style.equals else (word, "", "")
        name, value = self._named(spelling)
        if value is not None:
            if equals:
                raise ValueError(f"{word}: {spelling} takes no value; remove the part after it")
            return Given(name, value, word, name in self.kinds)
        given = [inline] if equals else None
        head, dot, _ = name.partition(".") if self.style.dotted else (name, "", "")
        kind = self.kinds.get(head, "unknown")
        return self._valued(name, "value" if dot and kind != "unknown" else kind, word, given)

    def _named(self, spelling: str) -> tuple[str, bool | None]:
        """Name without dashes, and the value of a switch that its spelling already states."""
        first, dot, keys = spelling.partition(".") if self.style.dotted else (spelling, "", "")
        if first in self.table.aliases:
            return self._switched(self.table.aliases[first] + dot + keys)
        if spelling in self.table.negated:
            return self.table.negated[spelling], False
        name = spelling.lstrip("-")
        if self.style.underscores and spelling.startswith("--"):
            head, dot, tail = name.partition(".")
            name = head.replace("_", "-") + dot + tail
        if spelling.startswith("-O") and self.table.engine == "vllm":
            return "optimization-level", None
        if name not in self.kinds and f"--{name}" in self.table.aliases:
            name = self.table.aliases[f"--{name}"]
        if name.startswith("no-") and self.kinds.get(name[3:]) == "switch":
            return name[3:], False
        return self._switched(self._completed(name) if spelling.startswith("--") else name)

    def _completed(self, name: str) -> str:
        """argparse takes any unique beginning of a flag for it."""
        if not self.style.prefixes or name.partition(".")[0] in self.kinds or len(name) < 2:
            return name
        longer = {known for known in self.kinds if known.startswith(name)}
        return longer.pop() if len(longer) == 1 else name

    def _switched(self, name: str) -> tuple[str, bool | None]:
        return name, True if self.kinds.get(name) in ("store", "switch") else None

    def _valued(self, name: str, kind: Kind, token: str, given: list[str] | None) -> Given:
        if name == "optimization-level" and token.startswith("-O") and given is None and len(token) > 2:
            given = [token[2:]]
        if kind == "list":
            values = tuple(given or self._following())
            return Given(name, values, token)
        if kind == "two":
            return Given(name, (self._next(token), self._next(token)), token)
        if kind in ("optional", "unknown") and given is None:
            given = self._following(limit=1) or None
            return Given(name, given[0] if given else True, token, kind != "unknown")
        return Given(name, given[0] if given else self._next(token), token, kind != "unknown")

    def _following(self, limit: int | None = None) -> list[str]:
        taken: list[str] = []
        while self.words and not self._is_flag(self.words[0]) and (limit is None or len(taken) < limit):
            taken.append(self.words.pop(0))
        return taken

    def _next(self, token: str) -> str:
        if not self.words or (not self.style.dash_values and self._is_flag(self.words[0])):
            raise ValueError(f"{token}: no value after it; give one")
        return self.words.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def hint(word: str) -> str:
    """What to do about a word that belongs to no flag."""
    if word.startswith("$"):
        return "it is a variable that this text does not set; write its value"
    return "quote a value that has spaces, or remove it"


def parsed_json(text: str, token: str) -> dict[str, Any]:
    """A JSON object in a flag. Raises ValueError that names the flag."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{token}: '{_short(text)}' is not JSON ({error}); quote it for the shell") from None
    if not isinstance(found, dict):
        raise ValueError(f"{token}: '{_short(text)}' is not a JSON object; write {{\"key\": value}}")
    return found


def _short(text: str) -> str:
    return text if len(text) < 60 else text[:57] + "..."


def lasting(given: Sequence[Given]) -> tuple[dict[str, Given], tuple[str, ...]]:
    """The flag that counts of each name, the last, and the names that were given more than once with different values."""
    found: dict[str, Given] = {}
    repeated: list[str] = []
    for one in given:
        if one.name in found and found[one.name].value != one.value:
            repeated.append(one.name)
        found[one.name] = one
    return found, tuple(dict.fromkeys(repeated))


def merged(dotted: Mapping[str, Given]) -> dict[str, dict[str, Any]]:
    """`--config.a.b 1` as nested JSON by flag: `{"config": {"a": {"b": 1}}}`. A list element `key+` is appended."""
    nested: dict[str, dict[str, Any]] = {}
    for name, given in dotted.items():
        head, *keys = name.split(".")
        here = nested.setdefault(head, {})
        for key in keys[:-1]:
            inner = here.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{given.token}: '{key}' is a value already; give the object once")
            here = inner
        last = keys[-1] if keys else ""
        if last.endswith("+"):
            here.setdefault(last[:-1], []).append(_loose(given.value))
        else:
            here[last] = _loose(given.value)
    return nested


def _loose(value: str | tuple[str, ...] | bool) -> Any:
    """JSON where it is JSON, else the text."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
