"""What a machine, an SGLang version or a rig lacks for an arm, told before anything is launched: what, where, what to do."""

from __future__ import annotations

from harness.config import Arm, Run
from harness.engines.drafter_files import drafter_gaps
from harness.engines.method_support import environment_gaps, option_gaps
from harness.engines.server_dialect import target_gap
from harness.engines.sglang_command import OPTIONS, SINCE, TOLD_BY_CHECKPOINT

CUDA_ONLY = ("dflash", "dflash2", "dspark")


def missing(run: Run, arm: Arm) -> list[str]:
    """All gaps of one arm; the same line for every arm where the gap is the rig's."""
    gaps = [
        target_gap(run),
        *environment_gaps("SGLang", run, arm, SINCE, ("sglang",)),
        _device(run, arm),
        *_options(arm),
        *drafter_gaps(run, arm),
        _graphs(run),
        _admission(run, arm),
    ]
    return [gap for gap in gaps if gap]


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


def _admission(run: Run, arm: Arm) -> str | None:
    """Unset, block drafters wait for free slots and plain does not: plain at its best alone may leave it open."""
    if arm.engine_flags is None and run.engine.flags.get("min-free-slots-delay") is None:
        return "engine.flags.min-free-slots-delay: not set, so block drafters would delay admission alone; set it to 1"
    return None
