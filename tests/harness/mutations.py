"""Secret changes of one factor for one arm, on the scripted engine: what a rig must never do without being caught.

Each takes effect inside the serving of that arm, behind the back of the harness: nothing that was asked for differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scripted_bench import FixedPrompts

from harness import serving
from harness.asked import Asked
from harness.engines.scripted import ScriptedEngine
from harness.monitor import Monitor

Change = Callable[[ScriptedEngine], None]


def graphs_off(engine: ScriptedEngine) -> None:
    engine._pinned["cuda_graphs"] = "off"


def cap_of_one(engine: ScriptedEngine) -> None:
    engine._cap, engine._slots = 1, asyncio.Semaphore(1)


def other_kv_dtype(engine: ScriptedEngine) -> None:
    engine._pinned["kv_dtype"] = "fp8"


def shorter_outputs(engine: ScriptedEngine) -> None:
    """The engine ends answers half-way through."""
    honest = engine._answer

    def cut(request: Any) -> Any:
        beats, tokens = honest(request)
        return beats[: max(2, len(beats) // 2)], tokens

    engine._answer = cut


def warm_prefix_cache(engine: ScriptedEngine) -> None:
    """Half of every prompt comes from the cache."""
    honest = engine.counters

    async def warmed() -> Any:
        told = await honest()
        return told and replace(told, cached_tokens=(told.prefill_tokens or 0) // 2)

    engine.counters = warmed


def synthetic_acceptance(engine: ScriptedEngine) -> None:
    engine._pinned["synthetic_acceptance"] = "2.5"


def other_template(engine: ScriptedEngine) -> None:
    """Done where prompts are rendered, not in the engine."""


def slower_clock(engine: ScriptedEngine) -> None:
    _NOW["mhz"] = 1769.0


CHANGES = (
    graphs_off,
    cap_of_one,
    other_kv_dtype,
    shorter_outputs,
    warm_prefix_cache,
    synthetic_acceptance,
    other_template,
    slower_clock,
)
_NOW = {"mhz": 1950.0}


def secretly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every arm that is named after a change suffers it; a device of 1950 MHz is sampled beside the host."""
    build, host_row, honest = ScriptedEngine.__init__, Monitor._host_row, serving.serve
    by_name = {change.__name__: change for change in CHANGES}

    def built(self: ScriptedEngine, run: Any, asked: Any, log_path: Any) -> None:
        build(self, run, asked, log_path)
        _NOW["mhz"] = 1950.0
        by_name.get(asked.label, lambda engine: None)(self)

    def sampled(self: Monitor) -> dict[str, Any]:
        return {**host_row(self), "device": "gpu0", "clock_mhz": _NOW["mhz"], "utilization": 0.9}

    async def served(session: Any, planned: Any, todo: Any) -> None:
        is_other = planned.arm_name == other_template.__name__
        await honest(replace(session, prompts=OtherTemplate(session.run)) if is_other else session, planned, todo)

    monkeypatch.setattr(ScriptedEngine, "__init__", built)
    monkeypatch.setattr(Monitor, "_host_row", sampled)
    monkeypatch.setattr("harness.run.serve", served)


class OtherTemplate(FixedPrompts):
    """The same prompts with another system prompt in front."""

    def _asked(self, name: str, index: int) -> Asked:
        asked = super()._asked(name, index)
        return replace(asked, prompt_ids=(1, *asked.prompt_ids), prompt_hash=f"other {asked.prompt_hash}")
