"""What one side of an audit says of itself: canonical factors, each with where its value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Scalar = str | int | float | bool | None
# stated: the side says so. default: the release it states does so. implied: the engine does so because of what is stated.
# supposed: as implied, but the release is not stated. pinned: a rig holds it for every arm. found: a serving read it back.
Origin = Literal["stated", "default", "implied", "supposed", "pinned", "found"]
Source = Literal["command", "rig", "published", "results"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One value. Null means that the engine decides, and that nobody said what. `where` is the token, key or rule behind it."""

    value: Scalar
    origin: Origin
    where: str

    def __str__(self) -> str:
        return "left to the engine" if self.value is None else str(self.value)


@dataclass(frozen=True, slots=True)
class Account:
    """One side. `family` is what two sides share that were held by one source: the rig file, or the run folder.

    `unstated` are factors that the source itself is known not to state. `notes` are said beside the verdict.
    """

    name: str
    source: Source
    facts: Mapping[str, Fact]
    family: str | None = None
    unstated: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    unknown_tokens: tuple[str, ...] = ()
    strange: Mapping[str, str] = field(default_factory=dict)  # what to say of a misspelt flag, by factor
    unread_release: str | None = None  # stated, and of no table: what the engine then moves by itself is only supposed
    harmless: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The family of the drafter; `plain` drafts nothing."""
        fact = self.facts.get("method")
        return "plain" if fact is None or fact.value is None else str(fact.value)

    @property
    def is_plain(self) -> bool:
        return self.method == "plain"

    def value(self, factor: str) -> Scalar:
        fact = self.facts.get(factor)
        return None if fact is None else fact.value
