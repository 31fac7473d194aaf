"""Checking delivered answers once their serving is measured: the rows of the grades table.

An answer is text for which the prompt has a right one: a string is a number to match, a mapping a function with tests. Equal
texts are checked once, so an arm that repeats plain's greedy text costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from harness.gates.answers import number_given, program, same_number
from harness.gates.sandbox import Outcome, run_program
from harness.metrics import Missing, Row, outcome
from harness.metrics.quality import text_ids
from harness.workloads import Prompt, load_set


@runtime_checkable
class Decoder(Protocol):
    """Token ids to text, without the tokens that end an answer."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Grade:
    """`given` is the number or program that was checked, null when the answer has none; `outcome` says how it went."""

    task: str
    correct: bool
    given: str | None
    outcome: str
    isolation: tuple[str, ...] = ()


@dataclass(slots=True)
class Grader:
    """Checks answers of the pinned prompt sets. `run_code` false leaves functions unchecked. Keeps what it has checked."""

    decoder: Decoder
    run_code: bool
    _prompts: dict[str, dict[str, Prompt]] = field(default_factory=dict)
    _programs: dict[str, Outcome] = field(default_factory=dict)

    def grades(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Grade]]:
        """Measured requests that succeeded on a prompt with an answer, each with its grade."""
        for row in rows:
            if row["phase"] == "measured" and outcome(row) == "ok":
                name = str(row["prompt_set"]).partition("@")[0]
                prompt = self._prompt(name, str(row["prompt_id"]))
                if prompt is not None and prompt.answer is not None and (grade := self._grade(name, prompt, row)):
                    yield row, grade

    def _prompt(self, name: str, prompt_id: str) -> Prompt | None:
        if name not in self._prompts:
            self._prompts[name] = {prompt.id: prompt for prompt in load_set(name).prompts}
        return self._prompts[name].get(prompt_id)

    def _grade(self, name: str, prompt: Prompt, row: Row) -> Grade | None:
        ids = text_ids(row)
        if isinstance(ids, Missing):
            return None
        text = self.decoder.decode(ids)
        if isinstance(prompt.answer, Mapping):
            return self._tested(name, prompt, text) if self.run_code else None
        given = number_given(text, ended=row["finish"] == "stop")
        right = same_number(given, str(prompt.answer))
        return Grade(f"{name}: exact match", right, given, "right" if right else "no answer" if given is None else "wrong")

    def _tested(self, name: str, prompt: Prompt, text: str) -> Grade:
        source = program(prompt.messages[-1][1], text, prompt.answer)
        task = f"{name}: tests"
        if source is None:
            return Grade(task, False, None, "no code")
        if source not in self._programs:
            self._programs[source] = run_program(source)
        found = self._programs[source]
        return Grade(task, found.passed, source, found.outcome, found.isolation)


def grade_rows(keys: Mapping[str, Any], graded: Iterable[tuple[Row, Grade]]) -> Iterator[dict[str, Any]]:
    """Rows of the grades table. `keys` holds the serving's keys."""
    for row, grade in graded:
        place = {
            name: row[name] for name in ("cell_id", "prompt_set", "content_class", "concurrency", "request_id", "prompt_id")
        }
        told = {"correct": grade.correct, "given": grade.given, "outcome": grade.outcome, "isolation": list(grade.isolation)}
        yield {**keys, **place, "task": grade.task, **told}
