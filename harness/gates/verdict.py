"""All gates of one arm at one concurrency, and the marks that its speedup carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.gates.identity import Identity, compare_texts
from harness.metrics import (
    LengthParity,
    Maybe,
    Missing,
    Row,
    Rows,
    eos_share,
    length_parity,
    mean,
    prompt_key,
    repetition_score,
)
from harness.metrics.quality import LOOPING, Worse, accuracy, looping_share, worse
from harness.metrics.rows import succeeded


@dataclass(frozen=True, slots=True)
class Both:
    """One number of the arm and of plain."""

    arm: Maybe
    plain: Maybe


@dataclass(frozen=True, slots=True)
class Gates:
    """What was found. `accuracy` is by task, with how many of the arm's answers were checked."""

    identity: Identity | Missing
    lengths: LengthParity | Missing
    stops: Both
    repetition: Both
    looping: Both
    accuracy: Mapping[str, tuple[Both, int]]
    loops_worse: Worse | Missing
    answers_worse: Mapping[str, Worse | Missing]

    @property
    def marks(self) -> tuple[str, ...]:
        """What must stand beside the speedup: `loops`, `answers wrong`, `not the target's text`. Lengths are told elsewhere."""
        found = []
        if isinstance(self.identity, Identity) and self.identity.verdict == "suspect":
            found.append("not the target's text")
        if isinstance(self.loops_worse, Worse) and self.loops_worse.marked:
            found.append("loops")
        if any(isinstance(w, Worse) and w.marked for w in self.answers_worse.values()):
            found.append("answers wrong")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Texts:
    """What the gates read: measured rows of the arm, of plain and of a second plain arm, at one concurrency; replay and grade
    rows of the run; whether decoding is greedy, and the target's dtype."""

    arm: Rows
    plain: Rows
    twin: Rows
    replays: Rows
    grades: Rows
    greedy: bool
    dtype: str


def gates(texts: Texts) -> Gates:
    """Judge an arm by its rows. Nothing here looks at speed."""
    arm, plain = succeeded(texts.arm), succeeded(texts.plain)
    graded = {str(g["request_id"]): g for g in texts.grades}
    tasks = {str(g["task"]): None for g in texts.grades}
    checked = {task: (_graded(arm, graded, task), _graded(plain, graded, task)) for task in tasks}
    checked = {task: pair for task, pair in checked.items() if pair[0] or pair[1]}
    return Gates(
        identity=compare_texts(arm, plain, texts.twin, texts.replays, texts.greedy, texts.dtype),
        lengths=length_parity(plain, arm),
        stops=Both(eos_share(arm), eos_share(plain)),
        repetition=Both(_repetition(arm), _repetition(plain)),
        looping=Both(looping_share(arm), looping_share(plain)),
        accuracy={task: (Both(accuracy(_grades(a)), accuracy(_grades(p))), len(a)) for task, (a, p) in checked.items()},
        loops_worse=worse(_by_prompt(arm, _loops), _by_prompt(plain, _loops)),
        answers_worse={
            task: worse(*(_by_prompt([row for row, _ in side], _wrong(side)) for side in pair))
            for task, pair in checked.items()
        },
    )


Checked = list[tuple[Row, Row]]  # request row, grade row


def _graded(rows: Rows, graded: Mapping[str, Row], task: str) -> Checked:
    found = [(row, graded[str(row["request_id"])]) for row in rows if str(row["request_id"]) in graded]
    return [(row, grade) for row, grade in found if grade["task"] == task]


def _grades(side: Checked) -> list[Row]:
    return [grade for _, grade in side]


def _wrong(side: Checked) -> Callable[[Row], bool]:
    wrong = {str(row["request_id"]): not grade["correct"] for row, grade in side}
    return lambda row: wrong[str(row["request_id"])]


def _loops(row: Row) -> bool:
    score = repetition_score(row)
    return not isinstance(score, Missing) and score > LOOPING


def _by_prompt(rows: Rows, fails: Callable[[Row], bool]) -> dict[tuple[str, str], list[bool]]:
    found: dict[tuple[str, str], list[bool]] = {}
    for row in rows:
        found.setdefault(prompt_key(row), []).append(fails(row))
    return found


def _repetition(rows: Rows) -> Maybe:
    return mean([repetition_score(row) for row in rows])
