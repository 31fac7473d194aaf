"""What llama.cpp would be launched with: program, files, memory, and what is missing for an arm."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from harness.config import Arm, Run, Size
from harness.engines.base import Memory
from harness.engines.llama_cpp_drafter import missing_drafter, sized_by
from harness.engines.method_support import machine_gap, option_gaps
from harness.estimate_memory import NOTHING, Needs, needs_of, plan_memory
from harness.fetch import fetch_command
from harness.held import slot_tokens

SERVER = Path(__file__).with_name("llama_cpp_server.py")
METHODS = {
    "plain": "none",
    "ngram": "ngram-simple",
    "draft_model": "draft-simple",
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
# What llama.cpp takes from the checkpoint or the request; `sample` and `confidence` are refused where they are on.
TOLD_BY_CHECKPOINT = frozenset(
    ("tap_numbering", "feature", "recycle", "zero_first_embedding", "modules", "temperature", "sample", "confidence")
)
KV_TYPES = {"auto": "f16", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def program(run: Run) -> list[str]:
    """The binary, or our server script in the interpreter that has xllamacpp."""
    if run.engine.binary:
        return [run.engine.binary]
    return [run.engine.interpreter or sys.executable, str(SERVER)]


def gguf_path(run: Run) -> Path:
    """The target's file: the rig's, or the one inside the package. A path that may not exist: `missing` tells."""
    flag, target = run.engine.flags.get("gguf"), run.target
    if flag is not None:
        return Path(str(flag)).expanduser()
    if target.source == "package" and target.file:
        try:
            return Path(str(distribution(target.location.partition("==")[0]).locate_file(target.file)))
        except PackageNotFoundError:
            return Path(target.file)
    return Path(target.location) / (target.file or "model.gguf")


def _missing_model(run: Run) -> list[str]:
    path = gguf_path(run)
    if how := fetch_command(str(path), run.target.fetched_from):
        remedy = f"fetch it: {how}, or set engine.flags.gguf to where it is"
    elif run.target.source == "package":
        remedy = "install the package that has it, or set engine.flags.gguf to the target's GGUF file"
    else:
        remedy = "set engine.flags.gguf to the target's GGUF file"
    if not path.is_file():
        return [f"target: '{path}' does not exist; {remedy}"]
    return list(filter(None, [pin_problem(run, path)]))


def pin_problem(run: Run, path: Path) -> str | None:
    """Another hash of the package's own file than the rig pins, as one line, or null. The file is hashed once in a process."""
    packaged = run.target.source == "package" and run.engine.flags.get("gguf") is None
    if not packaged or (found := _sha256(path, path.stat().st_size, path.stat().st_mtime_ns)) == run.target.sha256:
        return None
    again = f"reinstall {run.target.location} or fix the pin"
    return f"target.sha256: {path} has {found}, the rig pins {run.target.sha256}; {again}"


@cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    """The hash of the file as it was with this size and time of change."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _missing_method(run: Run, arm: Arm) -> list[str]:
    """Asks the program itself which methods it was built with."""
    wanted = METHODS.get(arm.method)
    if wanted is None:
        return [f"arm method '{arm.method}': llama.cpp has none of this name; it has {', '.join(METHODS)}"]
    refused = [name for name, value in arm.options.items() if name in ("sample", "confidence") and value]
    cannot = (f"arm option '{name}': llama.cpp cannot; leave it off" for name in refused)
    return [*_missing_program(run, arm.method, wanted), *_missing_size(arm), *cannot]


def _missing_program(run: Run, method: str, wanted: str) -> list[str]:
    """Whether the program is there, and knows the method. A GPU's rig is not judged by the CPU server that is here."""
    if machine_gap(run) and run.engine.binary is None:
        return [f"engine.binary: not set; on the GPU's machine {_get_program(run)}"]
    known = _help(tuple(program(run)))
    if known is None:
        return [f"engine: '{' '.join(program(run))}' does not run; {_get_program(run)}"]
    if not re.search(rf"\b{wanted}\b", known):
        return [f"arm method '{method}': this llama.cpp has no --spec-type {wanted}; use a newer build"]
    return []


def _get_program(run: Run) -> str:
    """The package's server runs on CPUs only, so a GPU's rig is told to build one."""
    if run.machine.kind == "cuda":
        return "build llama.cpp with CUDA (cmake -B build -DGGML_CUDA=ON), and set engine.binary to its llama-server"
    if run.engine.binary:
        return (
            "set engine.binary to a llama-server that does, or engine.binary=null for the one of pip install -e '.[llamacpp]'"
        )
    return "pip install -e '.[llamacpp]' in this repository, or set engine.binary to a llama-server"


def _missing_size(arm: Arm) -> list[str]:
    if arm.method != "ngram" or arm.options.get("min_n") == arm.options.get("max_n"):
        return []
    return ["arm option 'min_n': llama.cpp looks up one size only; set it to max_n, or take the arm ngram_simple"]


def _unservable(run: Run) -> list[str]:
    gaps = []
    if run.engine.kv_dtype not in KV_TYPES:
        gaps.append(f"engine.kv_dtype: llama.cpp has no {run.engine.kv_dtype}; it has {', '.join(KV_TYPES)}")
    if run.engine.verify_rule != "standard":
        gaps.append("engine.verify_rule: llama.cpp verifies by the standard rule only; set it to standard")
    return gaps


@cache
def _help(argv: tuple[str, ...]) -> str | None:
    """What `--help` prints, null if the program is not there or fails."""
    try:
        done = subprocess.run([*argv, "--help"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def estimate(run: Run, arm: Arm) -> Memory:
    """Files and sizes stated in the rig. A recurrent layer keeps a state per slot, and one more to go back to after a draft."""
    drafter = needs(sized_by(arm), arm.checkpoint.size) if arm.checkpoint else NOTHING
    slots = run.engine.max_running_requests
    held = run.model_copy(update={"engine": run.engine.model_copy(update={"kv_tokens": slots * slot_tokens(run)})})
    return plan_memory(held, needs(gguf_path(run), run.target.size), drafter, slots, slots if arm.draft_budget else 0)


def needs(path: Path, stated: Size | None) -> Needs:
    """Weights are the file's size where it is here, or the folder's that it is made from; KV is stated in the rig."""
    if not path.is_file() or stated is None:
        return needs_of(path if path.exists() else None, stated)
    kv, state = stated.kv_bytes_per_token, stated.state_bytes_per_request
    return Needs(path.stat().st_size, kv, state, "size of the GGUF file, KV as stated in the rig")


def missing(run: Run, arm: Arm) -> list[str]:
    """What this machine or this llama.cpp lacks for the arm, a line each."""
    unknown = option_gaps("llama.cpp", arm, ("min_n", "max_n"), {*TOLD_BY_CHECKPOINT, "url"})
    return [
        *machine_gap(run),
        *_missing_model(run),
        *_missing_method(run, arm),
        *unknown,
        *missing_drafter(arm, gguf_path(run)),
        *_unservable(run),
    ]
