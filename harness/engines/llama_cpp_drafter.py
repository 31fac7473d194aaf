"""The drafter's GGUF file: given, converted elsewhere, or exported from the arm's checkpoint when a serving begins.

An exported file lies beside the folder of the checkpoint and says which weights it was made from. After another training it is
exported again: a drafter of yesterday would run, and be reported as today's.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.config import Arm
from harness.engines.base import EngineError
from harness.engines.drafter_files import gaps_between
from harness.engines.gguf_header import read_header
from harness.engines.server_dialect import checkpoint_path
from harness.fetch import gguf_remedy


@dataclass(frozen=True, slots=True)
class Export:
    """A checkpoint in Hugging Face's form and the file that is made from it."""

    folder: Path
    file: Path

    @property
    def is_due(self) -> bool:
        """Whether the file is not there, or of other weights. Raises ValueError for one that is no GGUF."""
        return not self.file.is_file() or read_header(self.file).source != _hash(self.folder)


def export_of(arm: Arm) -> Export | None:
    """Null where the arm has no checkpoint on this disk, or one that is a GGUF file or holds a single one."""
    place = checkpoint_path(arm)
    if place is None or not (folder := Path(place)).is_dir() or len(list(folder.glob("*.gguf"))) == 1:
        return None
    whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return Export(folder, folder.with_name(f"{folder.name}.gguf")) if whole else None


def drafter_path(arm: Arm) -> str | None:
    """The file that llama.cpp loads: the checkpoint itself, the one such file in its folder, or the exported one beside it."""
    place, export = checkpoint_path(arm), export_of(arm)
    if export is not None:
        return str(export.file)
    files = list(Path(place).glob("*.gguf")) if place else []
    return str(files[0]) if len(files) == 1 else place


def sized_by(arm: Arm) -> Path:
    """What of the drafter tells its size before launch: its file, or the folder that it will be exported from."""
    export, path = export_of(arm), Path(drafter_path(arm) or "")
    return export.folder if export is not None and not path.is_file() else path


def missing_drafter(arm: Arm, target: Path) -> list[str]:
    """Why llama.cpp could not load the arm's drafter beside the target's file, a line each."""
    export, path = export_of(arm), drafter_path(arm)
    if path is None:
        return []
    if export is not None:
        return [*gaps_between(arm, export.folder, target), *_export_gaps(arm, export, target)]
    if path.endswith(".gguf"):
        return gaps_between(arm, Path(path), target)
    if not Path(path).exists():
        return _absent(arm, path)
    return [f"arm '{arm.label}': {path} holds no single .gguf, and no config.json with *.safetensors to export one from"]


async def export_if_due(arm: Arm, target: Path) -> None:
    """Raises EngineError with the exporter's own line. It runs in a process of its own, for it loads the weights."""
    export = export_of(arm)
    if export is None or not export.is_due:
        return
    argv = (sys.executable, "-m", "drafters.export_gguf", str(export.folder), str(target), str(export.file))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    try:
        told, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        last = told.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise EngineError(f"llama_cpp: {export.folder} was not exported: {' '.join(last) or process.returncode}")


def _export_gaps(arm: Arm, export: Export, target: Path) -> list[str]:
    if export.file.is_file() and (other := _not_ours(export.file)):
        remedy = "delete it to have it exported again, or give it as checkpoint.location"
        return [f"arm '{arm.label}': {export.file} {other}, and {export.folder} is there; {remedy}"]
    if not target.is_file() or not export.is_due:
        return []
    if not os.access(export.file.parent, os.W_OK):
        return [f"arm '{arm.label}': {export.file} cannot be written; copy {export.folder} to where you may write"]
    from harness.engines import reference_files  # imports torch

    header = read_header(target)
    layers, hidden = header.size("block_count"), header.size("embedding_length")
    problem = reference_files.export_problem(export.folder, layers, hidden) if layers and hidden else f"{target}: no sizes"
    return [f"arm '{arm.label}': {export.folder}: {problem}"] if problem else []


def _not_ours(file: Path) -> str | None:
    """Why a file beside a checkpoint is not known to be made from it, in words, or null."""
    try:
        return None if read_header(file).source else "does not say which weights it was made from"
    except (ValueError, OSError):
        return "is no whole GGUF file"


def _hash(folder: Path) -> str:
    from harness.engines import reference_files  # imports torch

    return reference_files.drafter_hash(folder)


def _absent(arm: Arm, location: str) -> list[str]:
    """A drafter that is not on this disk. llama.cpp loads no revision of a hub repository; one without is told elsewhere."""
    if arm.checkpoint is None or arm.checkpoint.revision is None:
        return []
    key = "its arm's checkpoint.location"
    how = gguf_remedy(location, key) or f"download it: hf download {location} --revision {arm.checkpoint.revision}; set {key}"
    return [f"arm '{arm.label}': '{location}' is not on this disk; {how}"]
