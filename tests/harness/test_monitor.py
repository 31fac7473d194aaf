"""The background sampler: rows that fit the table, neighbours told, energy summed, and cheap."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from fake_nvml import FakeNvml

from harness.monitor import Monitor
from harness.nvml import find_gpus
from harness.records import SAMPLES

KEYS = {"run_id": "r", "serving_id": "s", "block": 0, "arm": "plain"}


def test_samples_fit_the_table_and_come_once_per_period() -> None:
    monitor = Monitor(0.05, find_gpus(FakeNvml()))
    monitor.start([os.getpid()])
    time.sleep(0.4)
    monitor.stop()
    rows = monitor.drain()
    SAMPLES.to_arrow([{**KEYS, **row} for row in rows])
    assert {row["device"] for row in rows} == {"host", "gpu0"}
    assert 2 <= len([row for row in rows if row["device"] == "host"]) <= 10
    assert monitor.drain() == []
    assert monitor.peak_memory_bytes > 2**20


def test_a_child_of_the_serving_counts_as_the_serving() -> None:
    program = "import time; x = bytearray(64 << 20); time.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        monitor = Monitor(0.05)
        monitor.start([os.getpid()])
        alone = Monitor(0.05)
        alone.start([child.pid])
        time.sleep(0.8)
        monitor.stop()
        alone.stop()
    finally:
        child.kill()
        child.wait()
    assert alone.peak_memory_bytes > 64 << 20
    assert monitor.peak_memory_bytes > alone.peak_memory_bytes


def test_a_serving_that_is_gone_leaves_nulls_and_the_sampler_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    monitor = Monitor(0.05)
    monitor.start([child.pid])
    time.sleep(0.2)
    monitor.stop()
    assert {row["memory_bytes"] for row in monitor.drain()} == {None}


def test_processes_that_were_on_the_gpu_before_the_launch_are_foreign_and_not_ours_in_bytes() -> None:
    nvml = FakeNvml(processes={999: 14_000})
    monitor = Monitor(0.05, find_gpus(nvml))
    nvml.processes[os.getpid()] = 80_000
    monitor.start([os.getpid()])
    time.sleep(0.1)
    monitor.stop()
    (gpu, *_) = [row for row in monitor.drain() if row["device"] == "gpu0"]
    assert (gpu["memory_bytes"], gpu["device_memory_bytes"]) == (80_000, 96_000)
    assert "gpu pid 999" in monitor.foreign_processes
    assert not any(str(os.getpid()) in name for name in monitor.foreign_processes)


def test_throttle_reasons_and_energy_are_collected_over_the_serving() -> None:
    nvml = FakeNvml(processes={})
    nvml.energy_mj = 5_000
    monitor = Monitor(0.02, find_gpus(nvml))
    monitor.start([os.getpid()])
    nvml.throttle, nvml.energy_mj = 0x4 | 0x20, 12_500
    time.sleep(0.2)
    monitor.stop()
    assert monitor.throttle_reasons == ["power_cap", "sw_thermal"]
    assert monitor.energy_j() == 7.5


def test_energy_is_null_where_a_gpu_does_not_tell_or_there_is_none() -> None:
    assert Monitor(1).energy_j() is None
    assert Monitor(1, find_gpus(FakeNvml(mig=True))).energy_j() is None


def test_a_busy_neighbour_is_told_and_the_serving_is_not() -> None:
    monitor = Monitor(0.1)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        monitor.start([])
        time.sleep(1.5)
        monitor.stop()
    finally:
        busy.kill()
        busy.wait()
    assert any(f"(pid {busy.pid})" in told for told in monitor.foreign_processes)
    assert not any(f"(pid {os.getpid()})" in told for told in monitor.foreign_processes)


def test_a_sampler_costs_under_one_percent_of_a_core() -> None:
    """CPU time of its thread at the period that the presets use, not wall time: other processes do not change it."""
    monitor = Monitor(1.0)
    monitor.start([os.getpid()])
    time.sleep(3.2)
    monitor.stop()
    assert 0 < monitor.cost_s < 0.032


def test_stop_without_start_and_twice_is_safe() -> None:
    monitor = Monitor(1.0)
    monitor.stop()
    monitor.stop()
    assert monitor.drain() == []
