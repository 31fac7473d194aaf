"""Host and GPU facts: values or absent, never a guess, on a fake NVML too."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
from fake_nvml import FakeNvml

from harness import probe
from harness.nvml import find_gpus


def test_host_facts_are_json_scalars_and_none_is_null() -> None:
    facts = probe.facts()
    assert facts["logical_cores"] >= facts["physical_cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert all(value is not None for value in facts.values())
    assert json.loads(json.dumps(facts)) == facts


Linux = namedtuple("Linux", "user nice system idle iowait irq softirq steal")
Mac = namedtuple("Mac", "user nice system idle")


@pytest.mark.parametrize("seconds", [0.2, 0.5, 5.0])
def test_an_idle_machine_is_idle_however_short_the_look(seconds: float) -> None:
    """A fifth of a second of two cores is less than one CPU second, which psutil's percentages take for a whole one."""
    before, after = Linux(5, 0, 3, 100, 1, 0, 0, 2), Linux(5, 0, 3, 100 + 2 * seconds, 1, 0, 0, 2)
    assert probe.cores(before, after, 0.0, seconds) == {"load_busy_cores": 0.0, "load_stolen_cores": 0.0}


def test_only_others_work_is_busy_and_stolen_time_stands_apart() -> None:
    before = Linux(10.0, 1.0, 5.0, 50.0, 2.0, 0.0, 1.0, 3.0)
    after = Linux(10.1, 1.2, 5.1, 50.0, 2.4, 0.05, 1.05, 3.1)
    assert probe.cores(before, after, 0.0, 0.5) == {"load_busy_cores": 1.0, "load_stolen_cores": 0.2}
    assert probe.cores(before, after, 0.3, 0.5)["load_busy_cores"] == 0.4
    assert probe.cores(before, after, 0.6, 0.5)["load_busy_cores"] == 0.0


def test_a_system_that_does_not_tell_stolen_time_leaves_it_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([Mac(1.0, 0.0, 1.0, 9.0), Mac(1.0, 0.0, 1.0, 9.2)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(readings))
    assert "load_stolen_cores" not in probe.facts()


def test_the_harness_s_own_threads_are_not_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of this process that never rests, on a machine whose cores count nothing else."""
    started, done = time.process_time(), threading.Event()
    monkeypatch.setattr(psutil, "cpu_times", lambda: Mac(time.process_time() - started, 0.0, 0.0, 0.0))
    spinning = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    spinning.start()
    seen = probe.foreign_load()["load_busy_cores"]
    done.set()
    spinning.join()
    assert time.process_time() - started > 0.01
    assert seen is not None
    assert seen < 0.1


def test_versions_name_python_and_only_what_is_installed() -> None:
    versions = probe.versions()
    assert versions["python"].startswith("3.")
    assert all(versions.values())


def test_the_probe_loads_no_torch() -> None:
    program = "import sys, harness.probe as p; p.facts(); p.versions(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_a_machine_without_a_driver_has_no_gpu() -> None:
    assert probe.gpus(FakeNvml(driver=False)) == []


def test_gpu_facts_carry_identity_limits_and_mig() -> None:
    facts = probe.facts(probe.gpus(FakeNvml()))
    assert (facts["gpu0_name"], facts["gpu0_power_limit_w"], facts["gpu0_mig"]) == ("NVIDIA H200", 700.0, False)
    assert facts["gpu0_compute_processes"] == 2


def test_a_mig_instance_leaves_what_it_cannot_tell_absent() -> None:
    nvml = FakeNvml(mig=True)
    (gpu,) = find_gpus(nvml)
    facts = gpu.facts()
    assert facts["gpu0_mig_profiles"] == "NVIDIA H200 MIG 3g.71gb"
    assert gpu.utilization() is None
    assert "gpu0_power_limit_w" not in facts


def test_only_visible_gpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in find_gpus(FakeNvml(count=3))] == [1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    assert [gpu.index for gpu in find_gpus(FakeNvml(count=3))] == [2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus(FakeNvml(count=3)) == []


def test_the_driver_version_is_told_where_there_is_a_gpu() -> None:
    assert probe.versions(find_gpus(FakeNvml()))["nvidia_driver"] == "580.0"


def test_work_of_the_serving_and_its_children_is_not_that_of_others() -> None:
    """A process that never rests is a neighbour to whom it is unknown, and none to whom its parent was named."""
    shell = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: 0'])"]
    )
    try:
        before = [probe.CpuUse.now(), probe.CpuUse.now([shell.pid])]
        time.sleep(0.5)
        after = [probe.CpuUse.now(), probe.CpuUse.now([shell.pid])]
        alone, ours = (a.until(b)["load_busy_cores"] for a, b in zip(before, after, strict=True))
    finally:
        for child in psutil.Process(shell.pid).children(recursive=True):
            child.kill()
        shell.kill()
        shell.wait()
    assert alone is not None
    assert ours is not None
    assert alone - ours > 0.1


def test_a_child_that_is_named_beside_its_parent_counts_once() -> None:
    """As a server's pids name its engine's processes: counted twice, they would hide as much work of others."""
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: 0'])"]
    )
    try:
        child = _wait_for_child(parent.pid)
        before = probe.CpuUse.now([parent.pid, child.pid]).own_s
        worked = child.cpu_times().user
        time.sleep(0.5)
        spent, worked = probe.CpuUse.now([parent.pid, child.pid]).own_s - before, child.cpu_times().user - worked
    finally:
        for process in psutil.Process(parent.pid).children(recursive=True):
            process.kill()
        parent.kill()
        parent.wait()
    assert worked > 0.05
    assert spent < 1.5 * worked


def _wait_for_child(pid: int) -> psutil.Process:
    while not (found := psutil.Process(pid).children()):
        time.sleep(0.01)
    return found[0]


def test_a_process_that_ended_has_done_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert probe.CpuUse.now([gone.pid]).own_s == pytest.approx(time.process_time(), abs=1.0)
