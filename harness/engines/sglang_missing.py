"""What a machine, an SGLang version or a rig lacks for an arm, told before anything is launched: what, where, what to do."""

from __future__ import annotations

from pathlib import Path

from harness.config import Arm, Run
from harness.engines.method_support import (
    assumed_version,
    family,
    installed_version,
    machine_gap,
    method_gap,
    option_gaps,
    version_gap,
)
from harness.engines.sglang_command import OPTIONS, SINCE, TOLD_BY_CHECKPOINT

CUDA_ONLY = ("dflash", "dflash2", "dspark")


def missing(run: Run, arm: Arm) -> list[str]:
    """All gaps of one arm; the same line for every arm where the gap is the rig's."""
    interpreter = run.engine.interpreter
    installed = installed_version(interpreter, ("sglang",)) if interpreter and Path(interpreter).exists() else None
    gaps = [
        _interpreter(interpreter, installed) if run.engine.url is None else None,
        version_gap("SGLang", run.engine.version, installed),
        method_gap("SGLang", SINCE, family(arm), arm.label, assumed_version(run.engine.version, installed)),
        *machine_gap(run),
        _device(run, arm),
        *_options(arm),
        _graphs(run),
        _admission(run),
    ]
    return [gap for gap in gaps if gap]


def _interpreter(interpreter: str | None, installed: str | None) -> str | None:
    if interpreter is None:
        return "engine.interpreter: not set; give the path of a Python whose environment has SGLang"
    if not Path(interpreter).exists():
        return f"engine.interpreter: '{interpreter}' does not exist; give the path of a Python whose environment has SGLang"
    if installed is None:
        return f"engine.interpreter: '{interpreter}' has no SGLang; install it there, or give another path"
    return None


def _device(run: Run, arm: Arm) -> str | None:
    if run.machine.kind == "cpu" and arm.method in CUDA_ONLY:
        return f"arm {arm.label}: SGLang serves {arm.method} on a GPU only; set machine.kind=cuda, or leave the arm out"
    return None


def _options(arm: Arm) -> list[str]:
    return option_gaps("SGLang", arm, {*OPTIONS, "sample"}, TOLD_BY_CHECKPOINT)


def _graphs(run: Run) -> str | None:
    """Graph sizes are in requests, at whatever width the arm verifies."""
    engine = run.engine
    if engine.graphs == "off":
        return None
    if not engine.graph_batch_sizes:
        return "engine.graph_batch_sizes: empty, so engine.graphs would capture nothing; list the batch sizes"
    if max(engine.graph_batch_sizes) < max(run.concurrency):
        return (
            f"engine.graph_batch_sizes: the largest is {max(engine.graph_batch_sizes)}, below concurrency "
            f"{max(run.concurrency)}; add it, or that level runs without graphs"
        )
    return None


def _admission(run: Run) -> str | None:
    """Unset, block drafters wait for free slots and plain does not."""
    if run.engine.flags.get("min-free-slots-delay") is None:
        return "engine.flags.min-free-slots-delay: not set, so block drafters would delay admission alone; set it to 1"
    return None
