"""Host and GPU facts: values or absent, never a guess, on a fake NVML too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
