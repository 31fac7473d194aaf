"""Decision matrices: criteria, weights and scores as data, totals recomputed, printed totals checked against them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from harness.claims.arithmetic import Mistake, printed, total_mismatch, weighted_total
from harness.config import Model
from harness.config_errors import near
from harness.rigs import ROOT

PROFILES = ROOT / "profiles"
LOWEST, HIGHEST = 1.0, 5.0
M = TypeVar("M", bound=Model)


class Criterion(Model):
    """One line: scores stated per alternative (a method), or measured and put on a straight line from `worst` to `best`."""

    name: str
    weight: float = Field(gt=0)
    scores: dict[str, float] = Field({})
    measure: str | None = None
    worst: float | None = None
    best: float | None = None

    @model_validator(mode="after")
    def _is_stated_or_measured(self) -> Criterion:
        if bool(self.scores) == bool(self.measure):
            raise ValueError("scores: give scores, or a measure with worst and best, not both")
        if self.measure and (self.worst is None or self.best is None or self.worst == self.best):
            raise ValueError("measure: needs worst and best, and they must differ")
        return self

    def score(self, value: float) -> float:
        """A measured value on the scale from 1 to 5, cut off at its ends."""
        assert self.worst is not None
        assert self.best is not None
        share = (value - self.worst) / (self.best - self.worst)
        return LOWEST + (HIGHEST - LOWEST) * min(1.0, max(0.0, share))


class Flip(Model):
    """What happens to the totals when some scores of one criterion change."""

    name: str
    criterion: str
    scores: dict[str, float]
    printed: dict[str, str] = Field({})


class Matrix(Model):
    """A decision matrix. `printed` holds totals as somebody printed them; `reconstructed`: the scores are not theirs."""

    name: str
    summary: str
    source: str | None = None
    reconstructed: str | None = None
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    printed: dict[str, str] = Field({})
    flips: tuple[Flip, ...] = ()

    @property
    def weights(self) -> dict[str, float]:
        return {criterion.name: criterion.weight for criterion in self.criteria}

    def scores(self, alternative: str) -> dict[str, float]:
        """The stated scores of one alternative by criterion."""
        return {c.name: c.scores[alternative] for c in self.criteria if alternative in c.scores}


@dataclass(frozen=True, slots=True)
class Total:
    """An alternative's total as printed and as its scores and weights give it, before or after a flip."""

    alternative: str
    printed: str | None
    recomputed: float
    mistake: Mistake | None


def load_matrix(name: str) -> Matrix:
    """A matrix by its name in profiles/matrix/, or by the path of a YAML file. Raises ValueError that names the key."""
    return load(Matrix, name, PROFILES / "matrix")


def load(model: type[M], name: str, folder: Path) -> M:
    """A file of this repository by name, or any YAML file by path, judged by a model."""
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        hint = near(name, (found.stem for found in folder.glob("*.yaml")))
        raise ValueError(f"'{name}': no such file in {folder.relative_to(ROOT)}/; {hint}")
    try:
        return model.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None


def totals(matrix: Matrix, flip: Flip | None = None) -> list[Total]:
    """Every alternative with a full set of stated scores, in the order of the matrix."""
    found = []
    for alternative in dict.fromkeys(name for criterion in matrix.criteria for name in criterion.scores):
        scores = matrix.scores(alternative)
        if flip is not None:
            scores[flip.criterion] = flip.scores.get(alternative, scores[flip.criterion])
        if scores.keys() != matrix.weights.keys():
            continue
        told = (matrix.printed if flip is None else {**matrix.printed, **flip.printed}).get(alternative)
        mistake = total_mismatch(printed(told), scores, matrix.weights) if told else None
        found.append(Total(alternative, told, weighted_total(scores, matrix.weights), mistake))
    return found


def check_lines(matrix: Matrix) -> Iterator[str]:
    """Printed totals against recomputed ones, the ranking by each, and the same after every flip."""
    yield f"matrix {matrix.name}: {matrix.summary}"
    if matrix.reconstructed:
        yield f"note: {matrix.reconstructed}"
    for flip in (None, *matrix.flips):
        found = totals(matrix, flip)
        if flip is not None:
            yield f"when {flip.name}:"
        for total in found:
            verdict = "does not follow from its scores" if total.mistake else "follows" if total.printed else "not printed"
            yield f"  {total.alternative:<10} printed {total.printed or '-':>5}  recomputed {total.recomputed:.2f}  {verdict}"
        yield f"  {_ranking(found)}"


def _ranking(found: list[Total]) -> str:
    by_scores = [t.alternative for t in sorted(found, key=lambda t: -t.recomputed)]
    known = [t for t in found if t.printed]
    by_print = [t.alternative for t in sorted(known, key=lambda t: -float(t.printed or 0))]
    ranking = " > ".join(by_scores)
    if len(known) < len(found):
        return f"ranking by the scores: {ranking}"
    same = ", the same as printed" if by_print == by_scores else f"; printed {' > '.join(by_print)}"
    return f"ranking: {ranking}{same}"


def leader(found: list[Total]) -> str:
    """The alternative with the highest recomputed total."""
    return max(found, key=lambda total: total.recomputed).alternative
