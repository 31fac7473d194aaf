"""The engine of a published rig whose source does not name one. It plans, and says what is missing; nothing can be launched."""

from __future__ import annotations

from pathlib import Path

from harness.config import Arm, Run
from harness.engines.base import ArmPlan, EngineError, Memory

MISSING = "engine: the source does not state it; choose one, for instance engine=reference"


class UnstatedEngine:
    """Only what a plan needs of `harness.engines.base.Engine`."""

    @classmethod
    def plan(cls, run: Run, arm: Arm) -> ArmPlan:
        return ArmPlan(base=("not stated",), speculation=(), pinned={}, missing=(MISSING,), memory=Memory())

    @classmethod
    def tokenizer_folder(cls, run: Run) -> Path:
        raise EngineError(MISSING)

    def __init__(self, run: Run, arm: Arm, log_path: Path) -> None:
        raise EngineError(MISSING)
