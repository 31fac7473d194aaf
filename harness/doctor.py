"""`samerig doctor RIG`: is this machine ready for the rig? Every check says what was found, and for a fault what to do.

Launches nothing and downloads nothing. `fault` stops a run, `warning` is worth a look, `unknown` could not be told here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import pynvml
from rich.console import Console
from rich.markup import escape

from harness.config import Run
from harness.doctor_checkpoints import checkpoint_checks
from harness.engines.base import ArmPlan, Memory
from harness.nvml import Gpu, driver_version, find_gpus
from harness.plan import Plan, readable, room_line

State = Literal["ok", "warning", "fault", "unknown"]
COLOURS: dict[State, str] = {"ok": "green", "warning": "yellow", "fault": "red", "unknown": "magenta"}

# The machine is told from the driver itself, checkpoints by `checkpoint_checks`.
_TOLD_ELSEWHERE = re.compile(r"machine\.kind|arms\.\w+\.checkpoint\.location")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `fix` says what to do about it; empty when it is well."""

    name: str
    state: State
    found: str
    fix: str = ""


def checks(plan: Plan, nvml: Any = pynvml) -> list[Check]:
    """Every check of the rig of this plan, in the order in which one would mend them."""
    run, gpus = plan.composed.run, find_gpus(nvml)
    return [
        *_machine(run, gpus),
        *_others(run, gpus),
        *_engine(plan),
        *(Check(*told) for told in checkpoint_checks(run)),
        *_memory(run, plan.arms, gpus),
        _port(run),
    ]


def print_checks(found: Sequence[Check], console: Console) -> int:
    """The checks as text; the exit code is 1 when one is a fault."""
    width = max(len(check.name) for check in found)
    for check in found:
        mark = f"[{COLOURS[check.state]}]{check.state:<7}[/]"
        console.print(f"{mark}  {check.name:<{width}}  {escape(check.found)}", soft_wrap=True)
        if check.fix:
            console.print(f"{'':<9}{'':<{width}}  to do: {escape(check.fix)}", soft_wrap=True)
    faults = sum(check.state == "fault" for check in found)
    console.print(f"\n{faults} fault{'s' if faults != 1 else ''}" if faults else "\nready")
    return 1 if faults else 0


def _machine(run: Run, gpus: Sequence[Gpu]) -> Iterator[Check]:
    asked = run.machine
    if asked.kind == "cpu":
        memory = psutil.virtual_memory()
        cores = f"{psutil.cpu_count(logical=False)} physical cores, {readable(memory.available)} of memory available"
        yield Check("machine", "ok", cores)
        return
    if not gpus:
        fix = "install the driver, look at CUDA_VISIBLE_DEVICES, or go to a machine that has one"
        yield Check("machine", "fault", "no NVIDIA GPU is visible", fix)
        return
    names = [str(gpu.facts().get(f"gpu{gpu.index}_name")) for gpu in gpus]
    fitting = [name for name in names if asked.gpu is None or asked.gpu.lower() in name.lower()]
    told = f"{', '.join(names)}; the rig asks for {max(1, asked.gpu_count)} x {asked.gpu or 'any GPU'}"
    if len(fitting) < max(1, asked.gpu_count):
        yield Check("machine", "fault", told, "run on such a machine, or state yours in machine.gpu and machine.gpu_count")
    else:
        yield Check("machine", "ok", told)
    driver = driver_version(gpus[0].nvml)
    yield Check("driver", "ok" if driver else "unknown", driver or "NVML does not tell its version")
    if any(gpu.facts().get(f"gpu{gpu.index}_mig") for gpu in gpus):
        yield Check(
            "MIG", "warning", "GPU instances are on: power, clock and energy stay unread", "measure on a whole GPU if you can"
        )


