"""What an engine whose inside is ours can be asked after its cells were measured, and the types that cross that seam.

No serving needs it: where an engine is closed, or was cut short, the rows are absent and what rests on them is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class WidthTime:
    """One timed pass of the target alone, nothing committed. `width` rows for each of `requests`, ns in the target."""

    requests: int
    width: int
    context_tokens: int
    round: int
    verify_ns: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A finished request read again in one pass. Per delivered token: how far its logit lies below the best, and how far apart
    the two best are. The counts are of the drafts that its drafter would have made; null without one."""

    deficits: tuple[float, ...]
    gaps: tuple[float, ...]
    steps_with_draft: int | None
    steps_without_draft: int | None
    drafted: int | None
    accepted: int | None


@runtime_checkable
class OpenEngine(Protocol):
    """An engine that can be looked into after its cells were measured. No serving needs it; where it lacks, the rows do too."""

    async def widths(self, texts: Sequence[Sequence[int]], widths: Sequence[int], rounds: int) -> list[WidthTime]:
        """Time target passes of every width over these texts; the last `max(widths)` tokens of each are the rows."""
        ...

    async def replay(self, prompt_ids: Sequence[int], token_ids: Sequence[int], max_tokens: int, draft: bool) -> Replay: ...
