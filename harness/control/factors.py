"""The canonical factors: names, where each engine tells them, and what a difference between two arms means.

The data is `factors.yaml` beside this file; its header explains every field. Engines' adapters report under these names, the
ledger in this package compares by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from harness.config import Model

FILE = Path(__file__).with_name("factors.yaml")
ENGINES = ("reference", "vllm", "sglang", "llama_cpp", "openai")
ABSENT = "absent"
EVERY = "every"
RUN_TABLES = ("adapter", "servings", "cells", "requests", "steps", "samples")
# A key that is not in the table, as a flag or a raw dump may bring, belongs to the drafter if a dotted part starts so.
DRAFT_WORDS = ("draft", "method", "speculat", "spec_", "spec-")

Class = Literal["treatment", "implied", "confounder", "unknown"]
Part = Literal["build", "target", "memory", "schedule", "kernels", "draft", "prompts", "load", "machine"]


class Factor(Model):
    """One entry of the table, by the header of `factors.yaml`. `kind` is its class when it differs between arms."""

    kind: Class = Field(alias="class")
    part: Part
    what: str
    why: str
    remedy: str
    only: tuple[str | float | bool, ...] | None = None
    optional: bool = False
    of_weights: bool = False
    read: dict[str, str | None]

    def source(self, engine: str) -> str | None:
        """Where this engine tells it, `absent` where it has no such thing, null where it does not tell."""
        return self.read[EVERY] if EVERY in self.read else self.read.get(engine, ABSENT)

    def is_told_by(self, engine: str) -> bool:
        """Whether a serving of this engine carries the factor in `resolved`, and not in a column of the run's tables."""
        source = self.source(engine)
        return source not in (ABSENT, None) and str(source).partition(" ")[0] not in RUN_TABLES


@cache
def table() -> Mapping[str, Factor]:
    """Every factor by its canonical name, in the order of the file. Raises ValueError that names a broken entry."""
    found = {}
    for name, entry in yaml.safe_load(FILE.read_text("utf-8")).items():
        try:
            found[name] = Factor.model_validate(entry)
        except ValueError as error:
            raise ValueError(f"{FILE.name}: {name}: {error}") from None
        if set(found[name].read) not in ({EVERY}, set(ENGINES)):
            raise ValueError(f"{FILE.name}: {name}: read needs `every`, or all of {', '.join(ENGINES)}")
    return found


def class_of(name: str) -> Class:
    """What a difference in a factor means; one outside the table is the drafter's if its name says so, else confounds."""
    if name in table():
        return table()[name].kind
    return "treatment" if is_draft(name) else "confounder"


def is_draft(name: str) -> bool:
    """Whether a factor exists only in arms that draft, so that beside plain it is part of the treatment."""
    if name in table():
        return table()[name].part == "draft"
    return any(part.startswith(DRAFT_WORDS) for part in name.split("."))


def is_of_weights(name: str) -> bool:
    """Whether a factor is of the drafter's weights, which prompt lookup does not have."""
    return name in table() and table()[name].of_weights


def remedy(name: str) -> str:
    """What to do about a difference."""
    return table()[name].remedy if name in table() else "make it equal in the rig"
