"""Shell text to simple commands: words, environment and what was assigned before, without running anything.

Understood: quotes, backslashes, line continuations, comments, `NAME=value command`, `export`, `unset`, `env`, variables that
the text itself sets, `${NAME:-otherwise}`, redirections, and commands in a row (`;`, `&&`, `|`, `&`, new lines). A substitution
such as `$(nproc)`, or a variable that the text does not set, stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
OTHERWISE = re.compile(r"\$\{([A-Za-z_]\w*)(:?)([-=])([^${}`\"']*)\}")
OPERATORS = ";&|\n()"


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. `env` is what the text sets for it: exports and assignments before it, and its own prefix."""

    words: tuple[str, ...]
    env: Mapping[str, str]


def commands(text: str) -> list[Command]:
    """The commands of a text, in order. Raises ValueError that names an unterminated quote."""
    found: list[Command] = []
    assigned: dict[str, str] = {}
    exported: set[str] = set()
    for words in _simple(text.replace("\r\n", "\n"), assigned):
        if words[0] == "export":
            assigned.update(pairs(words[1:])[0])
            exported.update(word.partition("=")[0] for word in words[1:])
            continue
        if words[0] == "unset":
            for name in words[1:]:
                assigned.pop(name, None)
                exported.discard(name)
            continue
        own, rest = pairs(words)
        if rest:
            outside = {name: value for name, value in assigned.items() if name in exported}
            found.append(Command(tuple(rest), {**outside, **own}))
        else:
            assigned.update(own)
    return found


def pairs(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The `NAME=value` words that a list begins with, and the words after them."""
    found: dict[str, str] = {}
    for position, word in enumerate(words):
        if (pair := ASSIGNMENT.fullmatch(word)) is None:
            return found, list(words[position:])
        found[pair[1]] = pair[2]
    return found, []


def _simple(text: str, assigned: dict[str, str]) -> Iterator[list[str]]:
    """Word lists between operators. `assigned` is read as the text goes on, so a later word sees an earlier assignment."""
    words: list[str] = []
    reader = _Reader(text, assigned)
    while (word := reader.word()) is not None:
        if reader.was_operator:
            if words:
                yield words
            words = []
        else:
            words += [word] if reader.was_quoted else word.split() if reader.was_expanded else [word]
    if words:
        yield words


class _Reader:
    """Words of one text from left to right. What `was_` tells is of the word read last."""

    def __init__(self, text: str, assigned: dict[str, str]) -> None:
        self.text = text
        self.at = 0
        self.assigned = assigned
        self.was_quoted = False
        self.was_expanded = False
        self.was_operator = False

    def word(self) -> str | None:
        """The next word, one operator character, or null at the end. Redirections and comments are skipped."""
        self.was_quoted = self.was_expanded = self.was_operator = False
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                self.at = self._find("\n", len(self.text))
            elif redirection := re.compile(r"\d?(?:>>?|<<?<?)&?\s*(?:\d\b|-)?|&>>?\s*").match(self.text, self.at):
                self._redirection(redirection.group())
            elif self.text[self.at] in OPERATORS:
                self.at += 1
                self.was_operator = True
                return self.text[self.at - 1]
            else:
                return self._plain_word()
        return None

    def _redirection(self, symbol: str) -> None:
        self.at += len(symbol)
        if (
            not symbol.rstrip().endswith(("0", "1", "2", "-"))
            and self.at < len(self.text)
            and self.text[self.at] not in OPERATORS
        ):
            self._plain_word()
            self.was_quoted = self.was_expanded = False

    def _plain_word(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in " \t<>" + OPERATORS:
            parts.append(self._part())
        return "".join(parts)

    def _part(self) -> str:
        """One quoted piece, escape, substitution or character."""
        here = self.text[self.at]
        if here == "'":
            return self._quoted("'")
        if here == '"':
            return self._double()
        if here == "\\":
            self.at += 2
            escaped = self.text[self.at - 1 : self.at]
            return "" if escaped == "\n" else escaped
        if here in "$`":
            return self._substitution()
        self.at += 1
        return here

    def _quoted(self, quote: str) -> str:
        end = self._closing(quote, self.at)
        inside, self.at, self.was_quoted = self.text[self.at + 1 : end], end + 1, True
        return inside

    def _double(self) -> str:
        start, parts = self.at, []
        self.at, self.was_quoted = self.at + 1, True
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                parts.append("" if self.text[self.at + 1] == "\n" else self.text[self.at + 1])
                self.at += 2
            elif self.text[self.at] in "$`":
                parts.append(self._substitution())
            else:
                parts.append(self.text[self.at])
                self.at += 1
        if self.at >= len(self.text):
            raise ValueError(f"quote never closed: {self.text[start : start + 40]!r}; close it")
        self.at += 1
        return "".join(parts)

    def _substitution(self) -> str:
        """A variable that the text has set is replaced; anything else stays as written."""
        if found := VARIABLE.match(self.text, self.at):
            self.at = found.end()
            name = found[1] or found[2]
            self.was_expanded |= name in self.assigned
            return self.assigned.get(name, found.group())
        if found := OTHERWISE.match(self.text, self.at):
            self.at, self.was_expanded = found.end(), True
            return self._otherwise(*found.groups())
        if self.text.startswith(("$(", "${", "`"), self.at):
            closing = {"$(": ")", "${": "}"}.get(self.text[self.at : self.at + 2], "`")
            end = self._closing(closing, self.at + (0 if closing == "`" else 1))
            inside, self.at = self.text[self.at : end + 1], end + 1
            return inside
        self.at += 1
        return self.text[self.at - 1]

    def _otherwise(self, name: str, colon: str, sign: str, otherwise: str) -> str:
        """`${NAME-x}` is x where the text does not set NAME, `:-` also where it is empty; `=` sets it too."""
        value = self.assigned.get(name)
        if value is None or (colon and not value):
            value = otherwise
            if sign == "=":
                self.assigned[name] = value
        return value

    def _closing(self, closing: str, start: int) -> int:
        end = self.text.find(closing, start + 1)
        if end < 0:
            raise ValueError(f"{closing!r} is missing after {self.text[start : start + 40]!r}; close it")
        return end

    def _find(self, what: str, otherwise: int) -> int:
        found = self.text.find(what, self.at)
        return found if found >= 0 else otherwise
