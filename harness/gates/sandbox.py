"""Running code that a model wrote: a process of its own with limits, no network, no writes, an empty folder, and an end.

What the system cannot give (namespaces, Landlock) is left out and not in `isolation`; CPU, memory and time are always limited.
It is a sandbox against accidents of a model, not against an attacker.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("sandboxed.py")
CPU_S = 5
WALL_S = 15.0
MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """`passed`, the name of the exception that ended it, `timeout`, or `killed`; and what kept it in."""

    outcome: str
    isolation: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def run_program(source: str, wall_s: float = WALL_S, cpu_s: int = CPU_S) -> Outcome:
    """Run a program to its end. It passes only if it gets there: an exit, a crash or the end of its time is a failure."""
    nonce = secrets.token_hex(8)
    argv = [sys.executable, "-I", "-B", str(SCRIPT), str(cpu_s), str(MEMORY_BYTES)]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate(f"{nonce}\n{source}".encode(), timeout=wall_s)
        except subprocess.TimeoutExpired:
            return Outcome("timeout", ())
        finally:
            _kill_group(process)
    return _read(told, nonce)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End it and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()


def _read(told: bytes, nonce: str) -> Outcome:
    try:
        answer = json.loads(told)
    except ValueError:
        return Outcome("killed", ())  # by a limit, or by itself before it could say anything
    passed = answer["outcome"] == "passed" and answer["nonce"] == nonce
    return Outcome(answer["outcome"] if passed or answer["outcome"] != "passed" else "killed", tuple(answer["isolation"]))
