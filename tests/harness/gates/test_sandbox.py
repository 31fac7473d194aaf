"""Programs that misbehave, for real: each must fail, end, and leave nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.gates.sandbox import run_program


def test_a_program_that_runs_to_its_end_passes_and_says_what_kept_it_in():
    got = run_program("import math\nassert math.gcd(12, 18) == 6\n")
    assert got.passed
    assert {"limits", "no processes"} <= set(got.isolation)


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("assert 1 == 2", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("import os\nos._exit(0)", "killed"),
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("import os\nos.fork()", "PermissionError"),
        ("import os\nos.kill(os.getppid(), 9)", "PermissionError"),
        ('import os\nos.write(3, b\'{"outcome": "passed", "nonce": "", "isolation": []}\')\nos._exit(0)', "killed"),
    ],
)
def test_what_does_not_reach_its_end_fails(source: str, outcome: str):
    got = run_program(source)
    assert got.outcome == outcome
    assert not got.passed


@pytest.mark.parametrize("source", ["import time\ntime.sleep(60)", "while True: pass"])
def test_a_program_without_an_end_is_ended(source: str):
    started = time.monotonic()
    got = run_program(source, wall_s=1.0, cpu_s=1)
    assert not got.passed
    assert time.monotonic() - started < 10


def test_nothing_can_be_written_and_nobody_can_be_called(tmp_path: Path):
    tmp_path.chmod(0o777)
    for source in (f"open({str(tmp_path / 'x')!r}, 'w').write('x')", "open('here', 'w').write('x' * 10)"):
        assert not run_program(source).passed
    assert list(tmp_path.iterdir()) == []
    assert not run_program("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)").passed
    assert not run_program("import subprocess\nsubprocess.run(['true'], check=True)").passed


def test_output_and_input_of_a_program_go_nowhere(capfd: pytest.CaptureFixture[str]):
    assert run_program(
        "print('x' * 100)\nimport sys\nassert sys.stdin.read() == ''\nassert 'nonce' not in repr(sys.argv)"
    ).passed
    assert capfd.readouterr().out == ""


def test_no_process_is_left_of_one_that_was_ended():
    run_program("import time\ntime.sleep(60)", wall_s=0.5)
    mine = [p for p in Path("/proc").glob("[0-9]*/stat") if _parent_of(p) == os.getpid()]
    assert not [p for p in mine if b"sandboxed" in (p.parent / "cmdline").read_bytes()]


def _parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1
