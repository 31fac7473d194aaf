"""An NVML that needs no GPU: the calls that the instrument makes, with values that a test can set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeNvml:
    """H200-like devices; a handle is its index. With `mig`, what an instance cannot tell raises as the real one does."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, driver: bool = True, count: int = 1, mig: bool = False, processes: dict[int, int] | None = None) -> None:
        self.driver = driver
        self.count = count
        self.mig = mig
        self.processes = {1001: 80_000, 999: 14_000} if processes is None else processes
        self.throttle = 0x1
        self.energy_mj = 0

    def _unless_mig(self, value: Any) -> Any:
        if self.mig:
            raise self.NVMLError("not supported")
        return value

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if not self.driver:
            raise self.NVMLError("driver not loaded")

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlSystemGetDriverVersion": lambda: b"580.0",
            "nvmlDeviceGetName": lambda handle: "NVIDIA H200 MIG 3g.71gb" if handle == "mig" else b"NVIDIA H200",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=141_000, used=96_000),
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: self._unless_mig(700_000),
            "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 1980,
            "nvmlDeviceGetClockInfo": lambda handle, clock: self._unless_mig(1965),
            "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
            "nvmlDeviceGetPersistenceMode": lambda handle: 1,
            "nvmlDeviceGetMigMode": lambda handle: (int(self.mig), int(self.mig)),
            "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda handle, index: "mig",
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: self.throttle,
            "nvmlDeviceGetUtilizationRates": lambda handle: self._unless_mig(SimpleNamespace(gpu=87)),
            "nvmlDeviceGetPowerUsage": lambda handle: self._unless_mig(512_000),
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self._unless_mig(self.energy_mj),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()
            ],
        }
        return answers[name]
