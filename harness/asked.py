"""A rendered prompt, and what a run needs of whoever renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.config import PromptSet


@dataclass(frozen=True, slots=True)
class Asked:
    """One rendered prompt. `prompt_id` is the pairing unit between arms."""

    prompt_id: str
    content_class: str
    prompt_ids: tuple[int, ...]
    prompt_hash: str


class Prompts(Protocol):
    """Where a run gets its prompts from; the same for every arm and block."""

    stop_ids: tuple[int, ...]

    def measured(self, prompt_set: PromptSet, concurrency: int) -> Sequence[Asked]:
        """The distinct prompts of one cell."""
        ...

    def warmup(self, prompt_set: PromptSet, count: int) -> Sequence[Asked]:
        """`count` prompts that no cell measures, long ones for a set with a depth; they repeat past the warm-up set's end."""
        ...
