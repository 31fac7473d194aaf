"""What a serving of the reference engine would be, as pure functions of the rig and the arm: command, pins, memory, gaps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.baselines import FIELDS
from harness.config import Arm, Run
from harness.engines.base import ArmError, Memory, Scalar
from harness.engines.method_support import machine_gap
from harness.estimate_memory import kv_bytes_per_token, served_bytes
from harness.held import slot_tokens

_BYTES = {"float32": 4, "bfloat16": 2}
_OUTLINE = "estimate: as the serving holds it, from headers and config"


def command(run: Run, folder: str) -> list[str]:
    """The base command, after the interpreter: it never sees the arm, so nothing in it can differ between arms."""
    engine, target = run.engine, run.target
    argv = ["-m", "drafters.worker", "--target", folder, "--implementation", target.implementation]
    argv += ["--dtype", target.dtype, "--device", run.machine.kind, "--slots", str(engine.max_running_requests)]
    argv += ["--max-length", str(slot_tokens(run)), "--prefill-chunk", str(engine.prefill_chunk)]
    argv += ["--verify-rule", engine.verify_rule]
    if run.machine.threads:
        argv += ["--threads", str(run.machine.threads)]
    if engine.graphs == "decode":
        argv += ["--graph-batch-sizes", ",".join(str(size) for size in engine.graph_batch_sizes)]
    return argv


def speculation(arm: Arm) -> list[str]:
    """What the arm adds to the base command; nothing for plain."""
    if arm.drafter is None:
        return []
    argv = ["--drafter", arm.drafter, "--draft-budget", str(arm.draft_budget)]
    if arm.checkpoint:
        argv += ["--checkpoint", arm.checkpoint.location]
    if arm.options:
        argv += ["--options", json.dumps(arm.options, sort_keys=True)]
    return argv


def pinned(run: Run) -> dict[str, Scalar]:
    """The factors that the rig holds, by canonical name; read back from the worker as `resolved`."""
    return {
        "dtype": run.target.dtype,
        "kv_dtype": run.target.dtype,
        "kv_tokens": run.engine.max_running_requests * slot_tokens(run),
        "context_limit": slot_tokens(run),
        "max_running_requests": run.engine.max_running_requests,
        "prefill_chunk": run.engine.prefill_chunk,
        "prefix_cache": False,
        "verify_rule": run.engine.verify_rule,
        "cuda_graphs": run.engine.graphs,
        "threads": run.machine.threads or "one per physical core",
    }


def missing(run: Run, target: str | None, can_capture: bool) -> tuple[str, ...]:
    """What this machine or this engine lacks for the rig, a line each. `target` says what the target itself lacks."""
    gaps = [*([target] if target else []), *machine_gap(run)]
    if run.engine.graphs != "off" and not can_capture:
        gaps.append(f"engine.graphs: {run.target.implementation} cannot capture CUDA graphs; set engine.graphs=off")
    if run.engine.graphs != "off" and not run.engine.graph_batch_sizes:
        gaps.append("engine.graph_batch_sizes: empty, so engine.graphs would capture nothing; list the batch sizes")
    if run.engine.kv_dtype not in ("auto", run.target.dtype):
        gaps.append(f"engine.kv_dtype: the reference engine keeps KV in {run.target.dtype}; set engine.kv_dtype=auto")
    if run.engine.prefix_cache:
        gaps.append("engine.prefix_cache: the reference engine has none; set engine.prefix_cache=false")
    return tuple(gaps)


def without_drafter(arm: Arm) -> tuple[str, ...]:
    """A method that only served engines have would run as plain decoding here, so it is refused."""
    if arm.method == "plain" or arm.drafter is not None:
        return ()
    return (f"arm {arm.label}: the reference engine has no drafter for '{arm.method}'; use engine=vllm, sglang or llama_cpp",)


def takes_no_flags(arm: Arm) -> None:
    """Raises ArmError: no flag reaches this engine, and it moves nothing because of a drafter, so plain is at its best."""
    for name, value in (arm.engine_flags or {}).items():
        if name not in FIELDS and value is not None and value is not False:
            raise ArmError(
                f"engine_flags.{name}: the reference engine takes no flags, and moves nothing because of a drafter that plain "
                f"would pay for; leave the arm out, or give {' or '.join(FIELDS)}"
            )


def no_drafter(arm: Arm) -> dict[str, int]:
    """`Drafter.memory` of an arm without a drafter; empty, which is unknown, for one whose drafter is not here."""
    return {"weights": 0, "state": 0} if arm.drafter is None else {}


def estimate(run: Run, folder: Path | None, target: Mapping[str, int] | None, drafter: Mapping[str, int]) -> Memory:
    """Bytes before launch, from headers and config alone, in the dtype of the serving; null where the checkpoint is not here.

    `target` and `drafter` are what `Target.memory` and `Drafter.memory` of the serving will tell. A target that has to be
    loaded to know is null: then its files' tensors count in the serving's dtype, and KV by its config.
    """
    sources = {"drafter_weights_bytes": _OUTLINE, "draft_state_bytes": _OUTLINE}
    known = {"drafter_weights_bytes": drafter.get("weights"), "draft_state_bytes": drafter.get("state")}
    if folder is None:
        return Memory(**known, source={"weights_bytes": "unknown: the target's checkpoint is not on this machine", **sources})
    tokens = run.engine.max_running_requests * slot_tokens(run)
    if target is None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text, size = config.get("text_config", config), _BYTES[run.target.dtype]
        target = {"weights": served_bytes(folder, size) or 0, "kv": tokens * kv_bytes_per_token(text) * size // 2}
        sources |= {"weights_bytes": "estimate: tensors of the files", "kv_bytes": "estimate: config times slots"}
    return Memory(
        weights_bytes=target["weights"],
        kv_bytes=target["kv"],
        kv_tokens=tokens,
        **known,
        source={"weights_bytes": _OUTLINE, "kv_bytes": _OUTLINE, **sources},
    )
