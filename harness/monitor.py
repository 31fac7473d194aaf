"""The background sampler: memory, power, clocks and neighbours while a serving runs, for under 1 % of a core.

One thread per serving. Process objects are cached and the tree of the serving is walked anew only every tenth sample; all other
processes of the machine are looked at twice, before the launch and after the end, outside every timed window.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from harness.clock import now_ns
from harness.nvml import Gpu

TREE_EVERY = 10
BUSY_CORES = 0.1  # cores that another process may use, averaged over a serving, before it is told


class Monitor:
    """Samples one serving. Build it before the launch, `start` it with the serving's pids, `stop` it after the end."""

    def __init__(self, period_s: float, gpus: Sequence[Gpu] = ()) -> None:
        self.cost_s = 0.0
        self.peak_memory_bytes = 0
        self._period_s = period_s
        self._gpus = gpus
        self._neighbours = {pid for gpu in gpus for pid in gpu.processes()}
        self._foreign: set[str] = {f"gpu pid {pid}" for pid in self._neighbours}
        self._throttle: set[str] = set()
        self._energy_start = [gpu.energy_j() for gpu in gpus]
        self._cpu_start, self._started_ns = _cpu_seconds(), now_ns()
        self._rows: list[dict[str, Any]] = []
        self._processes: dict[int, psutil.Process] = {}
        self._roots: tuple[int, ...] = ()
        self._times = psutil.cpu_times()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: Iterable[int]) -> None:
        """Take a first sample and then one per period, of these processes and their children."""
        self._roots = tuple(pids)
        psutil.cpu_percent(None)
        self._walk_tree()
        self._thread = threading.Thread(target=self._loop, name="monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and look at the neighbours once more. Safe to call twice, and without `start`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._foreign |= self._busy_neighbours()

    def drain(self) -> list[dict[str, Any]]:
        """Samples since the last call, without the keys of the serving."""
        rows, self._rows = self._rows, []
        return rows

    @property
    def throttle_reasons(self) -> list[str]:
        return sorted(self._throttle)

    @property
    def foreign_processes(self) -> list[str]:
        return sorted(self._foreign)

    def energy_j(self) -> float | None:
        """GPU energy since this monitor was built, over all GPUs; null when one does not tell."""
        spent = [_less(gpu.energy_j(), before) for gpu, before in zip(self._gpus, self._energy_start, strict=True)]
        known = [joules for joules in spent if joules is not None]
        return sum(known) if known and len(known) == len(spent) else None

    def _loop(self) -> None:
        count = 0
        while True:
            count += 1
            if count % TREE_EVERY == 0:
                self._walk_tree()
            rows = [self._host_row(), *map(self._gpu_row, self._gpus)]
            self._rows.extend(rows)  # one operation: `drain` never sees half a sample
            self.cost_s = time.thread_time()
            if self._stop.wait(self._period_s):
                return

    def _walk_tree(self) -> None:
        found: dict[int, psutil.Process] = {}
        for pid in self._roots:
            try:
                root = psutil.Process(pid)
                found |= {p.pid: self._processes.get(p.pid, p) for p in (root, *root.children(recursive=True))}
            except psutil.NoSuchProcess:
                continue
        self._processes = found

    def _host_row(self) -> dict[str, Any]:
        memory = self._resident_bytes()
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory or 0)
        return {
            "at_ns": now_ns(),
            "device": "host",
            "memory_bytes": memory,
            "device_memory_bytes": psutil.virtual_memory().used,
            "utilization": psutil.cpu_percent(None) / 100,
            "power_w": None,
            "clock_mhz": None,
            "temperature_c": None,
            "load_1m": os.getloadavg()[0],
            "steal": self._steal(),
            "throttle": None,
        }

    def _resident_bytes(self) -> int | None:
        total = 0
        for process in self._processes.values():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total or None

    def _steal(self) -> float | None:
        before, self._times = self._times, psutil.cpu_times()
        if not hasattr(before, "steal"):
            return None
        spent = sum(self._times) - sum(before)
        return max(0.0, self._times.steal - before.steal) / spent if spent > 0 else None

    def _gpu_row(self, gpu: Gpu) -> dict[str, Any]:
        processes, throttle = gpu.processes(), gpu.throttle()
        foreign = {pid for pid in processes if self._is_foreign(pid)}
        self._foreign |= {f"gpu pid {pid}" for pid in foreign}
        self._throttle |= set(throttle or ())
        mine = [used for pid, used in processes.items() if pid not in foreign]
        return {
            "at_ns": now_ns(),
            "device": f"gpu{gpu.index}",
            "memory_bytes": sum(used for used in mine if used is not None) if mine and None not in mine else None,
            "device_memory_bytes": gpu.used_bytes(),
            "utilization": gpu.utilization(),
            "power_w": gpu.power_w(),
            "clock_mhz": gpu.clock_mhz(),
            "temperature_c": gpu.temperature_c(),
            "load_1m": None,
            "steal": None,
            "throttle": None if throttle is None else ",".join(throttle),
        }

    def _is_foreign(self, pid: int) -> bool:
        """There before the launch, or a process of this machine outside the serving. A pid that came later and that this
        machine does not know is the serving itself, seen from inside a container."""
        if pid in self._neighbours:
            return True
        if pid not in self._processes:
            self._walk_tree()
        return pid not in self._processes and psutil.pid_exists(pid)

    def _busy_neighbours(self) -> set[str]:
        seconds = (now_ns() - self._started_ns) / 1e9
        own = {os.getpid(), *self._roots, *self._processes}
        return {
            f"{name} (pid {pid}) {(cpu - self._cpu_start.get(pid, (name, 0.0))[1]) / seconds:.1f} cores"
            for pid, (name, cpu) in _cpu_seconds().items()
            if pid not in own and (cpu - self._cpu_start.get(pid, (name, 0.0))[1]) / seconds > BUSY_CORES
        }


def _cpu_seconds() -> Mapping[int, tuple[str, float]]:
    """Name and CPU seconds of every process that may be read."""
    seen = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            seen[process.pid] = (process.info["name"], times.user + times.system)
    return seen


def _less(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before
