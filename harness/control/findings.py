"""What a comparison of two arms can find, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.config import WITHOUT_WEIGHTS
from harness.metrics import Row, Rows, as_map, integer, is_null

Kind = Literal["implied", "confounder", "unknown", "note"]
Verdict = Literal["CONTROLLED", "IMPLIED", "CONFOUNDED", "UNKNOWN"]
COUNTED = ("implied", "confounder")


@dataclass(frozen=True, slots=True)
class Finding:
    """One factor that differs, or could not be compared, with both values and what to do. A note changes no verdict.

    `stated`: one side states this difference as its own engine flag, and the engine was told so. It still counts as what it is.
    `limit`: no difference, but a limit that each of the two is held against.
    """

    factor: str
    kind: Kind
    plain: str
    arm: str
    remedy: str
    stated: bool = False
    limit: str = ""

    def __str__(self) -> str:
        """The values in the order of the line above them: the arm's against plain's."""
        return f"{self.factor} ({self.values}): {self.remedy}"

    @property
    def values(self) -> str:
        """Of a difference, one against the other; of a limit, both and what they may be."""
        return f"{self.arm} and {self.plain}, limit {self.limit}" if self.limit else f"{self.arm} against {self.plain}"


@dataclass(frozen=True, slots=True)
class Control:
    """All findings of one pair of arms at one concurrency."""

    arm: str
    plain: str
    findings: tuple[Finding, ...]

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == kind)

    def with_stated(self, factors: Collection[str], best: str) -> Control:
        """The same findings; those of factors that the plain arm `best` states for itself marked, with that as the reason."""
        why = f"the stated difference of {best}, not the drafter's doing"
        found = (replace(f, stated=True, remedy=why) if f.factor in factors and f.kind in COUNTED else f for f in self.findings)
        return replace(self, findings=tuple(found))

    def also(self, *findings: Finding) -> Control:
        """The same pair with more found, as of the run that both are from."""
        return replace(self, findings=(*self.findings, *findings))

    @property
    def beside_stated(self) -> Control:
        """What else differs."""
        return replace(self, findings=tuple(f for f in self.findings if not f.stated))

    @property
    def findings_that_count(self) -> tuple[Finding, ...]:
        """All but the notes."""
        return tuple(f for f in self.findings if f.kind != "note")

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
    """The rows of one arm: its servings, all their requests (warm-up included), steps, samples and cells.

    `cells` is empty for a run that was measured before there were such rows. `classes` are the content classes that are
    compared, null for all: what happened in others accuses nobody.
    """

    servings: Rows
    requests: Rows
    steps: Rows
    samples: Rows
    cells: Rows = ()
    classes: tuple[str, ...] | None = None

    def measured(self, concurrency: int) -> list[Row]:
        return [r for r in self.requests if r["phase"] == "measured" and self._is_meant(r, concurrency)]

    def measured_cells(self, concurrency: int) -> list[Row]:
        return [c for c in self.cells if self._is_meant(c, concurrency)]

    def _is_meant(self, row: Row, concurrency: int) -> bool:
        return int(row["concurrency"]) == concurrency and (self.classes is None or str(row["content_class"]) in self.classes)

    def counted(self, counter: str, concurrency: int) -> int | None:
        """An engine counter over the measured windows, or over whole servings where windows were not counted."""
        rows = self.measured_cells(concurrency) or self.servings
        counts = [integer(as_map(row["counters"]).get(counter)) for row in rows]
        known = [count for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def drafts(self) -> bool:
        return any(str(row["method"]) != "plain" for row in self.servings)

    @property
    def has_weights(self) -> bool:
        """Whether a drafter with weights was served: prompt lookup drafts without."""
        return any(str(row["method"]) not in WITHOUT_WEIGHTS for row in self.servings)


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
