"""What machine this is: facts read once per launch. A value that cannot be read is absent, never a guess. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import pynvml

from harness.engines.base import Scalar
from harness.nvml import Gpu, driver_version, find_gpus

PACKAGES = ("samerig", "torch", "transformers", "vllm", "sglang", "numpy", "pyarrow")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
WORK = ("user", "nice", "system", "irq", "softirq")  # waiting for a disk is idle, stolen time is nobody's work here


def gpus(nvml: Any = pynvml) -> list[Gpu]:
    """The NVIDIA GPUs that may be used here; empty on a machine without one."""
    return find_gpus(nvml)


def facts(devices: Sequence[Gpu] = ()) -> dict[str, Scalar]:
    """Host and GPU facts by name, in SI units as the name says."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    found: dict[str, Scalar] = {
        "cpu_model": _cpu_model(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else None,
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "swap_used_bytes": swap.used,
        "governor": _first_line(GOVERNOR),
        "load_1m": os.getloadavg()[0],
        **foreign_load(),
        "kernel": platform.release(),
        "os": platform.system(),
        "boot_time_s": int(psutil.boot_time()),
    }
    for gpu in devices:
        found |= gpu.facts()
    return {name: value for name, value in found.items() if value is not None}


def versions(devices: Sequence[Gpu] = ()) -> dict[str, str]:
    """Versions of Python, of the packages that matter where they are installed, and of the GPU driver."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if devices and (driver := driver_version(devices[0].nvml)):
        found["nvidia_driver"] = driver
    return found


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What the machine's CPUs, and of that this process and the given ones, had done by a moment (CPU seconds, seconds)."""

    machine: Any
    own_s: float
    at_s: float

    @classmethod
    def now(cls, pids: Iterable[int] = ()) -> CpuUse:
        return cls(psutil.cpu_times(), time.process_time() + _trees_s(pids), time.monotonic())

    def until(self, later: CpuUse) -> dict[str, float | None]:
        """`load_busy_cores`: cores at work for others. `load_stolen_cores`: cores that a hypervisor withheld."""
        return cores(self.machine, later.machine, later.own_s - self.own_s, later.at_s - self.at_s)


def foreign_load(seconds: float = 0.2) -> dict[str, float | None]:
    """The facts of `CpuUse.until` over a short while in which this thread sleeps.

    psutil's own percentages would not do: they take less than one CPU second in all for a whole one, so that two idle cores
    looked 60 % busy over a fifth of a second.
    """
    before = CpuUse.now()
    time.sleep(seconds)
    return before.until(CpuUse.now())


def _trees_s(pids: Iterable[int]) -> float:
    """CPU seconds of processes and their living children; nothing of one that is gone.

    Each counts once: a server's pids hold its engine's children too, and a child that was counted under its parent again would
    hide as much work of others.
    """
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found |= {p.pid: p for p in (process, *process.children(recursive=True))}
    return sum(map(_seconds, found.values()))


def _seconds(process: psutil.Process) -> float:
    try:
        spent = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(spent.user + spent.system)


def cores(before: Any, after: Any, own_s: float, seconds: float) -> dict[str, float | None]:
    """The two facts of `CpuUse.until` from two readings of the machine's CPU seconds; null where a system does not tell.

    The machine counts in ticks (1/100 s on Linux), so a short period may come out a few hundredths wrong, and never below 0.
    """
    spent = {name: getattr(after, name) - getattr(before, name) for name in (*WORK, "steal") if hasattr(after, name)}
    busy = sum(spent[name] for name in WORK if name in spent) - own_s
    stolen = max(0.0, spent["steal"]) / seconds if "steal" in spent else None
    return {
        "load_busy_cores": round(max(0.0, busy) / seconds, 2),
        "load_stolen_cores": None if stolen is None else round(stolen, 2),
    }


def _cpu_model() -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _first_line(path: Path) -> str | None:
    return path.read_text("utf-8").strip() if path.exists() else None
