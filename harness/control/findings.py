"""What a comparison of two arms can find, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from harness.metrics import Row, Rows, as_map, is_null

Kind = Literal["implied", "confounder", "unknown", "note"]
Verdict = Literal["CONTROLLED", "IMPLIED", "CONFOUNDED", "UNKNOWN"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One factor that differs, or could not be compared, with both values and what to do. A note changes no verdict."""

    factor: str
    kind: Kind
    plain: str
    arm: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.factor} ({self.plain} against {self.arm}): {self.remedy}"


@dataclass(frozen=True, slots=True)
class Control:
    """All findings of one pair of arms at one concurrency."""

    arm: str
    plain: str
    findings: tuple[Finding, ...]

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == kind)

    @property
    def verdict(self) -> Verdict:
        """CONFOUNDED before UNKNOWN before IMPLIED; CONTROLLED when nothing but the treatment differs and all could be read."""
        if self.of("confounder"):
            return "CONFOUNDED"
        if self.of("unknown"):
            return "UNKNOWN"
        return "IMPLIED" if self.of("implied") else "CONTROLLED"


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one arm: its servings, all its requests (warm-up included), steps and samples."""

    servings: Rows
    requests: Rows
    steps: Rows
    samples: Rows

    def measured(self, concurrency: int) -> list[Row]:
        return [r for r in self.requests if r["phase"] == "measured" and int(r["concurrency"]) == concurrency]


def values_of(side: Side, column: str) -> dict[str, set[str]]:
    """Every value, as JSON text, that each key of a map column took over the servings of one arm."""
    found: dict[str, set[str]] = {}
    for row in side.servings:
        for key, value in as_map(row[column]).items():
            found.setdefault(key, set()).add(str(value))
    return found


def items_of(side: Side, column: str) -> set[str]:
    """The distinct entries of a list column over the servings of one arm."""
    return {str(x) for row in side.servings if not is_null(row[column]) for x in row[column]}


def show(values: Iterable[Any], nothing: str = "not reported") -> str:
    return " or ".join(sorted(str(v) for v in values)) or nothing
