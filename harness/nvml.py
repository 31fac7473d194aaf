"""NVML, where there is one: every reading is a value or null, never an exception. MIG instances leave many of them null."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.engines.base import Scalar

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons. Bit 0 (idle) is no throttling and is left out.
THROTTLE = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that this process may use. `index` is NVML's."""

    index: int
    nvml: Any
    handle: Any

    def read(self, query: Callable[..., Any], *args: Any) -> Any:
        """What `query(handle, *args)` gives, or null when this device does not tell."""
        try:
            return query(self.handle, *args)
        except self.nvml.NVMLError:
            return None

    def used_bytes(self) -> int | None:
        memory = self.read(self.nvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else int(memory.used)

    def processes(self) -> dict[int, int | None]:
        """Compute processes: bytes by pid. Inside a container the pids may be those of the host."""
        running = self.read(self.nvml.nvmlDeviceGetComputeRunningProcesses) or []
        return {int(p.pid): None if p.usedGpuMemory is None else int(p.usedGpuMemory) for p in running}

    def utilization(self) -> float | None:
        rates = self.read(self.nvml.nvmlDeviceGetUtilizationRates)
        return None if rates is None else rates.gpu / 100

    def power_w(self) -> float | None:
        milliwatts = self.read(self.nvml.nvmlDeviceGetPowerUsage)
        return None if milliwatts is None else milliwatts / 1000

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded."""
        millijoules = self.read(self.nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1000

    def clock_mhz(self) -> float | None:
        mhz = self.read(self.nvml.nvmlDeviceGetClockInfo, self.nvml.NVML_CLOCK_SM)
        return None if mhz is None else float(mhz)

    def temperature_c(self) -> float | None:
        celsius = self.read(self.nvml.nvmlDeviceGetTemperature, self.nvml.NVML_TEMPERATURE_GPU)
        return None if celsius is None else float(celsius)

    def throttle(self) -> list[str] | None:
        bits = self.read(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return None if bits is None else [name for bit, name in THROTTLE.items() if bits & bit]

    def facts(self) -> dict[str, Scalar]:
        """Identity and settings, by `gpu<index>_<name>`; what cannot be read is absent."""
        nvml, prefix = self.nvml, f"gpu{self.index}_"
        memory = self.read(nvml.nvmlDeviceGetMemoryInfo)
        limit = self.read(nvml.nvmlDeviceGetEnforcedPowerLimit)
        mig = self.read(nvml.nvmlDeviceGetMigMode)
        throttle = self.throttle()
        found: dict[str, Scalar] = {
            "name": _text(self.read(nvml.nvmlDeviceGetName)),
            "uuid": _text(self.read(nvml.nvmlDeviceGetUUID)),
            "memory_bytes": None if memory is None else int(memory.total),
            "power_limit_w": None if limit is None else limit / 1000,
            "max_clock_mhz": self.read(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            "clock_mhz": self.clock_mhz(),
            "temperature_c": self.temperature_c(),
            "persistence": self.read(nvml.nvmlDeviceGetPersistenceMode),
            "mig": None if mig is None else bool(mig[0]),
            "mig_profiles": self._mig_profiles() if mig is not None and mig[0] else None,
            "throttle": None if throttle is None else ",".join(throttle),
            "compute_processes": len(self.processes()),
        }
        return {prefix + name: value for name, value in found.items() if value is not None}

    def _mig_profiles(self) -> str:
        """Names of the instances, which hold their profile (`... MIG 3g.71gb`), comma separated."""
        count = self.read(self.nvml.nvmlDeviceGetMaxMigDeviceCount) or 0
        handles = [self.read(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex, i) for i in range(count)]
        names = [Gpu(self.index, self.nvml, h).read(self.nvml.nvmlDeviceGetName) for h in handles if h is not None]
        return ",".join(filter(None, map(_text, names)))


def find_gpus(nvml: Any) -> list[Gpu]:
    """GPUs of this machine that CUDA_VISIBLE_DEVICES leaves visible. Empty without a driver."""
    try:
        nvml.nvmlInit()
        gpus = [Gpu(i, nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    wanted = [name.strip() for name in visible.split(",")]
    return [gpu for gpu in gpus if str(gpu.index) in wanted or _text(gpu.read(nvml.nvmlDeviceGetUUID)) in wanted]


def driver_version(nvml: Any) -> str | None:
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str | None:
    """Old bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