def _others(run: Run, gpus: Sequence[Gpu]) -> Iterator[Check]:
    """Compute processes of others. They take time and memory from some servings and not from others."""
    if run.machine.kind == "cpu" or not gpus:
        return
    running = [(pid, used) for gpu in gpus for pid, used in gpu.processes().items()]
    if not running:
        yield Check("other processes", "ok", "no compute process is on the GPU")
        return
    told = ", ".join(
        f"{_process_name(pid)} (pid {pid}, {readable(used) if used else 'memory not told'})" for pid, used in running
    )
    yield Check("other processes", "fault", told, "end them, or wait: an engine left over from an earlier run counts too")


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process outside this container"


def _engine(plan: Plan) -> Iterator[Check]:
    """What the adapter, the configuration and the workload miss; interpreter, version and methods among it."""
    engine = plan.composed.run.engine
    told = f"{engine.adapter.rpartition('.')[2]}, version {engine.version or 'not asked for'}"
    told += f", interpreter {engine.interpreter}" if engine.interpreter else ""
    lines = [line for line in plan.missing if not _TOLD_ELSEWHERE.match(line)]
    if not lines:
        yield Check("engine", "ok", told)
    for line in lines:
        what, _, fix = line.rpartition("; ")
        yield Check(_part(line), "fault", what or line, fix if what else "")


def _part(line: str) -> str:
    """What a missing thing belongs to, by how its line begins."""
    return next(
        (part for part in ("engine", "target") if line.startswith(part)), "engine" if line.startswith("arm ") else "rig"
    )


def _memory(run: Run, arms: dict[str, ArmPlan], gpus: Sequence[Gpu]) -> Iterator[Check]:
    """The estimate of every arm against what is free now, and the KV tokens for which the machine has room."""
    free = _free_bytes(run, gpus)
    for name, arm in arms.items():
        needed, unknown = _needed(arm.memory)
        if free is None or needed is None:
            what = "free memory cannot be read" if free is None else f"unknown: {', '.join(unknown)}"
            yield Check(
                f"memory, {name}", "unknown", what, "state the checkpoint's size in the rig" if free is not None else ""
            )
            continue
        told = f"{readable(needed)} estimated, {readable(free)} free; {_plain(room_line(arm.memory))}".rstrip("; ")
        if needed > free:
            yield Check(f"memory, {name}", "fault", told, "lower engine.kv_tokens or max_running_requests, or free memory")
        else:
            yield Check(f"memory, {name}", "ok", told)


def _plain(markup: str) -> str:
    return markup.replace("[red]", "").replace("[/]", "")


def _needed(memory: Memory) -> tuple[int | None, list[str]]:
    """Bytes of one arm, or null with the names of what is unknown."""
    parts = {
        "target weights": memory.weights_bytes,
        "drafter weights": memory.drafter_weights_bytes,
        "KV cache": memory.kv_bytes,
        "draft state": memory.draft_state_bytes or 0,
        "recurrent state": memory.recurrent_state_bytes or 0,
    }
    unknown = [name for name, size in parts.items() if size is None]
    return (None if unknown else sum(size for size in parts.values() if size is not None)), unknown


def _free_bytes(run: Run, gpus: Sequence[Gpu]) -> int | None:
    """Free memory of the GPUs that the rig asks for, less what it reserves, at least nothing; of the host for a CPU."""
    if run.machine.kind == "cpu":
        return int(psutil.virtual_memory().available)
    count, total = max(1, run.machine.gpu_count), 0
    for gpu in gpus[:count]:
        memory = gpu.read(gpu.nvml.nvmlDeviceGetMemoryInfo)
        if memory is None:
            return None
        total += max(0, int(memory.total) - int(memory.used) - (run.machine.reserved_bytes or 0))
    return total if gpus else None


def _port(run: Run) -> Check:
    """A server needs a free local port; an attached one is the rig's own business."""
    if run.engine.url:
        return Check("port", "ok", f"attached to {run.engine.url}; bench looks whether it answers")
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return Check("port", "fault", f"no local port can be opened: {error}", "allow loopback sockets for this process")
    return Check("port", "ok", "a local port can be opened")
